// Reserves space at the end of a vector in advance.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hetcomm {

// Reserves space for |more| elements at the end of the vector |list|. The capacity grows
// geometrically, so the amortized cost of one element is constant. Calling std::vector::reserve()
// for each new element would move all elements every time.
template <typename List>
void make_room(List& list, size_t more = 1) {
  if (list.capacity() - list.size() >= more) return;
  list.reserve(std::max(list.size() + more, 2 * list.capacity()));
}

}  // namespace hetcomm
