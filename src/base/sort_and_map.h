// Sorts a list whose elements are referred to by index.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace hetcomm {

// Sorts |list|, and returns the new index of each element at its old index.
template <typename T, typename Less>
std::vector<int> sort_and_map(std::vector<T>& list, Less less) {
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return less(list[a], list[b]); });
  std::vector<int> positions(list.size());
  std::vector<T> sorted;
  sorted.reserve(list.size());
  for (const size_t old : order) {
    positions[old] = static_cast<int>(sorted.size());
    sorted.push_back(std::move(list[old]));
  }
  list = std::move(sorted);
  return positions;
}

}  // namespace hetcomm
