// A simulation of what a plan of resharding takes on a model of links: every message is a flow,
// flows that share a link share its rate max-min fairly, and a slice goes on at a rank when all of
// it has arrived there. It knows nothing of how hetcomm forecasts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/reshard_cases.h"

namespace bench {

// Two clusters with as many ranks.
struct Scenario {
  std::string name;
  uint64_t bytes = 0;             // of the tensor
  int ranks = 0;                  // of each cluster
  int ranks_per_host = 1;         // which share a NIC
  double nic_bytes_per_s = 0;     // each direction
  double inside_bytes_per_s = 0;  // of a host's memory
  double trunk_bytes_per_s = 0;   // between the clusters, each direction
  double latency_us = 0;          // in a cluster
  double trunk_latency_us = 0;
};

// Slow and wide trunks, hosts of several ranks, long ways and short tensors.
std::vector<Scenario> scenarios(int ranks, uint64_t bytes);

// The plan as JSON; "" where |*refused| says why there is none. Throws std::runtime_error.
std::string draft(const Scenario& scenario, const LayoutHandle& source,
                  const LayoutHandle& destination, const std::string& strategy,
                  std::string* refused);

// Microseconds until the last byte of |plan|, as draft() gives it, has arrived.
double simulate(const Scenario& scenario, const std::string& plan);

}  // namespace bench
