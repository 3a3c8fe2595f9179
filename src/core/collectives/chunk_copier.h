// Copies data into this rank's slots and out of other ranks' slots, in the cheapest way for all
// ranks.
//
// Where the cores share no cache, chunks bypass the caches (write_way.h), and a bit in the ticket
// records it. Results bypass them too if an operation has more data than the last-level cache
// holds. Costs are measured during operation, on chunks long enough to be worth reading the clock.
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
  // Continues a chunk that was begun in way |way|.
  void set_way(WriteWay way) { way_ = way; }

  // Writes to this rank's slot. Short data is written in the way of its chunk, and is not measured.
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
  // Copies to the result's destination.
  void deliver(std::byte* to, const std::byte* from, uint64_t length) const {
    if (passes_caches_ && length >= ChunkLayout::kMinStreamedBytes) {
      copy_streaming(to, from, length);
    } else {
      copy_long(to, from, length);
    }
  }

  bool measures() const { return measures_; }
  // Records that this rank read |bytes| that another rank wrote in way |way|. Called by |read| of
  // measure().
  void note_read(WriteWay way, uint64_t bytes) { bytes_read_[static_cast<size_t>(way)] += bytes; }
  // Calls |read|, and records its cost if all the data was written in one way.
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
  const ReadCosts* const costs_;  // costs of all ranks, by rank
  const uint32_t ranks_;
  const uint32_t index_;
  WayChooser ways_;
  bool measures_ = false;
  bool passes_caches_ = false;            // results bypass the caches
  WriteWay way_ = WriteWay::kCached;      // way of the current chunk
  std::array<uint64_t, 2> bytes_read_{};  // bytes by way, since measure() began
};

}  // namespace hetcomm::collectives
