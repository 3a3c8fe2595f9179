// ExtentCursor is a position in an extent list. A caller that keeps the cursor between calls can
// process a list piece by piece in one pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/span.h"

namespace hetcomm {

struct ExtentCursor {
  uint64_t position = 0;  // bytes from the start of the list
  uint64_t within = 0;    // bytes into extents[index]
  size_t index = 0;

  void advance(Extents extents, uint64_t bytes) {
    position += bytes;
    within += bytes;
    while (index < extents.size() && within >= extents[index].iov_len) {
      within -= extents[index].iov_len;
      ++index;
    }
  }
  // Moves to |target|. A backward seek walks the list again from its start.
  void seek(Extents extents, uint64_t target) {
    if (target < position) *this = {};
    advance(extents, target - position);
  }
  // Returns the next piece, of 1 to |most| bytes, and moves past it. The list must have at least
  // one byte left.
  iovec next(Extents extents, uint64_t most) {
    advance(extents, 0);  // skips empty extents
    const iovec& extent = extents[index];
    const size_t length = static_cast<size_t>(std::min<uint64_t>(extent.iov_len - within, most));
    const iovec piece{static_cast<std::byte*>(extent.iov_base) + within, length};
    advance(extents, length);
    return piece;
  }
  // Calls |use(std::byte* piece, size_t length)| for each piece of the next |length| bytes, and
  // moves past them. The list must have that many bytes left.
  template <typename Use>
  void take(Extents extents, uint64_t length, Use&& use) {
    while (length > 0) {
      const iovec piece = next(extents, length);
      use(static_cast<std::byte*>(piece.iov_base), piece.iov_len);
      length -= piece.iov_len;
    }
  }
};

// The number and total size of the pieces that collect() returned.
struct Pieces {
  size_t count = 0;
  uint64_t bytes = 0;
};

// Fills |out| with the pieces of the next |length| bytes from |cursor|. Stops early if |out| is
// full or the list ends.
inline Pieces collect(Extents extents, const ExtentCursor& cursor, uint64_t length,
                      std::span<iovec> out) {
  Pieces pieces;
  uint64_t within = cursor.within;
  for (size_t i = cursor.index; i < extents.size() && pieces.bytes < length; ++i) {
    const uint64_t size = std::min<uint64_t>(extents[i].iov_len - within, length - pieces.bytes);
    if (size > 0) {
      if (pieces.count == out.size()) break;
      out[pieces.count++] = {static_cast<std::byte*>(extents[i].iov_base) + within,
                             static_cast<size_t>(size)};
      pieces.bytes += size;
    }
    within = 0;
  }
  return pieces;
}

}  // namespace hetcomm
