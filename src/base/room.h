// Reserves room at the end of a list in advance.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hetcomm {

// Makes room for |more| elements at the end of the vector |list|. Grows the list geometrically, so
// that the amortized cost of one element is constant. std::vector::reserve() alone would move all
// elements for each new one.
template <typename List>
void make_room(List& list, size_t more = 1) {
  if (list.capacity() - list.size() >= more) return;
  list.reserve(std::max(list.size() + more, 2 * list.capacity()));
}

}  // namespace hetcomm
