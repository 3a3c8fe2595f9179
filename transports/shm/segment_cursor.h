// A place in a segment list that mostly moves forward, so that a transfer in pieces does not walk
// the list from its start for each of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/base/span.h"

namespace hetcomm::shm {

class SegmentCursor {
 public:
  // Moves to byte |position| of the list.
  void seek(Segments segments, uint64_t position) {
    if (position < position_) *this = SegmentCursor();
    uint64_t skip = position - position_;
    position_ = position;
    while (skip > 0 && index_ < segments.size()) {
      const uint64_t here = std::min<uint64_t>(skip, segments[index_].iov_len - within_);
      step(segments, here);
      skip -= here;
    }
  }
  // The next piece, of 1 to |most| bytes, and moves past it. There are bytes left.
  iovec next(Segments segments, uint64_t most) {
    while (within_ == segments[index_].iov_len) step(segments, 0);
    const iovec& segment = segments[index_];
    const size_t length = static_cast<size_t>(std::min<uint64_t>(segment.iov_len - within_, most));
    const iovec piece{static_cast<std::byte*>(segment.iov_base) + within_, length};
    position_ += length;
    step(segments, length);
    return piece;
  }
  // Calls |use(std::byte* piece, size_t length)| for the next |length| bytes, which exist, and
  // moves past them.
  template <typename Use>
  void take(Segments segments, uint64_t length, Use&& use) {
    while (length > 0) {
      const iovec piece = next(segments, length);
      use(static_cast<std::byte*>(piece.iov_base), piece.iov_len);
      length -= piece.iov_len;
    }
  }
  uint64_t position() const { return position_; }

 private:
  void step(Segments segments, uint64_t length) {
    within_ += length;
    if (within_ == segments[index_].iov_len) {
      ++index_;
      within_ = 0;
    }
  }

  uint64_t position_ = 0;
  uint64_t index_ = 0;
  uint64_t within_ = 0;
};

}  // namespace hetcomm::shm
