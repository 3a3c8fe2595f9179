// ChunkLayout divides the data of one operation into chunks, and determines their positions in the
// slots.
//
// A slot has a region for each block that its rank sends. If some ranks do not know the lengths of
// all blocks, chunks have the maximum length, and the length of each block precedes its region in
// the first chunk. Data that does not fill a slot is written to a different part of the slot each
// time, unless it is very short. All of the slots' memory is thus used (shared_arena.h explains
// why).
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

class ChunkLayout {
 public:
  // Chunks of at least this length are measured, and may bypass the caches.
  static constexpr uint64_t kMinMeasuredBytes = 8u << 10;
  // Shorter copies do not bypass the caches, because copying their unaligned ends costs more than
  // is saved.
  static constexpr uint64_t kMinStreamedBytes = 2u << 10;

  ChunkLayout(uint32_t ranks, uint32_t index) : ranks_(ranks), index_(index) {}

  // Lays out the data of |problem|. |turn| is the number of times that all slots have been used.
  void start(const Problem& problem, uint64_t turn);
  // Lays out the data for chunks that fill slots of |slot_bytes|. The lengths of all blocks must be
  // known.
  void start_long(const Problem& problem, uint64_t slot_bytes);

  // Returns whether this is an allreduce in which each rank sums one share, and copies the other
  // shares after a second ticket.
  bool two_phases() const { return two_phases_; }
  // Returns whether each rank announces its block lengths with its first chunk, because the others
  // do not know them.
  bool tells_lengths() const { return tells_lengths_; }
  // Returns the length of the longest block known to this rank that goes through the slots.
  uint64_t longest() const { return longest_; }
  // Returns whether chunks are long enough for their costs to be measured.
  bool measures() const { return std::min(chunk_bytes_, longest_) >= kMinMeasuredBytes; }
  // Returns whether the data of all ranks exceeds the last-level cache, and its chunks are long
  // enough to bypass the caches.
  bool exceeds_cache() const { return exceeds_cache_; }

  uint64_t chunks_for(uint64_t block_bytes) const {
    return std::max<uint64_t>(1, (block_bytes + chunk_bytes_ - 1) / chunk_bytes_);
  }
  // Return a chunk's offset in its block, and its length in a block of |block_bytes|.
  uint64_t offset(uint64_t chunk) const { return chunk * chunk_bytes_; }
  uint64_t length_of(uint64_t block_bytes, uint64_t chunk) const {
    const uint64_t from = std::min(offset(chunk), block_bytes);
    return std::min(chunk_bytes_, block_bytes - from);
  }

  // Returns the offset in a slot of the first byte that the operation uses.
  uint64_t shift() const { return shift_; }
  // Return the offset of a block's region, and of the preceding word with the block's length,
  // relative to shift().
  uint64_t region(uint32_t block) const {
    return block * (region_head_ + chunk_bytes_) + region_head_;
  }
  uint64_t length_word(uint32_t block) const { return region(block) - kLine; }

  // Returns the offset of a rank's share in a chunk of |length| bytes. Shares begin at multiples of
  // the cache line size.
  uint64_t share_begin(uint64_t length, uint32_t rank) const {
    if (rank == ranks_) return length;
    const uint64_t lines = length / kLine;
    return lines * rank / ranks_ * kLine;
  }

 private:
  static constexpr uint64_t kLine = 64;

  uint64_t longest_through_slots(const Problem& problem) const;

  const uint32_t ranks_;
  const uint32_t index_;
  bool two_phases_ = false;
  bool tells_lengths_ = false;
  bool exceeds_cache_ = false;
  uint64_t longest_ = 0;
  uint64_t region_head_ = 0;  // the bytes that precede a block's region
  uint64_t chunk_bytes_ = 0;  // the maximum length of a chunk
  uint64_t shift_ = 0;
};

}  // namespace hetcomm::collectives
