// A Region is a set of rows of bytes at regular distances in a rank's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/slicing.h"

namespace hetcomm::reshard {

// A region has |rows| rows of |row_bytes| each. Row (i, j, ...) begins offset + i * strides[0] +
// j * strides[1] + ... bytes after the beginning of its memory.
struct Region {
  Space memory = Space::kScratch;
  uint32_t tensor = 0;
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
  size_t dimensions = 0;  // number of row dimensions
  Numbers extents{};
  Numbers strides{};

  uint64_t bytes() const { return rows * row_bytes; }
  // Returns the number of planes. A plane has at most two dimensions of rows.
  uint64_t planes() const {
    uint64_t count = 1;
    for (size_t d = 0; d + 2 < dimensions; ++d) count *= extents[d];
    return count;
  }
  // Returns the offset one past the last byte.
  uint64_t end() const {
    uint64_t last = offset;
    for (size_t d = 0; d < dimensions; ++d) last += (extents[d] - 1) * strides[d];
    return last + row_bytes;
  }
};

// Returns the region of |box| of |tensor|, whose elements have |element_bytes| bytes. |base| is the
// offset of element 0 of |box|, in bytes from the beginning of the memory.
Region region_of(const StridedBox& box, uint32_t tensor, uint64_t element_bytes, uint64_t base);

// Iterates over the rows of a region in order.
class RowCursor {
 public:
  explicit RowCursor(const Region& region)
      : region_(region), offset_(region.offset), left_(region.row_bytes) {}
  uint64_t offset() const { return offset_; }
  // Returns the number of contiguous bytes from here, or 0 at the end.
  uint64_t left() const { return left_; }
  // Advances by |bytes|, at most left().
  void advance(uint64_t bytes) {
    offset_ += bytes;
    left_ -= bytes;
    if (left_ == 0) next_row();
  }

 private:
  void next_row() {
    if (++row_ == region_.rows) return;
    left_ = region_.row_bytes;
    offset_ -= region_.row_bytes;
    for (size_t d = region_.dimensions; d-- > 0;) {
      if (++at_[d] < region_.extents[d]) {
        offset_ += region_.strides[d];
        return;
      }
      offset_ -= (region_.extents[d] - 1) * region_.strides[d];
      at_[d] = 0;
    }
  }

  const Region& region_;
  uint64_t row_ = 0;
  Numbers at_{};
  uint64_t offset_;
  uint64_t left_;
};

}  // namespace hetcomm::reshard
