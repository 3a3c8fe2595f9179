// SharedArena creates, maps and lays out the memory that all ranks of a team on one host share.
//
// Each rank has a ring of slots, and every slot holds one chunk of its rank's data. The slots are
// preceded by a bit for each rank, which is set while that rank sleeps, and by each rank's read
// costs (write_way.h).
//
//   nonce | sleepers | read costs of each rank | slots of rank 0 | slots of rank 1 | ...
//   | long slots of rank 0 | long slots of rank 1 | ...
//
// The slots of a rank are together as large as a core's own cache, so that lines are evicted to the
// shared cache before they are used again. Reading a line that is still in the writer's cache is
// slower, and so is rewriting a line that is still in the reader's cache. Long slots are for
// devices, which copy large pieces at a time (device_runner.h). The tickets for long slots are in
// the other slots.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/base/status.h"
#include "src/core/collectives/call.h"
#include "src/core/collectives/write_way.h"
#include "src/system/unique_fd.h"

namespace hetcomm::collectives {

// The location and identity of the arena that the first rank has created, for the other ranks of
// the host.
struct ArenaOffer {
  uint64_t usable = 0;  // 0: there is no arena
  uint64_t nonce[2] = {0, 0};
  int64_t process = 0;
  int64_t file = -1;
};

// One chunk of one rank. The input's ticket, the compared hash and short data share one cache line.
// Fields that are rarely read are on other lines.
struct ChunkSlot {
  static constexpr size_t kInlineBytes = 48;  // bytes that fit next to the ticket
  static constexpr uint64_t kBytes = 64u << 10;

  std::atomic<uint64_t> input_ticket;
  uint64_t hash;
  std::byte inline_bytes[kInlineBytes];
  alignas(64) uint64_t sequence;
  Call call;
  alignas(64) std::atomic<uint64_t> sum_ticket;
  alignas(64) std::byte bytes[kBytes];
};

class SharedArena {
 public:
  static constexpr uint32_t kMaxRanks = 512;

  // Creates the arena for |ranks| ranks, and describes it in |*offer|. Called by the first rank.
  static Result<SharedArena> create(uint32_t ranks, ArenaOffer* offer);
  // Maps the arena that |offer| describes. Fails if its identity cannot be verified. Called by the
  // other ranks.
  static Result<SharedArena> open(uint32_t ranks, const ArenaOffer& offer);
  SharedArena(SharedArena&& other) noexcept;
  SharedArena& operator=(SharedArena&&) = delete;
  ~SharedArena();

  // Closes the file. Call this once every rank has mapped the arena or has decided not to.
  void close_file() { file_.reset(); }

  uint32_t ranks() const { return ranks_; }
  uint64_t size() const { return size_for(ranks_); }
  const std::byte* base() const { return base_; }
  // Returns the words that hold a bit for each rank, which is set while the rank sleeps.
  std::atomic<uint64_t>* sleepers() const;
  // Returns the costs of all ranks, by rank.
  ReadCosts* read_costs() const;
  // Returns slots_per_rank() slots for each rank, rank by rank.
  ChunkSlot* slots() const;
  // Returns the number of slots per rank, which is a power of two.
  uint32_t slots_per_rank() const { return slots_for(ranks_); }
  static constexpr uint32_t kFewestSlots = 4;
  // The number of long slots per rank. long_slot_bytes() returns the length of each.
  static constexpr uint32_t kLongSlots = 4;
  uint64_t long_slot_bytes() const { return long_bytes_for(ranks_); }
  std::byte* long_slot(uint32_t rank, uint32_t number) const {
    return base_ + long_slots_at(ranks_) +
           (uint64_t{rank} * kLongSlots + number) * long_bytes_for(ranks_);
  }

 private:
  struct Header;

  SharedArena(uint32_t ranks, UniqueFd file, std::byte* base);
  static uint64_t slots_at(uint32_t ranks);
  static uint64_t long_slots_at(uint32_t ranks);
  static uint64_t size_for(uint32_t ranks);
  // Returns the number of slots per rank. It is smaller for many ranks, to limit the total memory.
  // Unused pages take no memory.
  static uint32_t slots_for(uint32_t ranks) {
    return ranks <= 32 ? 16 : ranks <= 64 ? 8 : kFewestSlots;
  }
  static uint64_t long_bytes_for(uint32_t ranks) {
    constexpr uint64_t kMaxTotalBytes = 64u << 20;  // unused pages take no memory
    constexpr uint64_t kMax = 2u << 20;
    return std::min(kMax, std::bit_floor(kMaxTotalBytes / kLongSlots / ranks));
  }

  uint32_t ranks_;
  UniqueFd file_;
  std::byte* base_;  // null: another object owns the memory
};

}  // namespace hetcomm::collectives
