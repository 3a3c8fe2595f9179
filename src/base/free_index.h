// Finds a free entry in a table that has a list of its free indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetcomm {

// Returns the last index in |free|. The caller removes the index from |free| once it has acquired
// everything else that it needs. If |free| is empty, adds an entry at the end of |table|. |free|
// has capacity for every entry of the table, so adding a freed index to it never allocates memory.
template <typename Table>
uint32_t next_free_index(Table& table, std::vector<uint32_t>& free) {
  if (free.empty()) {
    constexpr size_t kFirst = 16;
    const size_t size = table.size();
    if (size >= free.capacity()) free.reserve(size < kFirst ? kFirst : 2 * size);
    table.emplace_back();
    free.push_back(static_cast<uint32_t>(size));
  }
  return free.back();
}

}  // namespace hetcomm
