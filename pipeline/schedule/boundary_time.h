// The time that the data of one micro-batch takes to cross a boundary between two stages in one
// direction.
#pragma once

#include <cstdint>

namespace hetcomm::pipeline {

struct BoundaryTime {
  uint64_t busy_ns = 0;     // time for which the transfer occupies the link
  uint64_t latency_ns = 0;  // time from the end of |busy_ns| until the data has arrived
  bool operator==(const BoundaryTime&) const = default;
};

}  // namespace hetcomm::pipeline
