#include "bench/work.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace bench {

std::string memory_text(const Work& work) {
  if (work.first_memory == work.second_memory) return work.first_memory;
  return work.first_memory + ":" + work.second_memory;
}

tools::SessionOptions session_options(const Work& work) {
  std::vector<std::string> settings;
  const auto set = [&](const char* name, uint64_t value) {
    if (value > 0) settings.push_back(fmt::format("{}={}", name, value));
  };
  set("HETCOMM_STAGING_CHUNK", work.staging_chunk);
  set("HETCOMM_STAGING_DEPTH", static_cast<uint64_t>(work.staging_depth));
  set("HETCOMM_RAILS", static_cast<uint64_t>(work.rails));
  if (!work.pin.empty()) {
    settings.emplace_back(work.pin == "pinned" ? "HETCOMM_STAGING_PIN=on"
                                               : "HETCOMM_STAGING_PIN=off");
  }
  return {work.progress,
          {work.first_memory, work.second_memory},
          fmt::format("{}", fmt::join(settings, ";"))};
}

std::vector<std::string> encode_words(const Work& work) {
  std::vector<std::string> words;
  const std::string workload = encode(work.workload);
  for (std::string_view word : split(workload, ' ')) words.emplace_back(word);
  words.push_back("transport=" + work.transport);
  words.push_back("first_memory=" + work.first_memory);
  words.push_back("second_memory=" + work.second_memory);
  if (!work.progress.empty()) words.push_back("progress=" + work.progress);
  if (!work.algorithm.empty()) words.push_back("algorithm=" + work.algorithm);
  if (work.staging_chunk > 0) words.push_back("chunk=" + std::to_string(work.staging_chunk));
  if (work.staging_depth > 0) words.push_back("depth=" + std::to_string(work.staging_depth));
  if (work.rails > 0) words.push_back("rails=" + std::to_string(work.rails));
  if (!work.pin.empty()) words.push_back("pin=" + work.pin);
  if (work.stream) words.emplace_back("stream=1");
  words.push_back("ranks=" + std::to_string(work.ranks));
  return words;
}

bool decode_work_word(std::string_view word, Work* work) {
  std::string_view text;
  int flag = 0;
  if (take_integer(word, "stream", &flag)) {
    work->stream = flag != 0;
  } else if (take_word(word, "transport", &text)) {
    work->transport = text;
  } else if (take_word(word, "first_memory", &text)) {
    work->first_memory = text;
  } else if (take_word(word, "second_memory", &text)) {
    work->second_memory = text;
  } else if (take_word(word, "progress", &text)) {
    work->progress = text;
  } else if (take_word(word, "algorithm", &text)) {
    work->algorithm = text;
  } else if (take_word(word, "pin", &text)) {
    work->pin = text;
  } else {
    return take_integer(word, "ranks", &work->ranks) ||
           take_integer(word, "chunk", &work->staging_chunk) ||
           take_integer(word, "depth", &work->staging_depth) ||
           take_integer(word, "rails", &work->rails) || decode_workload_word(word, &work->workload);
  }
  return true;
}

std::vector<Point> make_points(uint64_t first, uint64_t last, double factor, int window,
                               uint64_t most_bytes) {
  std::vector<Point> points;
  for (uint64_t bytes = first;;) {
    const uint64_t fitting = most_bytes / std::max<uint64_t>(bytes, 1);
    const uint64_t in_flight = std::min(static_cast<uint64_t>(window), fitting);
    points.push_back({bytes, static_cast<int>(std::max<uint64_t>(in_flight, 1))});
    const double next =
        std::max(static_cast<double>(bytes) * factor, static_cast<double>(bytes) + 1);
    if (next > static_cast<double>(last)) return points;
    bytes = static_cast<uint64_t>(next);
  }
}

}  // namespace bench
