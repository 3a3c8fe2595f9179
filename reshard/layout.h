// A Layout defines which rank holds which boxes of a tensor, and where they are in its memory.
//
// Several ranks may hold the same elements: each set of boxes that holds the tensor once is a copy
// (replica), and copies may be cut in different ways. A tensor may be a sum that has not been
// formed yet. If so, it has several terms (partial sums), each laid out as a separate tensor.
//
// A Layout is plain data. check() validates it. All other code in this folder expects layouts that
// have passed check().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/box.h"
#include "reshard/part_list.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// Returns the strides of a box that is stored without gaps, last dimension fastest (C order).
Numbers dense_strides(const Box& box);

struct Layout {
  std::vector<uint64_t> shape;  // elements in each dimension
  // The shape with the padding that boxes may reach into. Elements outside |shape| belong to no
  // rank, and are neither read nor written. Empty: equal to |shape|.
  std::vector<uint64_t> padded_shape;
  uint32_t terms = 1;    // the tensor is the sum of this many terms
  uint32_t divisor = 1;  // divisor of the sum of the terms; 1 if there is one term
  PartList parts;
  bool operator==(const Layout&) const = default;

  const std::vector<uint64_t>& outer_shape() const {
    return padded_shape.empty() ? shape : padded_shape;
  }
  Box whole() const { return whole_of(shape); }
};

// Limit on the number of parts; no job needs more. It bounds the cost of hostile input.
inline constexpr size_t kMaxParts = size_t{1} << 22;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 48;

// Checks |layout|. Fails with INVALID_ARGUMENT for a hole, an overlap, a box outside of the tensor,
// a rank that holds an element twice, or strides that let elements overlap. The text names the
// first offending rank and box. The first copy of every term must be complete; other copies may
// hold only some elements. A tensor with a dimension of 0 needs no boxes, and has only empty ones.
Status check(const Layout& layout);

// Returns the number of copies of |layout|, at least 1. Further copies may hold only some elements.
uint64_t count_copies(const Layout& layout);

// Returns the box of |part| without the padding. May be empty.
Box clip(const Layout& layout, const Part& part);

// Returns the number of elements from the beginning of |rank|'s memory to the last one that it
// holds.
uint64_t elements_needed(const Layout& layout, int rank);

// Returns a text like "rank 0, box [0:4]".
std::string name_of(const Part& part);

// Returns a table for users to read, with one line for each part, in order.
std::string to_table(const Layout& layout);

}  // namespace hetcomm::reshard
