// A Route is the way of a transfer between two ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace hetcomm::pipeline {

// One step of a transfer. It occupies all its resources at the same time.
struct RouteHop {
  uint64_t busy_ns = 0;
  uint64_t latency_ns = 0;          // from the end of the hop until the data is there
  uint32_t slices = 0;              // in which data comes to the hop; 0: those of the route
  std::vector<uint32_t> resources;  // all different
};

// A route without hops takes no time.
struct Route {
  std::vector<RouteHop> hops;
  // The number of parts, of the same size, in which the data goes. A hop starts when the first part
  // has come, or, if it is faster than the one before it, as late as costs no time. It ends no
  // earlier than one part's time after the last part has come.
  uint32_t slices = 1;
};

}  // namespace hetcomm::pipeline
