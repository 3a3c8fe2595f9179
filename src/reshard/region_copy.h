// Copies, converts and adds the elements of regions on the processor. The functions keep no state.
#pragma once

#include <cstddef>

#include "reshard/element_types.h"
#include "src/reshard/region.h"

namespace hetcomm::reshard {

// One side of a copy: a region in the memory that begins at |base|.
struct CopySide {
  std::byte* base = nullptr;
  const Region* region = nullptr;
  ElementType type{};
};

// Copies the elements of |from| to |to|, which has the same number of elements. Converts them if
// the types differ.
void copy(const CopySide& from, const CopySide& to, Overflow overflow = Overflow::kSaturates);
// Adds the elements of |from| to those of |to|. The type of |to| is the type of |from|, or can
// represent all its values.
void add(const CopySide& from, const CopySide& to);

}  // namespace hetcomm::reshard
