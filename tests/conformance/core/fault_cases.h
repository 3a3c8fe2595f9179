// Faults of the transports under core, for suites that run over all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {

struct FaultCase {
  std::string name;
  bool shm = false;
  FaultPlan plan;
  std::string settings = {};
  bool unreachable_first = false;
  bool shm_beside = false;   // adds shm, which carries other sizes
  uint32_t shm_later = 0;    // adds a lossless shm, whose first connects fail this often
  size_t odd_instances = 0;  // number of instances on odd ranks, where it differs
};
inline void PrintTo(const FaultCase& test_case, std::ostream* out) { *out << test_case.name; }

inline FaultPlan slow_plan() {
  FaultPlan slow;
  slow.refuse = 0.3;
  slow.max_delay = 8;
  return slow;
}

inline std::vector<FaultCase> fault_cases() {
  FaultPlan breaking;
  breaking.fail_rail = 0.02;
  FaultPlan losing = breaking;
  losing.lose_reported_put = true;
  FaultPlan all = losing;
  all.refuse = 0.1;
  all.max_delay = 5;
  FaultPlan tiny = all;
  tiny.max_payload_bytes = 2048;
  tiny.eager_limit_bytes = 5000;
  FaultPlan two = all;
  two.instances = 2;
  FaultPlan four = all;
  four.instances = 4;
  FaultPlan three_tiny = tiny;
  three_tiny.instances = 3;
  const FaultPlan slow = slow_plan();
  FaultPlan no_get = all;
  no_get.no_get = true;
  FaultPlan read_fails = all;
  read_fails.fail_get_now = 0.05;
  return {
      {"tcp_breaking", false, breaking},
      {"tcp_losing", false, losing},
      {"tcp_all", false, all},
      {"tcp_all_thread", false, all, "PROGRESS=thread;"},
      {"tcp_tiny", false, tiny},
      {"tcp_two_rails", false, two, "COOL_DOWN=5ms;"},
      {"tcp_two_rails_thread", false, two, "COOL_DOWN=5ms;PROGRESS=thread;"},
      {"tcp_three_rails_tiny", false, three_tiny, "COOL_DOWN=5ms;CREDIT_BYTES=16K;"},
      {"tcp_one_to_three", false, all, "COOL_DOWN=5ms;", false, false, 0, 3},
      {"tcp_four_to_two", false, four, "COOL_DOWN=5ms;PROGRESS=thread;", false, false, 0, 2},
      {"tcp_slow", false, slow},
      {"tcp_second", false, all, "", true},
      {"tcp_little_credit", false, all, "CREDIT_BYTES=16K;"},
      {"tcp_tiny_and_shm", false, tiny, "COOL_DOWN=5ms;", false, true},
      {"tcp_then_shm", false, all, "COOL_DOWN=5ms;", false, false, 6},
      {"tcp_then_shm_thread", false, slow, "COOL_DOWN=5ms;PROGRESS=thread;", false, false, 3},
      {"tcp_then_smaller_shm", false, all, "COOL_DOWN=5ms;SHM_CHUNK=4K;", false, false, 6},
      {"shm_breaking", true, breaking},
      {"shm_read_all", true, all, "SHM_BULK=read;"},
      {"shm_read_fails", true, read_fails, "SHM_BULK=read;"},
      {"shm_no_get", true, no_get, "SHM_BULK=read;"},
      {"shm_tiny", true, tiny},
      {"shm_slow", true, slow},
  };
}

class CoreFaults : public ::testing::TestWithParam<FaultCase> {
 protected:
  static Factories factories(uint64_t seed) {
    FaultPlan plan = GetParam().plan;
    plan.seed = seed;
    if (GetParam().odd_instances > 0) {
      // The interfaces of one rank are as fast in total as those of another.
      if (seed % 2 == 1) plan.instances = GetParam().odd_instances;
      plan.bytes_per_s = 12'000'000'000 / plan.instances;
    }
    // A pair is abandoned when connections break for 10 s before any data passes over them. If
    // hundreds of messages have to be sent again, connections break that early several times in a
    // row.
    plan.max_rail_failures = 12 / static_cast<uint32_t>(plan.instances);
    Factories result;
    if (GetParam().unreachable_first) {
      FaultPlan unreachable;
      unreachable.connect_failures = 100;
      result.push_back(std::make_unique<FaultyFactory>(make_shm_factory(), unreachable));
    }
    result.push_back(std::make_unique<FaultyFactory>(
        GetParam().shm ? make_shm_factory() : make_tcp_factory(), plan));
    if (GetParam().shm_later > 0) {
      FaultPlan later = slow_plan();
      later.seed = seed;
      later.connect_failures = GetParam().shm_later;
      result.push_back(std::make_unique<FaultyFactory>(make_shm_factory(), later));
    }
    if (GetParam().shm_beside) {
      plan.max_payload_bytes.reset();
      plan.eager_limit_bytes.reset();
      result.push_back(std::make_unique<FaultyFactory>(make_shm_factory(), plan));
    }
    return result;
  }
};

inline uint64_t any_size(Random& random) {
  switch (random.below(5)) {
    case 0:
      return random.below(64);
    case 1:
      return random.below(5000);
    case 2:
      return random.below(140'000);
    case 3:
      return random.below(600'000);
    default:
      return (uint64_t{1} << random.below(19)) + random.below(3) - 1;
  }
}

}  // namespace hetcomm::test
