// Copies rows at regular distances on both sides. Short rows of common sizes, such as those of a
// matrix that the other side holds transposed, are copied in blocks that fit the first-level cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/reshard/common_rows.h"

namespace hetcomm::reshard {

// Rows below this size are short: gathering them first is faster than converting or adding them one
// by one.
inline constexpr uint64_t kShortRow = 64;

// Copies |rows|. |from| and |to| are the first bytes of the first row of each side. The two sides
// do not overlap, except for elements that have the same address on both. Any alignment is allowed.
void copy_rows(const CommonRows& rows, const std::byte* from, std::byte* to);

// Blocks cuts |rows| into parts of at most |most_rows| rows that are compact on both sides. The
// offsets are those of the first row of the current part. |rows| must outlive the object.
class Blocks {
 public:
  Blocks(const CommonRows& rows, uint64_t most_rows);
  // Moves to the first part, and in later calls to the next one. Returns false if there is none.
  bool next();
  const CommonRows& part() const { return part_; }
  uint64_t from_offset() const { return from_; }
  uint64_t to_offset() const { return to_; }

 private:
  void settle();

  const CommonRows& rows_;
  CommonRows part_;            // its |extents| are those of the current part
  CommonRows::Sizes edges_{};  // maximum extents of a part
  CommonRows::Sizes at_{};     // index of the part's first row
  uint64_t from_ = 0;
  uint64_t to_ = 0;
  bool begun_ = false;
};

}  // namespace hetcomm::reshard
