// Tables that reuse their entries: a list of the free indices accompanies each table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetcomm {

// Returns the last index in |free|. The index stays there until the caller has acquired everything
// it needs and removes the index. If |free| is empty, an entry is added at the end of |table|.
// |free| has room for every entry of the table, so returning an index never fails.
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
