// Reserves space in a list before an operation after which appending must not fail.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hetcomm::torch_backend {

// Reserves space for one more element of the vector |list|. Doubles the capacity, because
// std::vector::reserve() alone would move all elements each time.
template <typename List>
void make_room(List& list) {
  constexpr size_t kFirst = 8;
  if (list.size() == list.capacity()) list.reserve(std::max(kFirst, 2 * list.capacity()));
}

}  // namespace hetcomm::torch_backend
