#include "bench/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <hetcomm/info.h>

#include "bench/row.h"
#include "src/present/nearest.h"

namespace bench {
namespace {

using hetcomm::present::did_you_mean;

constexpr const char* kTests[] = {
    "latency",       "bandwidth",     "bibandwidth",          "msgrate",
    "overlap",       "put_latency",   "put_bandwidth",        "put_notify_latency",
    "get_latency",   "get_bandwidth", "put_notify_bandwidth", "fetch_add_latency",
    "fetch_add_rate"};
// "all" excludes this test, which needs devices.
constexpr const char* kPost = "post_latency";
constexpr const char* kPointer = "pointer_latency";
// Tests that can be ordered in a stream.
constexpr const char* kStreamTests[] = {"latency", "bandwidth", "bibandwidth", "msgrate", kPost};
// Tests that "all" excludes. Each is requested by its name, or all of them as "collectives".
constexpr const char* kCollectiveTests[] = {"allreduce", "reduce_scatter", "allgather", "alltoall",
                                            "broadcast", "reduce",         "barrier"};
// Tests that measure a job instead of sizes. Each must be the only test.
constexpr const char* kJobTests[] = {"links", "affinity", "queue", "reshard"};
constexpr const char* kPatterns[] = {"stream", "1f1b", "share"};
constexpr const char* kComputes[] = {"timer", "burn"};
constexpr const char* kMemories[] = {"host", "sim-handle", "sim-address", "opencl"};
constexpr const char* kPins[] = {"pinned", "pageable"};
constexpr const char* kTransports[] = {"auto", "shm", "tcp", "rdma"};
constexpr const char* kPeers[] = {"ucx", "mpi", "gloo", "iperf3", "memcpy", "perftest"};
constexpr const char* kFormats[] = {"table", "osu", "csv", "json"};
// Limit on one rank's buffers in one direction. It limits the messages in flight.
constexpr uint64_t kMaxWindowBytes = uint64_t{128} << 20;
constexpr double kSecondsAlone = 0.05;
constexpr double kSecondsInRound = 0.02;

// --- defaults of the tests
// -------------------------------------------------------------------------

struct TestDefaults {
  const char* test;
  uint64_t first_bytes;
  uint64_t last_bytes;
  double factor;
  double factor_compared;
  uint64_t last_bytes_compared;
  int window;
  int ranks;
};
constexpr uint64_t kKi = 1024;
constexpr uint64_t kMi = 1024 * kKi;
constexpr uint64_t kWordBytes = 8;  // the only size of atomics
constexpr TestDefaults kDefaults[] = {
    {"latency", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"bandwidth", 8, 64 * kMi, 2, 8, 16 * kMi, 64, 2},
    {"bibandwidth", 8, 64 * kMi, 2, 8, 16 * kMi, 64, 2},
    {"msgrate", 8, 4 * kKi, 2, 8, 4 * kKi, 16, 4},
    {"overlap", 4 * kKi, 64 * kMi, 4, 16, 16 * kMi, 1, 2},
    {"post_latency", 8, 8, 8, 8, 8, 1, 2},
    {"pointer_latency", 8, 8, 8, 8, 8, 1, 2},
    {"staging", 4 * kMi, 64 * kMi, 4, 4, 64 * kMi, 4, 2},
    {"staged_allreduce", 4 * kMi, 64 * kMi, 4, 4, 64 * kMi, 1, 2},
    {"staged_allgather", 4 * kMi, 64 * kMi, 4, 4, 64 * kMi, 1, 2},
    {"put_latency", 8, 4 * kKi, 2, 8, 4 * kKi, 1, 2},
    {"put_bandwidth", 64 * kKi, 64 * kMi, 4, 16, 64 * kMi, 64, 2},
    {"put_notify_latency", 8, 4 * kKi, 2, 8, 4 * kKi, 1, 2},
    {"put_notify_bandwidth", 8, 64 * kMi, 2, 8, 16 * kMi, 64, 2},
    {"allreduce", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"reduce_scatter", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"allgather", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"alltoall", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"broadcast", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"reduce", 8, 64 * kMi, 2, 8, 16 * kMi, 1, 2},
    {"barrier", 0, 0, 2, 2, 0, 1, 2},
    {"get_latency", 8, 4 * kKi, 2, 8, 4 * kKi, 1, 2},
    {"get_bandwidth", 64 * kKi, 64 * kMi, 4, 16, 64 * kMi, 64, 2},
    {"fetch_add_latency", kWordBytes, kWordBytes, 2, 2, kWordBytes, 1, 2},
    {"fetch_add_rate", kWordBytes, kWordBytes, 2, 2, kWordBytes, 16, 2},
};

const TestDefaults& defaults_of(const std::string& test) {
  for (const TestDefaults& defaults : kDefaults) {
    if (test == defaults.test) return defaults;
  }
  return kDefaults[0];
}

// --- words
// -------------------------------------------------------------------------------------------

template <size_t kCount>
bool is_one_of(const std::string& word, const char* const (&words)[kCount]) {
  return std::any_of(words, words + kCount, [&](const char* known) { return word == known; });
}

// "unknown format 'jsn'; did you mean 'json'? Known: table, osu, csv, json"
std::string unknown(const char* what, const std::string& word,
                    const std::vector<std::string>& known) {
  return fmt::format("unknown {} '{}'{} Known: {}", what, word,
                     did_you_mean(word, known).empty() ? "." : did_you_mean(word, known),
                     fmt::join(known, ", "));
}

template <size_t kCount>
std::string unknown(const char* what, const std::string& word, const char* const (&known)[kCount]) {
  return unknown(what, word, std::vector<std::string>(known, known + kCount));
}

std::vector<std::string> comma_separated(const std::string& text) {
  std::vector<std::string> parts;
  for (const std::string_view part : split(text, ',')) parts.emplace_back(part);
  return parts;
}

std::string memory_kind(const std::string& name) { return name == "sim" ? "sim-address" : name; }

// --- checks beyond those of CLI11: each returns "" or the error
// -------------------------------------

// Returns the tests that |word| stands for, or none if it is unknown.
std::vector<std::string> tests_of(const std::string& word) {
  if (is_one_of(word, kTests) || is_staging(word) || word == kPost || word == kPointer ||
      is_one_of(word, kJobTests) || is_one_of(word, kCollectiveTests)) {
    return {word};
  }
  if (word == "collectives") return {std::begin(kCollectiveTests), std::end(kCollectiveTests)};
  if (word == "all") return {std::begin(kTests), std::end(kTests)};
  if (word == "fetch_add") return {"fetch_add_latency", "fetch_add_rate"};
  if (word == "put" || word == "get" || word == "put_notify") {
    return {word + "_latency", word + "_bandwidth"};
  }
  return {};
}

std::vector<std::string> known_tests() {
  std::vector<std::string> known(std::begin(kTests), std::end(kTests));
  known.insert(known.end(), std::begin(kCollectiveTests), std::end(kCollectiveTests));
  known.insert(known.end(), std::begin(kJobTests), std::end(kJobTests));
  known.insert(known.end(), std::begin(kStagingTests), std::end(kStagingTests));
  for (const char* word :
       {kPost, kPointer, "collectives", "all", "fetch_add", "put", "get", "put_notify"}) {
    known.emplace_back(word);
  }
  return known;
}

std::string check_tests(const std::string& text, Options* options) {
  for (const std::string& word : comma_separated(text.empty() ? "latency,bandwidth" : text)) {
    const std::vector<std::string> tests = tests_of(word);
    if (tests.empty()) {
      return unknown("test", word, known_tests()) + " (a host comes after the test)";
    }
    options->tests.insert(options->tests.end(), tests.begin(), tests.end());
  }
  return "";
}

std::string check_memory(const std::string& text, Options* options) {
  if (text.empty()) return "";
  std::vector<std::string> sides;
  std::istringstream words(text);
  const auto is_number = [](const std::string& word) {
    return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
  };
  for (std::string word; std::getline(words, word, ':');) {
    if (word == "plugin") {
      if (!std::getline(words, word, ':')) return "--memory plugin:NAME: the name is missing";
      sides.push_back(word);
      continue;
    }
    if (!sides.empty() && sides.back() == "opencl" && is_number(word)) {
      sides.back() += ":" + word;
      continue;
    }
    sides.push_back(memory_kind(word));
    if (!is_one_of(sides.back(), kMemories)) {
      return unknown("memory", sides.back(), kMemories) +
             ", sim, opencl:N, plugin:NAME; for both sides, or SIDE0:SIDE1";
    }
  }
  if (sides.empty() || sides.size() > 2) return "--memory is SIDE or SIDE0:SIDE1";
  options->first_memory = sides.front();
  options->second_memory = sides.back();
  const auto may_be_direct = [](const std::string& side) {
    return side == "host" || side == "sim-address";
  };
  const bool stages = std::any_of(std::begin(kStagingTests), std::end(kStagingTests),
                                  [&](const char* test) { return options->asks_for(test); });
  if (stages && std::all_of(sides.begin(), sides.end(), may_be_direct)) {
    return "staging needs memory that nobody but its device reaches: use --memory sim-handle on "
           "one side at least";
  }
  if (options->asks_for("overlap") && options->second_memory != "host") {
    return "overlap watches the receive buffer: the second side's --memory must be host";
  }
  const bool host = options->first_memory == "host" && options->second_memory == "host";
  for (const char* test : {"links", "affinity"}) {
    if (!host && options->asks_for(test)) {
      return fmt::format("{} is measured in host memory only", test);
    }
  }
  for (const char* test : {"put_latency", "fetch_add_latency", "fetch_add_rate"}) {
    if (!host && options->asks_for(test)) {
      return fmt::format("{} reads and changes words of memory: --memory must be host", test);
    }
  }
  return "";
}

std::string check_stream(Options* options) {
  if (options->asks_for(kPost)) options->stream = true;
  if (!options->stream) return "";
  for (const std::string& test : options->tests) {
    if (!is_one_of(test, kStreamTests) && !is_one_of(test, kCollectiveTests)) {
      return fmt::format("{} is not measured in the order of a stream; these are: {}, collectives",
                         test, fmt::join(kStreamTests, ", "));
    }
  }
  if (options->first_memory == "host" || options->second_memory == "host") {
    return "streams are those of devices: --stream needs --memory of a device on both sides";
  }
  if (!options->comparison.peers.names.empty())
    return "--stream measures hetcomm alone: leave out --compare";
  if (options->progress == "caller") return "--stream needs --progress thread";
  options->progress = "thread";
  return "";
}

std::string check_compare(const std::string& text, const std::vector<std::string>& paths,
                          Options* options) {
  options->comparison.peers.names = comma_separated(text);
  for (const std::string& peer : options->comparison.peers.names) {
    if (!is_one_of(peer, kPeers)) {
      return unknown("peer", peer, kPeers);
    }
  }
  for (const std::string& entry : paths) {
    const size_t equals = entry.find('=');
    const std::string peer = entry.substr(0, equals);
    if (equals == std::string::npos || (peer != "mpi" && peer != "ucx" && peer != "iperf3")) {
      return fmt::format("--peer takes mpi=PATH, ucx=PATH or iperf3=PATH, not '{}'", entry);
    }
    options->comparison.peers.paths.emplace_back(peer, entry.substr(equals + 1));
  }
  return "";
}

std::string check_transports(const std::string& text, Options* options) {
  for (std::string& transport : comma_separated(text)) {
    if (!is_one_of(transport, kTransports)) {
      return unknown("transport", transport, kTransports);
    }
    options->transports.push_back(std::move(transport));
  }
  return "";
}

std::string check_sizes(const std::string& first, const std::string& last, Options* options) {
  if (!first.empty() && !parse_bytes(first, &options->sizes.first_bytes)) {
    return fmt::format("-b takes a size such as 8, 64K or 1M, not '{}'", first);
  }
  if (!last.empty() && !parse_bytes(last, &options->sizes.last_bytes)) {
    return fmt::format("-e takes a size such as 8, 64K or 1M, not '{}'", last);
  }
  options->sizes.first_given = !first.empty();
  options->sizes.last_given = !last.empty();
  if (options->sizes.first_given && options->sizes.last_given &&
      options->sizes.first_bytes > options->sizes.last_bytes) {
    return fmt::format("the first size (-b {}) is larger than the last (-e {})", first, last);
  }
  // MPI stores a message's size in an int.
  constexpr uint64_t kMaxBytes = (uint64_t{1} << 31) - 1;
  if (std::max(options->sizes.first_bytes, options->sizes.last_bytes) > kMaxBytes) {
    return "-b and -e have to be below 2G";
  }
  if (options->sizes.factor != 0 && options->sizes.factor <= 1) return "-f must be above 1";
  if (options->sizes.first_given && options->sizes.first_bytes == 0 &&
      options->asks_for("put_latency")) {
    return "put_latency waits for the last byte of a message: -b must be above 0";
  }
  return "";
}

std::string check_places(Options* options) {
  if (options->meeting.listen && !options->meeting.host.empty())
    return "--listen waits for the other host: leave out the host";
  const bool two_hosts = options->meeting.listen || !options->meeting.host.empty();
  if (two_hosts && !options->comparison.peers.names.empty()) {
    return "--compare measures on one host: leave out --listen and the host";
  }
  if (two_hosts && options->ranks > 2)
    return "a measurement between two hosts has two ranks: leave out --ranks";
  if (!is_one_of(options->output.format, kFormats)) {
    return unknown("format", options->output.format, kFormats);
  }
  if (!options->progress.empty() && options->progress != "caller" &&
      options->progress != "thread") {
    return fmt::format("--progress is caller or thread, not '{}'", options->progress);
  }
  return "";
}

// Returns the whole number in |text|, or 0 if it is no number or not within the limits.
int number_within(const std::string& text, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= least && number <= most ? number : 0;
}

std::string check_staging(const std::string& chunks, const std::string& depths, Options* options) {
  for (const std::string& chunk : comma_separated(chunks)) {
    uint64_t bytes = 0;
    const bool valid = parse_bytes(chunk, &bytes) && bytes >= 4 * kKi && bytes <= 1024 * kMi;
    if (chunk != "auto" && !valid) {
      return fmt::format("--chunk takes auto and sizes from 4K to 1G, not '{}'", chunk);
    }
    options->settings.chunks.push_back(bytes);
  }
  for (const std::string& depth : comma_separated(depths)) {
    options->settings.depths.push_back(number_within(depth, 1, 16));
    if (depth != "auto" && options->settings.depths.back() == 0) {
      return fmt::format("--depth takes auto and numbers from 1 to 16, not '{}'", depth);
    }
  }
  return "";
}

std::string check_pins(const std::string& text, Options* options) {
  for (const std::string& pin : comma_separated(text)) {
    if (!is_one_of(pin, kPins)) return unknown("staging memory", pin, kPins);
    options->settings.pins.push_back(pin);
  }
  return "";
}

std::string check_rails(const std::string& text, Options* options) {
  for (const std::string& rails : comma_separated(text)) {
    options->settings.rails.push_back(number_within(rails, 1, 64));
    if (options->settings.rails.back() == 0) {
      return fmt::format("--rails takes numbers from 1 to 64, not '{}'", rails);
    }
  }
  if (options->settings.interleave && !options->comparison.peers.names.empty()) {
    return "--interleave measures hetcomm alone: leave out --compare";
  }
  if (options->settings.interleave && options->transports.size() < 2 &&
      options->settings.rails.size() < 2 && options->settings.pins.size() < 2 &&
      options->settings.algorithms.size() < 2) {
    return "--interleave needs several values of --transport, --staging-memory, --rails or "
           "--algorithm";
  }
  return "";
}

std::string check_job_tests(const Options& options) {
  const auto* const found = std::find_if(std::begin(kJobTests), std::end(kJobTests),
                                         [&](const char* test) { return options.asks_for(test); });
  if (found == std::end(kJobTests)) return "";
  const std::string test = *found;
  if (options.tests.size() > 1) return test + " is measured alone: leave out the other tests";
  if (options.meeting.listen || !options.meeting.host.empty()) {
    return test +
           " measures a job: start its ranks by mpirun or torchrun, or on this host by --ranks";
  }
  if (options.transports.size() > 1) {
    return test + " is measured over one --transport, or over auto";
  }
  if (!options.comparison.peers.names.empty() || options.settings.interleave) {
    return test + " measures hetcomm alone: leave out --compare and --interleave";
  }
  const bool osu = options.measures_queue() && options.output.format == "osu";
  if (options.output.format != "table" && options.output.format != "json" && !osu) {
    return fmt::format("the --format of {} is table{} or json, not '{}'", test,
                       options.measures_queue() ? ", osu" : "", options.output.format);
  }
  if (!options.measures_links() && !options.measures_reshard() && !options.output.plot.empty()) {
    return test + " has no picture: leave out --plot";
  }
  return "";
}

struct Texts {
  std::string tests;
  std::string first;
  std::string last;
  std::string memory;
  std::string transports;
  std::string chunks = "auto,64K,256K,1M";
  std::string depths = "auto";
  std::string rails;
  std::string pins;
  std::string algorithms;
  std::string patterns;
  std::string computes;
  std::string warmups;
  std::string ratios;
  std::string weights;
  std::string cases;
  std::string strategies;
  std::string slice;
  std::string compare;
  std::vector<std::string> peers;
  std::string bind = "core";
  bool help = false;
  bool version = false;
};

std::string check_words(const char* option, const std::vector<std::string>& words,
                        std::span<const char* const> known) {
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      return fmt::format("--{} is {}, not '{}'", option, fmt::join(known, " or "), word);
    }
  }
  return "";
}

std::string check_queue(const Texts& texts, Options* options) {
  options->queue.patterns = comma_separated(texts.patterns);
  options->queue.computes = comma_separated(texts.computes);
  std::string wrong = check_words("pattern", options->queue.patterns, kPatterns);
  if (wrong.empty()) wrong = check_words("compute", options->queue.computes, kComputes);
  for (const std::string& text : comma_separated(texts.warmups)) {
    options->queue.warmups.push_back(number_within(text, 1, 64));
    if (options->queue.warmups.back() == 0) {
      return fmt::format("--warmups takes numbers from 1 to 64, not '{}'", text);
    }
  }
  for (const std::string& text : comma_separated(texts.ratios)) {
    char* end = nullptr;
    options->queue.ratios.push_back(std::strtod(text.c_str(), &end));
    const double ratio = options->queue.ratios.back();
    if (*end != '\0' || !(ratio >= 0.01 && ratio <= 100)) {
      return fmt::format("--ratios takes numbers from 0.01 to 100, not '{}'", text);
    }
  }
  for (const std::string& text : comma_separated(texts.weights)) {
    options->queue.weights.push_back(static_cast<uint32_t>(number_within(text, 1, 1000)));
    if (options->queue.weights.back() == 0) {
      return fmt::format("--weights takes numbers from 1 to 1000, not '{}'", text);
    }
  }
  const bool any = !options->queue.patterns.empty() || !options->queue.computes.empty() ||
                   !options->queue.warmups.empty() || !options->queue.ratios.empty() ||
                   !options->queue.weights.empty();
  if (wrong.empty() && any && !options->measures_queue()) {
    wrong = "--pattern, --compute, --warmups, --ratios and --weights are for queue";
  }
  const bool shares = std::find(options->queue.patterns.begin(), options->queue.patterns.end(),
                                "share") != options->queue.patterns.end();
  if (wrong.empty() && shares &&
      (options->queue.patterns.size() > 1 || options->output.format == "osu")) {
    wrong = "--pattern share is measured alone, and has no format osu";
  }
  if (wrong.empty() && shares &&
      (options->first_memory != "host" || options->second_memory != "host")) {
    wrong = "--pattern share is measured in host memory only";
  }
  if (wrong.empty() && !options->queue.weights.empty() && !shares) {
    wrong = "--weights is for --pattern share";
  }
  return wrong;
}

std::string check_reshard(const Texts& texts, Options* options) {
  for (const std::string& word : comma_separated(texts.cases)) {
    std::string wrong = tools::parse_case(word, &options->reshard.cases.emplace_back());
    if (!wrong.empty()) return wrong;
  }
  options->reshard.strategies = comma_separated(texts.strategies);
  std::string wrong = check_words("strategies", options->reshard.strategies, tools::kStrategies);
  if (!texts.slice.empty() && !parse_bytes(texts.slice, &options->reshard.slice_bytes)) {
    wrong = fmt::format("--slice takes a size such as 1M, not '{}'", texts.slice);
  }
  const bool any = !options->reshard.cases.empty() || !options->reshard.strategies.empty() ||
                   !texts.slice.empty() || options->reshard.simulate;
  if (wrong.empty() && any && !options->measures_reshard()) {
    wrong = "--cases, --strategies, --slice and --simulate are for reshard";
  }
  return wrong;
}

std::string check_algorithms(const std::string& text, Options* options) {
  options->settings.algorithms = comma_separated(text);
  if (options->settings.algorithms.empty()) return "";
  for (const std::string& test : options->tests) {
    if (find_collective(test) == nullptr) {
      return fmt::format(
          "--algorithm chooses among algorithms of collective operations, and {} is none", test);
    }
  }
  if (!options->comparison.peers.names.empty())
    return "--algorithm measures hetcomm alone: leave out --compare";
  return "";
}

void declare(CLI::App* app, Options* options, Texts* texts) {
  app->set_help_flag();
  app->add_flag("-h,--help", texts->help);
  app->add_flag("-V,--version", texts->version);
  app->add_option("test", texts->tests);
  app->add_option("host", options->meeting.host);
  app->add_flag("--listen", options->meeting.listen);
  app->add_option("-p,--port", options->meeting.port)->check(CLI::Range(1, 65535));
  app->add_option("-b,--begin", texts->first);
  app->add_option("-e,--end", texts->last);
  app->add_option("-f,--factor", options->sizes.factor);
  app->add_option("-n,--iterations", options->iterations)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_option("-w,--warmup", options->warmup)->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app->add_option("--seconds", options->seconds)->check(CLI::Range(0.0001, 3600.0));
  app->add_option("--window", options->window)->check(CLI::Range(1, 16384));
  app->add_option("--ranks", options->ranks)->check(CLI::Range(2, 128));
  app->add_option("--transport", texts->transports);
  app->add_option("--nic", options->nic);
  app->add_option("--chunk", texts->chunks);
  app->add_option("--depth", texts->depths);
  app->add_option("--staging-memory", texts->pins);
  app->add_option("--rails", texts->rails);
  app->add_option("--algorithm", texts->algorithms);
  app->add_option("--pattern", texts->patterns);
  app->add_option("--compute", texts->computes);
  app->add_option("--warmups", texts->warmups);
  app->add_option("--ratios", texts->ratios);
  app->add_option("--weights", texts->weights);
  app->add_option("--cases", texts->cases);
  app->add_option("--strategies", texts->strategies);
  app->add_option("--slice", texts->slice);
  app->add_flag("--simulate", options->reshard.simulate);
  app->add_flag("--interleave", options->settings.interleave);
  app->add_option("--memory", texts->memory);
  app->add_option("--progress", options->progress);
  app->add_flag("--stream", options->stream);
  app->add_option("--bind", texts->bind);
  app->add_flag("--check", options->check);
  app->add_option("--compare", texts->compare);
  app->add_option("--peer", texts->peers);
  app->add_option("--peers", options->comparison.peers.folder);
  app->add_option("--rounds", options->comparison.rounds)
      ->check(CLI::Range(1, 1000))
      ->each([options](const std::string&) { options->comparison.rounds_given = true; });
  app->add_option("--format", options->output.format);
  app->add_option("-o,--output", options->output.file);
  app->add_option("--plot", options->output.plot);
  app->add_option("--timeout", options->meeting.silence_seconds)->check(CLI::Range(1.0, 86400.0));
}

// Names the first argument that is no known option.
std::string unknown_option(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return "unknown option";
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  if (!rest.front().starts_with('-')) {
    return fmt::format(
        "'{}' is one word too many: the tests are one list with commas, and a host "
        "may follow",
        rest.front());
  }
  return fmt::format("unknown option '{}'{}", rest.front(), did_you_mean(rest.front(), known));
}

std::string check_all(const Texts& texts, Options* options) {
  std::string wrong = check_tests(texts.tests, options);
  if (wrong.empty()) wrong = check_memory(texts.memory, options);
  if (wrong.empty()) wrong = check_compare(texts.compare, texts.peers, options);
  if (wrong.empty()) wrong = check_stream(options);
  if (wrong.empty()) wrong = check_sizes(texts.first, texts.last, options);
  if (wrong.empty()) wrong = check_places(options);
  if (wrong.empty() && texts.bind != "core" && texts.bind != "none") {
    wrong = fmt::format("--bind is core or none, not '{}'", texts.bind);
  }
  if (wrong.empty()) wrong = check_transports(texts.transports, options);
  // The ranks and the peers inherit the variable, wherever they are started.
  if (!options->nic.empty()) setenv("HETCOMM_RDMA_NIC", options->nic.c_str(), 1);
  if (wrong.empty()) wrong = check_staging(texts.chunks, texts.depths, options);
  if (wrong.empty()) wrong = check_algorithms(texts.algorithms, options);
  if (wrong.empty()) wrong = check_pins(texts.pins, options);
  if (wrong.empty()) wrong = check_rails(texts.rails, options);
  if (wrong.empty()) wrong = check_queue(texts, options);
  if (wrong.empty()) wrong = check_reshard(texts, options);
  if (wrong.empty()) wrong = check_job_tests(*options);
  options->bind = texts.bind == "core";
  return wrong;
}

Parsed complain(const std::string& wrong) {
  std::fprintf(stderr, "hetcomm_bench: %s\nTry 'hetcomm_bench --help'.\n", wrong.c_str());
  return Parsed::kWrong;
}

// --- works
// ---------------------------------------------------------------------------------------------

Work make_work(const Options& options, const TestDefaults& defaults) {
  const bool compared = !options.comparison.peers.names.empty();
  Work work;
  work.workload.test = defaults.test;
  work.workload.iterations = options.iterations;
  work.workload.warmup = options.warmup;
  work.workload.seconds = options.seconds > 0 ? options.seconds
                          : compared          ? kSecondsInRound
                                              : kSecondsAlone;
  work.workload.check = options.check;
  uint64_t first = options.sizes.first_given ? options.sizes.first_bytes : defaults.first_bytes;
  uint64_t last = options.sizes.last_given ? options.sizes.last_bytes
                  : compared               ? defaults.last_bytes_compared
                                           : defaults.last_bytes;
  // Only one end was given: the default of the other may be beyond it.
  if (first > last)
    (options.sizes.first_given ? last : first) = options.sizes.first_given ? first : last;
  const double factor = options.sizes.factor > 0 ? options.sizes.factor
                        : compared               ? defaults.factor_compared
                                                 : defaults.factor;
  const int window = options.window > 0 ? options.window : defaults.window;
  const bool windowed = !smaller_is_better(work.workload.test);
  if (defaults.first_bytes == defaults.last_bytes) first = last = defaults.first_bytes;
  work.workload.points = make_points(first, last, factor, windowed ? window : 1, kMaxWindowBytes);
  work.first_memory = options.first_memory;
  work.second_memory = options.second_memory;
  if (is_staging(work.workload.test) && work.first_memory == "host" &&
      work.second_memory == "host") {
    work.first_memory = work.second_memory = "sim-handle";
  }
  work.progress = options.progress;
  work.stream = options.stream;
  work.ranks = options.ranks > 0 ? options.ranks : defaults.ranks;
  // Two threads of the receiver are busy at the same time, so they must not be bound to one core.
  work.bind = options.bind;
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
  if (work.workload.test != "overlap" || !options.progress.empty()) {
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

bool parse_bytes(const std::string& text, uint64_t* bytes) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return false;
  char* end = nullptr;
  const uint64_t number = std::strtoull(text.c_str(), &end, 10);
  std::string unit = end;
  for (char& letter : unit)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  uint64_t scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  if (unit == "K" || unit == "KB" || unit == "KIB") scale = 1024;
  if (unit == "M" || unit == "MB" || unit == "MIB") scale = kMi;
  if (unit == "G" || unit == "GB" || unit == "GIB") scale = 1024 * kMi;
  if (scale == 0 || number > UINT64_MAX / scale) return false;
  *bytes = number * scale;
  return true;
}

Parsed parse_options(int argc, char** argv, Options* options) {
  CLI::App app;
  Texts texts;
  declare(&app, options, &texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    return complain(unknown_option(app));
  } catch (const CLI::ParseError& error) {
    return complain(error.what());
  }
  options->meeting.silence_given = app.count("--timeout") > 0;
  if (texts.help) {
    std::fputs(help_text().c_str(), stdout);
    return Parsed::kDone;
  }
  if (texts.version) {
    std::printf("hetcomm_bench %s (%s)\n", hetcomm_version_string(), hetcomm_build_string());
    return Parsed::kDone;
  }
  const std::string wrong = check_all(texts, options);
  return wrong.empty() ? Parsed::kRun : complain(wrong);
}

std::vector<Work> make_works(const Options& options, bool elsewhere) {
  std::vector<std::string> transports = options.transports;
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
    const int rounds = options.settings.interleave ? options.comparison.rounds : 1;
    for (int round = 0; round < rounds; ++round) {
      for (Work& work : variants) work.round = round;
      works.insert(works.end(), variants.begin(), variants.end());
      std::rotate(variants.begin(), variants.begin() + 1, variants.end());
    }
  }
  return works;
}

}  // namespace bench
