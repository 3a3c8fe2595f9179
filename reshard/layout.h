// A Layout defines which rank holds which boxes of a tensor, and where they are in the rank's
// memory.
//
// Several ranks can hold the same elements. Each set of boxes that holds the tensor once is a copy
// (replica), and copies may be cut in different ways. A tensor can be a sum that has not been
// formed yet. It then has several terms (partial sums), each laid out like a separate tensor.
//
// check() validates a layout. All other code in this folder expects layouts that have passed
// check().
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
  // The shape including the padding that boxes may extend into. Elements outside |shape| belong to
  // no rank, and are neither read nor written. Empty: equal to |shape|.
  std::vector<uint64_t> padded_shape;
  uint32_t terms = 1;    // the tensor is the sum of this many terms
  uint32_t divisor = 1;  // the sum of the terms is divided by this; 1 if there is one term
  PartList parts;
  bool operator==(const Layout&) const = default;

  const std::vector<uint64_t>& outer_shape() const {
    return padded_shape.empty() ? shape : padded_shape;
  }
  Box whole() const { return whole_of(shape); }
};

// Limit on the number of parts, far above what jobs use. It bounds the cost of hostile input.
inline constexpr size_t kMaxParts = size_t{1} << 22;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 48;

// Checks |layout|. Fails with INVALID_ARGUMENT for a hole, an overlap, a box outside of the tensor,
// a rank that holds an element twice, or strides that let elements overlap. The error text names
// the first offending rank and box. The first copy of every term must be complete. Other copies may
// hold only some elements. A tensor with a dimension of 0 needs no boxes, and can have only empty
// ones.
Status check(const Layout& layout);

// Returns the number of copies of |layout|, at least 1. Copies after the first may hold only some
// elements.
uint64_t count_copies(const Layout& layout);

// Returns the box of |part| without the padding. The result may be empty.
Box clip(const Layout& layout, const Part& part);

// Returns the number of elements from the beginning of |rank|'s memory up to and including the last
// element that |rank| holds.
uint64_t elements_needed(const Layout& layout, int rank);

// Returns a string such as "rank 0, box [0:4]".
std::string name_of(const Part& part);

// Returns a table for display to users, with one line for each part, in order.
std::string to_table(const Layout& layout);

}  // namespace hetcomm::reshard
