// A Box is a rectangular region of an N-dimensional tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hetcomm::reshard {

inline constexpr size_t kMaxDimensions = 8;

// One value for each dimension.
using Numbers = std::array<uint64_t, kMaxDimensions>;

// A Box holds the elements whose index in every dimension i is in [begin[i], end[i]). Entries
// beyond |dimensions| are 0.
struct Box {
  size_t dimensions = 0;
  Numbers begin{};
  Numbers end{};

  uint64_t extent(size_t dimension) const { return end[dimension] - begin[dimension]; }
  bool is_empty() const;
  // Returns the number of elements. It fits in 64 bits, since check() limits the size of layouts.
  uint64_t elements() const;
  bool contains(const Box& other) const;
  bool overlaps(const Box& other) const;
  bool operator==(const Box&) const = default;
};

// Returns the box of a whole tensor with this shape.
Box whole_of(const std::vector<uint64_t>& shape);

// Returns the intersection of two boxes with the same number of dimensions. It is empty if they do
// not overlap.
Box intersection(const Box& one, const Box& other);

// Returns the indices of two of |boxes| that overlap, the smaller index first. Returns nullopt if
// no two boxes overlap.
std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<Box>& boxes);

// Returns a string such as "[0:4, 8:16]", in the style of Python slices.
std::string to_text(const Box& box);

}  // namespace hetcomm::reshard
