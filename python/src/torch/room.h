// Room at the end of a list that has to be there before something else is done.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hetcomm::torch_backend {

// Makes room for one more element of |list|, a vector. Its cost does not grow with their number:
// std::vector::reserve() alone moves all of them for each one that is added.
template <typename List>
void make_room(List& list) {
  constexpr size_t kFirst = 8;
  if (list.size() == list.capacity()) list.reserve(std::max(kFirst, 2 * list.capacity()));
}

}  // namespace hetcomm::torch_backend
