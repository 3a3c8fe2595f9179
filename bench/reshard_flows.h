// Simulates the duration of a plan of resharding on a model of links. Every message is a flow.
// Flows that share a link share its rate max-min fairly. A slice continues at a rank when all of it
// has arrived there. The simulation does not use hetcomm's forecasts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/reshard_cases.h"

namespace bench {

// Two clusters with the same number of ranks.
struct Scenario {
  std::string name;
  uint64_t bytes = 0;             // of the tensor
  int ranks = 0;                  // of each cluster
  int ranks_per_host = 1;         // they share a NIC
  double nic_bytes_per_s = 0;     // each direction
  double inside_bytes_per_s = 0;  // of a host's memory
  double trunk_bytes_per_s = 0;   // between the clusters, each direction
  double latency_us = 0;          // in a cluster
  double trunk_latency_us = 0;
};

// Includes slow and wide trunks, hosts of several ranks, long latencies and short tensors.
std::vector<Scenario> scenarios(int ranks, uint64_t bytes);

// The plan as JSON, or "" with the reason in |*refused|. Throws std::runtime_error.
std::string draft(const Scenario& scenario, const LayoutHandle& source,
                  const LayoutHandle& destination, const std::string& strategy,
                  std::string* refused);

// Microseconds until the last byte of |plan|, in the format of draft(), has arrived.
double simulate(const Scenario& scenario, const std::string& plan);

}  // namespace bench
