// A Route describes how the data of a transfer moves from one rank to another.
#pragma once

#include <cstdint>
#include <vector>

namespace hetcomm::pipeline {

// One step of a transfer. It occupies all its resources at the same time.
struct RouteHop {
  uint64_t busy_ns = 0;
  uint64_t latency_ns = 0;          // from the end of the hop until the data has arrived
  uint32_t slices = 0;              // slices in which data reaches the hop; 0: as in the route
  std::vector<uint32_t> resources;  // all distinct
};

// The hops of a transfer. A route without hops takes no time.
struct Route {
  std::vector<RouteHop> hops;
  // The number of parts of equal size in which the data moves. A hop starts when the first part has
  // arrived. If it is faster than the hop before it, it starts as late as possible without delaying
  // the end. It ends no earlier than one part's time after the last part has arrived.
  uint32_t slices = 1;
};

}  // namespace hetcomm::pipeline
