// hetcomm_bench affinity: measures the gain when each device uses the NIC next to it. The devices
// of one host send to those of another, all at the same time: each over its near NIC, each over a
// far one, and all over one NIC of their host. (H2, table 3, compares the first with the second.)
//
// Each rank represents one device. For each of the three ways it has a context and a communicator,
// bound by HETCOMM_NIC to the NICs of that way. The ways are measured in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/session.h"

namespace bench {

struct AffinityOptions {
  double seconds = 0.5;  // of one round of transfers
  int rounds = 5;        // of each way; results are medians
};

// The rates of one device by the three ways: near, far, all on one.
struct AffinityRow {
  static constexpr int kWays = 3;
  int from = 0;  // ranks
  int to = 0;
  std::string device;
  std::string nics[kWays];
  std::string distances[kWays];
  double bytes_per_s[kWays] = {};
};

struct AffinityResult {
  std::vector<AffinityRow> rows;   // set on rank 0; empty on other ranks
  std::vector<std::string> notes;  // human-readable
};

// Runs one rank of a job that |launcher| started. |progress| gets lines at rank 0. Ends the process
// on any failure.
AffinityResult measure_affinity(Launcher launcher, const Work& work, const AffinityOptions& options,
                                const std::function<void(const std::string&)>& progress);

// A table with the gain of near over far, and of near over one NIC for all devices.
std::string affinity_table(const AffinityResult& result);
std::string affinity_json(const AffinityResult& result);

}  // namespace bench
