// Finds the rows into which two regions of the same elements can both be cut.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "src/reshard/region.h"

namespace hetcomm::reshard {

// Rows that two regions have in common. Row (i, j, ...) begins i * from_strides[0] + ... bytes
// after the first byte of one region, and i * to_strides[0] + ... bytes after that of the other.
struct CommonRows {
  static constexpr size_t kMaxExtents = 2 * std::tuple_size_v<Numbers>;
  using Sizes = std::array<uint64_t, kMaxExtents>;
  uint64_t row_bytes = 0;
  size_t dimensions = 0;
  Sizes extents{};
  Sizes from_strides{};
  Sizes to_strides{};

  // Returns the number of planes. A plane has at most two dimensions of rows.
  uint64_t planes() const {
    uint64_t count = 1;
    for (size_t d = 0; d + 2 < dimensions; ++d) count *= extents[d];
    return count;
  }
};

// Finds the longest rows into which |from| and |to| can both be cut, so that rows with the same
// index hold the same elements. |from| and |to| have the same number of bytes. Returns false if
// there are no such rows. Two regions of the same tensor box always have common rows.
bool find_common_rows(const Region& from, const Region& to, CommonRows* out);

}  // namespace hetcomm::reshard
