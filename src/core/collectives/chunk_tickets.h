// ChunkTickets announces by tickets that this rank's chunks are ready, and detects that the chunks
// of all ranks are ready.
//
// Every rank has 2 n slots, and chunk number g of the team uses slot g % 2 n of each rank. A rank
// writes its input into that slot, followed by the ticket g + 1, waits for the tickets of all
// others, and reads its result from their slots. In a large sum each rank sums one share, writes it
// to its own slot with a second ticket, and reads the other shares from the other slots.
//
// A rank writes chunk g only after it has finished chunk g - n, for which it has seen all tickets.
// Therefore all others have finished chunk g - 2 n, and no rank still reads the data that is
// overwritten. No locks are used: if a rank dies, the only consequence is a missing ticket.
//
// If a rank asks for long chunks with its first ticket, all ranks skip n chunks once they have seen
// all first tickets. No rank has published chunks of the operation beyond these n, or read data
// from them, and all have finished the previous operation. The chunks that follow are stored
// elsewhere but have their tickets here, under the same rule with a smaller n.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/collectives/shared_arena.h"
#include "src/core/collectives/write_way.h"

namespace hetcomm::collectives {

class ChunkTickets {
 public:
  explicit ChunkTickets(const SharedArena& arena, uint32_t index)
      : slots_(arena.slots()),
        slots_per_rank_(arena.slots_per_rank()),
        ranks_(arena.ranks()),
        index_(index) {}

  // Begins an operation, whose chunks are numbered from 0.
  void start() { inputs_seen_ = sums_seen_ = 0; }
  // Ends the operation, which had |chunks| chunks.
  void finish(uint64_t chunks) { done_ += chunks; }

  // Skips the chunks that ranks may already have published, and ignores their contents. This rank
  // has seen the first chunk of every rank.
  void skip() {
    done_ += window();
    start();
  }

  // Returns how many chunks this rank may publish before it has finished the first of them.
  uint64_t window() const { return slots_per_rank_ / 2; }
  // Returns how many times all slots have been used.
  uint64_t turn() const { return done_ / slots_per_rank_; }
  ChunkSlot& slot(uint32_t rank, uint64_t chunk) const {
    return slots_[rank * slots_per_rank_ + ((done_ + chunk) & (slots_per_rank_ - 1))];
  }

  // Announces that this rank's input, or its share of the sum, is ready.
  void give_input(uint64_t chunk, WriteWay way) {
    slot(index_, chunk)
        .input_ticket.store(ticket(chunk) | (way == WriteWay::kStreamed ? kStreamedBit : 0),
                            std::memory_order_release);
  }
  // Publishes the first chunk without data: this rank asks for long chunks instead.
  void ask_for_long() {
    slot(index_, 0).input_ticket.store(ticket(0) | kLongBit, std::memory_order_release);
  }
  void give_sum(uint64_t chunk) {
    slot(index_, chunk).sum_ticket.store(ticket(chunk), std::memory_order_release);
  }

  bool has_input(uint32_t rank, uint64_t chunk) const {
    return (slot(rank, chunk).input_ticket.load(std::memory_order_acquire) &
            ~(kStreamedBit | kLongBit)) == ticket(chunk);
  }
  // Returns whether |rank|, whose first chunk is ready, asks for long chunks.
  bool asks_for_long(uint32_t rank) const {
    return (slot(rank, 0).input_ticket.load(std::memory_order_relaxed) & kLongBit) != 0;
  }
  bool has_sum(uint32_t rank, uint64_t chunk) const {
    return slot(rank, chunk).sum_ticket.load(std::memory_order_acquire) == ticket(chunk);
  }
  // Returns how the input of |rank|, which is ready, was written.
  WriteWay way_of(uint32_t rank, uint64_t chunk) const {
    const uint64_t ticket = slot(rank, chunk).input_ticket.load(std::memory_order_relaxed);
    return (ticket & kStreamedBit) != 0 ? WriteWay::kStreamed : WriteWay::kCached;
  }

  // Returns whether the tickets of all ranks have arrived. A caller queries the chunks in order,
  // and repeats each query until it returns true. Calls accept(rank) once for each input, and
  // returns false if accept() does.
  template <typename Accept>
  bool all_inputs(uint64_t chunk, Accept&& accept) HETCOMM_UNDER_BATON {
    for (; inputs_seen_ < ranks_; ++inputs_seen_) {
      if (!has_input(inputs_seen_, chunk) || !accept(inputs_seen_)) return false;
    }
    inputs_seen_ = 0;
    return true;
  }
  bool all_sums(uint64_t chunk) {
    for (; sums_seen_ < ranks_; ++sums_seen_) {
      if (!has_sum(sums_seen_, chunk)) return false;
    }
    sums_seen_ = 0;
    return true;
  }

 private:
  // Set in a ticket whose data was written past the caches.
  static constexpr uint64_t kStreamedBit = uint64_t{1} << 63;
  static constexpr uint64_t kLongBit = uint64_t{1} << 62;

  uint64_t ticket(uint64_t chunk) const { return done_ + chunk + 1; }

  ChunkSlot* const slots_;
  const uint32_t slots_per_rank_;  // a power of two
  const uint32_t ranks_;
  const uint32_t index_;
  uint64_t done_ = 0;         // chunks of earlier operations
  uint32_t inputs_seen_ = 0;  // leading ranks whose ticket for the next chunk has arrived
  uint32_t sums_seen_ = 0;
};

}  // namespace hetcomm::collectives
