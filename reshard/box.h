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

// One number for each dimension.
using Numbers = std::array<uint64_t, kMaxDimensions>;

// The elements whose index i lies in [begin[i], end[i]) in every dimension. Plain data; what lies
// beyond |dimensions| is 0.
struct Box {
  size_t dimensions = 0;
  Numbers begin{};
  Numbers end{};

  uint64_t extent(size_t dimension) const { return end[dimension] - begin[dimension]; }
  bool is_empty() const;
  // At most 2^64 - 1: a layout that was checked has no larger box.
  uint64_t elements() const;
  bool contains(const Box& other) const;
  bool overlaps(const Box& other) const;
  bool operator==(const Box&) const = default;
};

// The whole of a tensor with this shape.
Box whole_of(const std::vector<uint64_t>& shape);

// The common part of both, which have the same dimensions. It is empty where they do not overlap.
Box intersection(const Box& one, const Box& other);

// Two of |boxes| that overlap, by their indices, the smaller one first.
std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<Box>& boxes);

// "[0:4, 8:16]", as Python writes slices.
std::string to_text(const Box& box);

}  // namespace hetcomm::reshard
