// hetcomm_bench affinity: measures the benefit of using the NIC next to each device. The devices of
// one host send to the devices of another concurrently: each over its near NIC, each over a far
// one, and all over one NIC of their host. (H2, table 3, compares near with far NICs.)
//
// Each rank represents one device. Each rank has a context and a communicator for each of the three
// configurations, bound by HETCOMM_NIC to the NICs of the configuration. The configurations are
// measured in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/common/job.h"

namespace tools {

struct AffinityOptions {
  std::string progress;            // "caller", "thread"; "": set by HETCOMM_PROGRESS
  std::string transport = "auto";  // "auto": every usable transport
  double seconds = 0.5;            // duration of one round of transfers
  int rounds = 5;                  // rounds per configuration; results are medians
};

// The rates of one device in the three configurations: near, far, all on one NIC.
struct AffinityRow {
  static constexpr int kWays = 3;
  int from = 0;  // sending rank
  int to = 0;    // receiving rank
  std::string device;
  std::string nics[kWays];
  std::string distances[kWays];
  double bytes_per_s[kWays] = {};
};

struct AffinityResult {
  std::vector<AffinityRow> rows;   // set on rank 0; empty on other ranks
  std::vector<std::string> notes;  // human-readable
};

// Runs one rank of a job that |launcher| started. Calls |progress| with lines of progress on rank
// 0. Exits the process on any failure.
AffinityResult measure_affinity(Launcher launcher, const AffinityOptions& options,
                                const std::function<void(const std::string&)>& progress);

// Returns a table with the gain of near over far, and of near over one NIC for all devices.
std::string affinity_table(const AffinityResult& result);
std::string affinity_json(const AffinityResult& result);

}  // namespace tools
