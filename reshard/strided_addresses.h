// Determines whether elements at regular distances in memory share an address.
//
// Elements share an address if a sum of steps, each taken a bounded number of times, equals a given
// distance. Steps that follow each other without a gap are merged into one. The remaining steps are
// searched, longest step first. The search skips a distance that the later steps cannot reach, or
// that their greatest common divisor does not divide. Rows and planes need no search. Long searches
// are cut off after a number of tries. The layouts of models do not need such searches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reshard/box.h"

namespace hetcomm::reshard {

// Element (i, j, ...) is at offset + i * strides[0] + j * strides[1] + ... All addresses are below
// 2^56.
struct StridedAddresses {
  // A box has up to kMaxDimensions extents, and the bytes of an element add one more.
  static constexpr size_t kMaxExtents = kMaxDimensions + 1;
  using Sizes = std::array<uint64_t, kMaxExtents>;
  uint64_t offset = 0;
  size_t dimensions = 0;
  Sizes extents{};  // at least 1
  Sizes strides{};

  // Returns one past the last address.
  uint64_t end() const {
    uint64_t last = offset;
    for (size_t d = 0; d < dimensions; ++d) last += (extents[d] - 1) * strides[d];
    return last + 1;
  }
};

// kUnknown means that the search was cut off.
enum class Meeting : uint8_t { kApart, kMeet, kUnknown };

// Returns whether an element of |one| and an element of |other| share an address, with |other|
// shifted by |distance|.
Meeting find_meeting(const StridedAddresses& one, const StridedAddresses& other,
                     int64_t distance = 0);

// Returns whether two elements of |addresses| share an address.
Meeting find_repeat(const StridedAddresses& addresses);

}  // namespace hetcomm::reshard
