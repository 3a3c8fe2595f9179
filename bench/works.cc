#include "bench/works.h"

#include <algorithm>

#include <fmt/core.h>

#include "bench/row.h"
#include "bench/tests.h"

namespace bench {
namespace {

// The maximum size of one rank's buffers in one direction, which limits the messages in flight.
constexpr uint64_t kMaxWindowBytes = uint64_t{128} << 20;
constexpr double kSecondsAlone = 0.05;
constexpr double kSecondsInRound = 0.02;

Work make_work(const Options& options, const TestDefaults& defaults) {
  const bool compared = options.compares();
  Work work;
  work.workload.test = defaults.test;
  work.workload.iterations = options.sizes.iterations;
  work.workload.warmup = options.sizes.warmup;
  work.workload.seconds = options.sizes.seconds > 0 ? options.sizes.seconds
                          : compared                ? kSecondsInRound
                                                    : kSecondsAlone;
  work.workload.check = options.subject.check;
  uint64_t first = options.sizes.first_bytes.value_or(defaults.first_bytes);
  uint64_t last = options.sizes.last_bytes.value_or(compared ? defaults.last_bytes_compared
                                                             : defaults.last_bytes);
  // If only one end was given, the other end's default can be beyond it.
  if (first > last)
    (options.sizes.first_bytes ? last : first) = options.sizes.first_bytes ? first : last;
  const double factor = options.sizes.factor > 0 ? options.sizes.factor
                        : compared               ? defaults.factor_compared
                                                 : defaults.factor;
  const int window = options.sizes.window > 0 ? options.sizes.window : defaults.window;
  const bool windowed = !smaller_is_better(work.workload.test);
  if (defaults.first_bytes == defaults.last_bytes) first = last = defaults.first_bytes;
  work.workload.points = make_points(first, last, factor, windowed ? window : 1, kMaxWindowBytes);
  work.first_memory = options.subject.first_memory;
  work.second_memory = options.subject.second_memory;
  if (is_staging(work.workload.test) && work.first_memory == "host" &&
      work.second_memory == "host") {
    work.first_memory = work.second_memory = "sim-handle";
  }
  work.progress = options.subject.progress;
  work.stream = options.subject.stream;
  work.ranks = options.subject.ranks > 0 ? options.subject.ranks : defaults.ranks;
  work.bind = options.subject.bind;
  return work;
}

// Adds |work| once for each setting that its test measures.
void add_settings(Work work, const Options& options, std::vector<Work>* works) {
  if (is_staging(work.workload.test)) {
    for (const uint64_t chunk : options.settings.chunks) {
      for (const int depth : options.settings.depths) {
        work.staging_chunk = chunk;
        work.staging_depth = depth;
        works->push_back(work);
        works->back().variant += fmt::format(", chunk {}, depth {}", chunk, depth);
      }
    }
    return;
  }
  if (!options.settings.algorithms.empty()) {
    for (const std::string& algorithm : options.settings.algorithms) {
      work.algorithm = algorithm;
      works->push_back(work);
      works->back().variant += ", " + algorithm;
    }
    return;
  }
  if (work.workload.test != "overlap" || !options.subject.progress.empty()) {
    works->push_back(work);
    return;
  }
  for (const char* progress : {"caller", "thread"}) {
    work.progress = progress;
    works->push_back(work);
    works->back().variant += fmt::format(", progress {}", progress);
  }
}

}  // namespace

std::vector<Work> make_works(const Options& options, bool elsewhere) {
  std::vector<std::string> transports = options.subject.transports;
  if (transports.empty()) {
    transports =
        elsewhere ? std::vector<std::string>{"auto"} : std::vector<std::string>{"shm", "tcp"};
  }
  std::vector<Work> works;
  for (const std::string& test : options.tests) {
    std::vector<Work> variants;
    for (const std::string& transport : transports) {
      for (const std::string& pin :
           options.settings.pins.empty() ? std::vector<std::string>{""} : options.settings.pins) {
        for (const int rails :
             options.settings.rails.empty() ? std::vector<int>{0} : options.settings.rails) {
          Work work = make_work(options, defaults_of(test));
          work.transport = transport;
          work.pin = pin;
          work.rails = rails;
          work.variant = transport;
          if (options.settings.pins.size() > 1) work.variant += ", " + pin;
          if (options.settings.rails.size() > 1) work.variant += fmt::format(", rails {}", rails);
          add_settings(work, options, &variants);
        }
      }
    }
    const int rounds = options.settings.interleave ? options.rounds.value_or(kRounds) : 1;
    for (int round = 0; round < rounds; ++round) {
      for (Work& work : variants) work.round = round;
      works.insert(works.end(), variants.begin(), variants.end());
      std::rotate(variants.begin(), variants.begin() + 1, variants.end());
    }
  }
  return works;
}

}  // namespace bench
