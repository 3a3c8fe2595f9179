// Collective operations in a segment that all ranks of a team have mapped.
//
// Data goes in chunks. Every rank has 2 n slots, and chunk number g of the team uses slot g % 2 n
// of each: a rank writes its input there and its ticket g + 1 behind it, waits for the tickets of
// all others, and takes its result from their slots. Of large sums each rank makes one block, writes
// it to its own slot with a second ticket, and takes the other blocks from theirs.
//
// A rank writes chunk g only when it is done with chunk g - n, for which it has seen all tickets;
// so all others are done with chunk g - 2 n, and nobody reads what is overwritten. Nothing is
// locked: a rank that dies leaves no more than a ticket that does not come.
//
// Where no rank knows the lengths of all blocks, chunks are as long as they may be; with its first
// one a rank tells how long each of its blocks is, and the longest of them says how many chunks
// there are.
//
// A rank's slots together are as large as a core's cache. A line that is still in the writer's own
// cache when it is read, and in the reader's when it is written again, is slower than one that has
// gone to the cache that they share. Where they share none, chunks go past the caches
// (write_way.h); a bit of the ticket says so. What is copied to a result goes past them too where
// all that the ranks send and receive is more than the last cache has.
//
// A rank that goes to sleep sets its bit among the sleepers, fences and looks once more; who gives
// out a ticket looks at the bits. As in transports/shm the sleeper fences for both where the
// kernels of all ranks' processes can do that. Under the baton.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/core/collectives/call.h"
#include "src/core/collectives/task.h"
#include "src/core/collectives/write_way.h"

namespace hetcomm::collectives {

// Where the first rank's segment is to be found, and how to know it. Goes to ranks of one host.
struct SegmentOffer {
  uint64_t usable = 0;  // 0: there is none
  uint64_t nonce[2] = {0, 0};
  int64_t process = 0;
  int64_t file = -1;
};

class Segment {
 public:
  enum class Outcome : uint8_t { kWaits, kMoved, kDone, kMismatch };
  static constexpr uint32_t kMostRanks = 512;

  // By the first rank.
  static Result<std::unique_ptr<Segment>> create(uint32_t ranks, SegmentOffer* offer);
  // By the others: finds the segment of |offer|, or fails, and proves that it is that one.
  static Result<std::unique_ptr<Segment>> open(uint32_t ranks, uint32_t index,
                                               const SegmentOffer& offer);
  // Every rank has it mapped, or never will. |fences|: some rank's kernel lacks the barrier.
  void complete(bool fences);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Whether operations of this kind can go through a segment: all ranks can tell the same.
  static bool carries(const Call& call, uint32_t ranks);

  // |task| stays as it is until the operation is over or dropped.
  void start(const Task& task, bool checks);
  // Goes on for some chunks. kDone: the operation is over. kMismatch: it cannot be, see below.
  Outcome advance();
  // The operation under way has failed; no other one follows.
  void drop() { task_ = nullptr; }
  // After kMismatch: which rank has called what, as far as it says.
  struct Mismatch {
    uint32_t peer = 0;
    uint64_t sequence = 0;
    Call call;
    // The calls are alike, but the peer has |sent| bytes for this rank, which expects others.
    bool in_length = false;
    uint64_t sent = 0;
    uint64_t expected = 0;
  };
  const Mismatch& mismatch() const { return mismatch_; }
  // Ranks whose tickets are missing.
  std::vector<uint32_t> missing() const;

  // Before this rank sleeps: tickets wake it, once. False: what has come meanwhile has to be looked
  // at, or there is no way to be sure.
  [[nodiscard]] bool announce_sleep(bool short_sleep);
  bool sleep_announced() const { return announced_; }
  void end_sleep();
  // Calls |wake(index)| for the ranks that wait for a ticket of this one in their sleep.
  template <typename Wake>
  void wake_sleepers(Wake&& wake) {
    if (!woken_) return;
    woken_ = false;
    for (size_t word = 0; word < words_; ++word) take_sleepers(word, wake);
  }

 private:
  struct Header;
  struct Slot;
  static constexpr uint64_t kSlotBytes = 64u << 10;

  Segment(uint32_t ranks, uint32_t index, UniqueFd file, std::byte* base, uint64_t size);
  static uint64_t slots_at(uint32_t ranks);
  static uint32_t slots_for(uint32_t ranks);
  static uint64_t size_for(uint32_t ranks);
  Header& header() const;
  std::atomic<uint64_t>& sleepers(size_t word) const;
  ReadCosts& read_costs(uint32_t rank) const;
  Slot& slot(uint32_t rank, uint64_t chunk) const;
  std::byte* bytes_of(uint32_t rank, uint64_t chunk) const;
  bool step();
  bool all_in(uint64_t chunk);
  bool agrees(uint32_t rank);
  bool all_mid(uint64_t chunk);
  bool has_ticket(uint32_t rank, uint64_t chunk) const;
  void write(std::byte* to, const std::byte* from, uint64_t length);
  void deliver(std::byte* to, const std::byte* from, uint64_t length);
  // |bytes| of what |rank| has written are read.
  void note_read(uint32_t rank, uint64_t chunk, uint64_t bytes);
  template <typename Read>
  void measure_reading(Read&& read);
  WriteWay choose_way();
  WriteWay way_of(uint32_t rank, uint64_t chunk) const;
  void look_for_sleepers();
  template <typename Wake>
  void take_sleepers(size_t word, Wake&& wake) {
    uint64_t bits = sleepers(word).load(std::memory_order_relaxed) & ~own_bit(word);
    if (bits == 0) return;
    bits &= sleepers(word).fetch_and(~bits, std::memory_order_seq_cst);
    for (; bits != 0; bits &= bits - 1) {
      wake(static_cast<uint32_t>(word * 64) + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  uint64_t own_bit(size_t word) const {
    return index_ / 64 == word ? uint64_t{1} << (index_ % 64) : 0;
  }
  void publish(uint64_t chunk);
  void publish_bytes(uint64_t at, uint32_t block, uint64_t chunk, uint64_t length);
  void publish_block(uint32_t block, uint64_t chunk, uint64_t bytes);
  void publish_all_but_own_piece(uint64_t chunk, uint64_t length);
  void reduce_piece(uint64_t chunk);
  void consume(uint64_t chunk);
  void consume_blocks(uint64_t chunk);
  void consume_pieces(uint64_t chunk);
  void consume_sum(uint64_t chunk);
  void consume_few(std::byte* to, uint64_t length, uint64_t chunk);
  void keep_own_block(uint64_t chunk);
  void copy_out(uint32_t block, uint64_t chunk, uint32_t writer);
  bool in_few(uint64_t length) const;
  uint64_t length_of(uint64_t block_bytes, uint64_t chunk) const;
  uint64_t region(uint32_t block) const {
    return block * (region_head_ + chunk_bytes_) + region_head_;
  }
  std::byte* length_at(uint32_t rank, uint32_t block) const;
  uint64_t chunks_for(uint64_t block_bytes) const;
  uint64_t longest_through_slots(const Problem& problem) const;
  uint64_t moved_bytes(const Problem& problem) const;
  void sum(std::byte* out, uint64_t bytes, uint32_t ranks, const std::byte* own, uint64_t at,
           uint64_t chunk);
  uint64_t piece_begin(uint64_t length, uint32_t piece) const;

  const uint32_t ranks_;
  const uint32_t index_;
  const uint32_t slots_;  // of each rank; a power of two
  const size_t words_;
  UniqueFd file_;
  std::byte* base_;
  uint64_t size_;
  bool fences_ = true;
  bool announced_ = false;
  bool woken_ = false;  // somebody sleeps who may wait for a ticket of this rank
  uint64_t done_ = 0;   // chunks of operations before this one
  WayChooser ways_;
  std::vector<const std::byte*> inputs_;  // of a sum, by rank
  Mismatch mismatch_;

  // Of the operation under way.
  const Task* task_ = nullptr;
  bool checks_ = true;
  bool two_phases_ = false;
  bool passes_caches_ = false;  // what is copied to a result does
  bool measures_ = false;       // long enough to be worth a look at the clock
  uint64_t hash_ = 0;
  uint64_t element_ = 1;
  uint64_t chunk_bytes_ = 0;    // of a block, or of the buffer
  bool tells_lengths_ = false;  // the ranks do not know how long the blocks of others are
  uint64_t region_head_ = 0;    // bytes in front of a block
  uint64_t longest_ = 0;        // block that goes through the slots, as far as this rank knows
  uint64_t chunks_ = 0;         // with |tells_lengths_|: as far as this rank knows by now
  uint64_t shift_ = 0;          // where in the slots
  WriteWay way_ = WriteWay::kCached;      // of the chunk that is written
  std::array<uint64_t, 2> bytes_read_{};  // by way, since the clock was looked at
  uint64_t published_ = 0;
  uint64_t reduced_ = 0;
  uint64_t consumed_ = 0;
  uint32_t seen_in_ = 0;  // ranks, from the first on, whose ticket of the next chunk is there
  uint32_t seen_mid_ = 0;
};

}  // namespace hetcomm::collectives
