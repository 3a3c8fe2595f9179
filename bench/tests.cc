#include "bench/tests.h"

#include <algorithm>
#include <iterator>

#include "bench/work.h"

namespace bench {
namespace {

constexpr const char* kTests[] = {
    "latency",       "bandwidth",     "bibandwidth",          "msgrate",
    "overlap",       "put_latency",   "put_bandwidth",        "put_notify_latency",
    "get_latency",   "get_bandwidth", "put_notify_bandwidth", "fetch_add_latency",
    "fetch_add_rate"};
// Tests that "all" excludes. Each is requested by its name, collective ones also as "collectives".
constexpr const char* kPointer = "pointer_latency";
constexpr const char* kCollectiveTests[] = {"allreduce", "reduce_scatter", "allgather", "alltoall",
                                            "broadcast", "reduce",         "barrier"};
constexpr const char* kJobTests[] = {"links", "affinity", "queue", "pipeline", "reshard"};

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

template <size_t kCount>
bool is_one_of(const std::string& word, const char* const (&words)[kCount]) {
  return std::any_of(words, words + kCount, [&](const char* known) { return word == known; });
}

}  // namespace

const TestDefaults& defaults_of(const std::string& test) {
  for (const TestDefaults& defaults : kDefaults) {
    if (test == defaults.test) return defaults;
  }
  return kDefaults[0];
}

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

bool measures_job(const std::string& test) { return is_one_of(test, kJobTests); }

std::vector<std::string> stream_tests() {
  return {"latency", "bandwidth", "bibandwidth", "msgrate", kPost};
}

}  // namespace bench
