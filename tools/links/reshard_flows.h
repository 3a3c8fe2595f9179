// Simulates the duration of a resharding plan on a link model. Every message is a flow. Flows that
// share a link share its rate max-min fairly. A rank forwards a slice once all of it has arrived at
// the rank. The simulation does not use hetcomm's forecasts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/reshard_cases.h"

namespace tools {

// Describes two clusters with the same number of ranks.
struct Scenario {
  std::string name;
  uint64_t bytes = 0;             // tensor size
  int ranks = 0;                  // ranks in each cluster
  int ranks_per_host = 1;         // ranks that share a NIC
  double nic_bytes_per_s = 0;     // NIC rate in each direction
  double inside_bytes_per_s = 0;  // rate of a host's memory
  double trunk_bytes_per_s = 0;   // rate between the clusters, each direction
  double latency_us = 0;          // latency within a cluster
  double trunk_latency_us = 0;
};

// Returns scenarios with slow and wide trunks, hosts with several ranks, long latencies and short
// tensors.
std::vector<Scenario> scenarios(int ranks, uint64_t bytes);

// Returns the plan as JSON. If the library does not support the case, returns "" and sets
// |*refused| to the reason. Throws std::runtime_error on any other failure.
std::string draft(const Scenario& scenario, const LayoutHandle& source,
                  const LayoutHandle& destination, const std::string& strategy,
                  std::string* refused);

// Returns the microseconds until the last byte of |plan|, in the format of draft(), has arrived.
double simulate(const Scenario& scenario, const std::string& plan);

}  // namespace tools
