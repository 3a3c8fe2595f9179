// Places: elements at regular distances in memory, and whether some of them lie at one place.
//
// Elements lie at one place where a sum of steps, each made a bounded number of times, comes to a
// given distance. Steps that follow each other without a gap are one step. What is left is
// searched, longest step first; distances that cannot be reached, and those that the other steps do
// not divide, are passed over. Rows and planes leave nothing to search. A bound ends searches that
// no memory of a model needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reshard/box.h"

namespace hetcomm::reshard {

// Element (i, j, ...) lies at offset + i * strides[0] + j * strides[1] + ... All of them lie within
// 2^56.
struct Places {
  // Those of a box, and the bytes of an element.
  static constexpr size_t kMaxExtents = kMaxDimensions + 1;
  using Sizes = std::array<uint64_t, kMaxExtents>;
  uint64_t offset = 0;
  size_t dimensions = 0;
  Sizes extents{};  // at least 1
  Sizes strides{};

  // The place behind the last one.
  uint64_t end() const {
    uint64_t last = offset;
    for (size_t d = 0; d < dimensions; ++d) last += (extents[d] - 1) * strides[d];
    return last + 1;
  }
};

// kUnknown: the search was ended.
enum class Meeting : uint8_t { kApart, kMeet, kUnknown };

// Whether some element of |one| and some of |other| lie at one place, where those of |other| lie
// |distance| further than they say.
Meeting find_meeting(const Places& one, const Places& other, int64_t distance = 0);

// Whether two elements of |places| lie at one place.
Meeting find_repeat(const Places& places);

}  // namespace hetcomm::reshard
