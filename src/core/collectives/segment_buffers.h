// SegmentBuffers finds the ranges of a rank's buffers that belong to one segment of a collective
// operation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/core/collectives/problem.h"
#include "src/core/collectives/steps.h"

namespace hetcomm::collectives {

// Returns the number of bytes of each block in one segment, or UINT64_MAX if there is only one
// segment.
uint64_t bytes_per_segment(const Problem& problem);

class SegmentBuffers {
 public:
  // The algorithm of |problem| must have been chosen. |problem| must not change.
  SegmentBuffers(const Problem& problem, uint64_t segment);

  const Problem& problem() const { return problem_; }
  // Return the segment's range of the block that is sent to, or received from, a rank. If there are
  // no blocks per rank, |block| is 0.
  Range sent(uint32_t block) const {
    return slice(BufferKind::kSend, block, problem_.send_block(block));
  }
  Range received(uint32_t block) const {
    return slice(BufferKind::kReceive, block, problem_.receive_block(block));
  }
  std::vector<Range> received_blocks() const;
  // Divides |range| of a reduction into |count| shares of whole elements, and returns share
  // |index|.
  Range share(const Range& range, uint32_t index, uint32_t count) const;

 private:
  Range slice(BufferKind buffer, uint32_t block, uint64_t length) const {
    const uint64_t from = std::min(begin_, length);
    return {buffer, block, from, std::min(end_, length) - from};
  }

  const Problem& problem_;
  uint64_t begin_;
  uint64_t end_;
};

// Returns block |index| of |packed|, which holds contiguous blocks of |length| bytes.
inline Range packed_block(const Range& packed, size_t index, uint64_t length) {
  return {packed.buffer, packed.block, packed.offset + index * length, length};
}

}  // namespace hetcomm::collectives
