// RailEnds identifies the transport of this rank and the transport of the peer that a connection
// joins. RailMasks identifies the transports of both ranks that certain data uses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm {

struct RailEnds {
  // Value of |peer| until the peer's kOpen reports the number of its transport.
  static constexpr size_t kUnknown = SIZE_MAX;

  size_t own = 0;          // index among the transports of this rank's job
  size_t peer = kUnknown;  // index among the peer's transports, in the order of its offers
  bool operator==(const RailEnds&) const = default;
};

// Each bit stands for the transport with that number. Transports with numbers of 64 or more have no
// bit, and belong to every mask.
struct RailMasks {
  static constexpr uint64_t kAll = ~uint64_t{0};
  static bool has(uint64_t mask, size_t transport) {
    return transport >= 64 || (mask >> transport & 1) != 0;
  }

  uint64_t own = kAll;
  uint64_t peer = kAll;

  bool admit(const RailEnds& ends) const { return has(own, ends.own) && has(peer, ends.peer); }
  // Returns whether these masks include every transport of |other|.
  bool cover(const RailMasks& other) const {
    return (other.own & ~own) == 0 && (other.peer & ~peer) == 0;
  }
  RailMasks operator&(const RailMasks& other) const { return {own & other.own, peer & other.peer}; }
  bool operator==(const RailMasks&) const = default;
};

}  // namespace hetcomm
