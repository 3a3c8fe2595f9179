// ChunkCopier copies data into this rank's slots and out of other ranks' slots, in the way that is
// cheapest for all ranks.
//
// Writes to the slots bypass the caches if that is cheaper (write_way.h), and a bit in the ticket
// records this. The costs of both ways are measured while operations run, on chunks that are long
// enough to be worth reading the clock. Results bypass the caches if an operation has more data
// than fits in the last-level cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/base/baton_role.h"
#include "src/base/copy.h"
#include "src/core/collectives/chunk_layout.h"
#include "src/core/collectives/shared_arena.h"
#include "src/core/collectives/write_way.h"
#include "src/system/clock.h"

namespace hetcomm::collectives {

class ChunkCopier {
 public:
  ChunkCopier(const SharedArena& arena, uint32_t index)
      : costs_(arena.read_costs()),
        ranks_(arena.ranks()),
        index_(index),
        ways_(arena.read_costs()[index]) {}

  // Begins an operation with this layout.
  void start(const ChunkLayout& layout) {
    measures_ = layout.measures();
    passes_caches_ = layout.exceeds_cache();
  }

  // Chooses how the next chunk is written.
  WriteWay choose_way() {
    way_ = WriteWay::kCached;
    if (!measures_) return way_;
    way_ = ways_.next([this](WriteWay way) {
      uint32_t most = 0;
      for (uint32_t rank = 0; rank < ranks_; ++rank) {
        if (rank == index_) continue;
        const auto& costs = costs_[rank].by_way;
        most = std::max(most, costs[static_cast<size_t>(way)].load(std::memory_order_relaxed));
      }
      return most;
    });
    return way_;
  }
  // Makes write() use |way|, to continue a chunk that was begun in that way.
  void set_way(WriteWay way) { way_ = way; }

  // Writes to this rank's slot, in the way chosen for the chunk. Writes of short data are not
  // measured.
  void write(std::byte* to, const std::byte* from, uint64_t length) {
    if (!measures_) {
      copy_long(to, from, length);
      return;
    }
    const uint64_t start = ticks();
    if (way_ == WriteWay::kStreamed) {
      copy_streaming(to, from, length);
    } else {
      copy_long(to, from, length);
    }
    if (length >= ChunkLayout::kMinMeasuredBytes) ways_.wrote(way_, length, ticks() - start);
  }
  // Copies data to the destination of the result.
  void deliver(std::byte* to, const std::byte* from, uint64_t length) const {
    if (passes_caches_ && length >= ChunkLayout::kMinStreamedBytes) {
      copy_streaming(to, from, length);
    } else {
      copy_long(to, from, length);
    }
  }

  bool measures() const { return measures_; }
  // Records that this rank has read |bytes| that another rank wrote in the way |way|. The |read|
  // function of measure() calls this.
  void note_read(WriteWay way, uint64_t bytes) { bytes_read_[static_cast<size_t>(way)] += bytes; }
  // Calls |read|, and records its cost if all the data that it read was written in one way.
  template <typename Read>
  void measure(Read&& read) HETCOMM_UNDER_BATON {
    if (!measures_) {
      read();
      return;
    }
    bytes_read_ = {};
    const uint64_t start = ticks();
    read();
    const uint64_t took = ticks() - start;
    for (const WriteWay way : {WriteWay::kCached, WriteWay::kStreamed}) {
      const uint64_t bytes = bytes_read_[static_cast<size_t>(way)];
      const uint64_t other = bytes_read_[1 - static_cast<size_t>(way)];
      if (bytes >= ChunkLayout::kMinMeasuredBytes && other == 0) ways_.read(way, bytes, took);
    }
  }

 private:
  const ReadCosts* const costs_;  // indexed by rank
  const uint32_t ranks_;
  const uint32_t index_;
  WayChooser ways_;
  bool measures_ = false;
  bool passes_caches_ = false;            // results bypass the caches
  WriteWay way_ = WriteWay::kCached;      // the way of the current chunk
  std::array<uint64_t, 2> bytes_read_{};  // by way, since measure() began
};

}  // namespace hetcomm::collectives
