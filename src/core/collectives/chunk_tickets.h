// A ticket is a number that a rank writes next to a chunk in the arena when the chunk is ready.
// ChunkTickets publishes the tickets of this rank, and detects that the chunks of all ranks are
// ready.
//
// Every rank has 2n slots, and chunk number g of the team uses slot g % 2n of each rank. A rank
// writes its input into that slot and then the ticket g + 1. It waits for the tickets of all other
// ranks, and reads its result from their slots. In a large allreduce, each rank sums one share,
// writes it to its own slot with a second ticket, and reads the other shares from the other slots.
//
// A rank writes chunk g only after it has finished chunk g - n, for which it has seen all tickets.
// Therefore all others have finished chunk g - 2n, and no rank still reads the data that is
// overwritten. There are no locks, so the only consequence of a rank's death is a missing ticket.
//
// If a rank requests long chunks with its first ticket, all ranks skip n chunks once they have seen
// all first tickets. By then all ranks have finished the previous operation, and no rank has
// published more than these n chunks of the new one or read data from them. The chunks that follow
// are stored elsewhere but have their tickets here, with the same rule for a smaller n.
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

  // Skips the chunks that ranks may already have published, and ignores their contents. Call this
  // once the first chunk of every rank has been seen.
  void skip() {
    done_ += window();
    start();
  }

  // Returns the number of chunks that this rank can publish before it has finished the first of
  // them.
  uint64_t window() const { return slots_per_rank_ / 2; }
  // Returns the number of times that all slots have been used.
  uint64_t turn() const { return done_ / slots_per_rank_; }
  ChunkSlot& slot(uint32_t rank, uint64_t chunk) const {
    return slots_[rank * slots_per_rank_ + ((done_ + chunk) & (slots_per_rank_ - 1))];
  }

  // Announces that this rank's input is ready. give_sum() does the same for its share of the sum.
  void give_input(uint64_t chunk, WriteWay way) {
    slot(index_, chunk)
        .input_ticket.store(ticket(chunk) | (way == WriteWay::kStreamed ? kStreamedBit : 0),
                            std::memory_order_release);
  }
  // Publishes the first chunk without data, as a request for long chunks.
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
  // Returns whether |rank| requests long chunks. Its first chunk must be ready.
  bool asks_for_long(uint32_t rank) const {
    return (slot(rank, 0).input_ticket.load(std::memory_order_relaxed) & kLongBit) != 0;
  }
  bool has_sum(uint32_t rank, uint64_t chunk) const {
    return slot(rank, chunk).sum_ticket.load(std::memory_order_acquire) == ticket(chunk);
  }
  // Returns how the input of |rank| was written. This input must be ready.
  WriteWay way_of(uint32_t rank, uint64_t chunk) const {
    const uint64_t ticket = slot(rank, chunk).input_ticket.load(std::memory_order_relaxed);
    return (ticket & kStreamedBit) != 0 ? WriteWay::kStreamed : WriteWay::kCached;
  }

  // Returns whether the tickets of all ranks have arrived. The caller must query the chunks in
  // order, and repeat each query until it returns true. Calls accept(rank) once for each input, and
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
  // Set in a ticket if its data was written past the caches.
  static constexpr uint64_t kStreamedBit = uint64_t{1} << 63;
  static constexpr uint64_t kLongBit = uint64_t{1} << 62;

  uint64_t ticket(uint64_t chunk) const { return done_ + chunk + 1; }

  ChunkSlot* const slots_;
  const uint32_t slots_per_rank_;  // a power of two
  const uint32_t ranks_;
  const uint32_t index_;
  uint64_t done_ = 0;         // the number of chunks of earlier operations
  uint32_t inputs_seen_ = 0;  // number of leading ranks whose next ticket has arrived
  uint32_t sums_seen_ = 0;
};

}  // namespace hetcomm::collectives
