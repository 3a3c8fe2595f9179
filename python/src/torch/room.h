// Reserves space at the end of a list before an operation that must not fail afterwards.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hetcomm::torch_backend {

// Reserves space for one more element of |list|, a vector. Its cost does not grow with the number
// of elements: std::vector::reserve() alone would move all of them for each new element.
template <typename List>
void make_room(List& list) {
  constexpr size_t kFirst = 8;
  if (list.size() == list.capacity()) list.reserve(std::max(kFirst, 2 * list.capacity()));
}

}  // namespace hetcomm::torch_backend
