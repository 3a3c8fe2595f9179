// Room at the end of a list that has to be there before something else is done.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hetcomm {

// Makes room for |more| elements behind those of |list|, a vector. What one element costs does not
// grow with their number: std::vector::reserve() alone moves all of them for each one that is
// added.
template <typename List>
void make_room(List& list, size_t more = 1) {
  if (list.capacity() - list.size() >= more) return;
  list.reserve(std::max(list.size() + more, 2 * list.capacity()));
}

}  // namespace hetcomm
