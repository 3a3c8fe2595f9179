// RailEnds: which transport of this rank, and which of the peer's, a connection joins.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm {

struct RailEnds {
  // In place of the peer's number, until its kOpen tells it.
  static constexpr size_t kUnknown = SIZE_MAX;

  size_t own = 0;          // among the transports of this rank's job
  size_t peer = kUnknown;  // among the peer's, in the order of its offers
  bool operator==(const RailEnds&) const = default;
};

}  // namespace hetcomm
