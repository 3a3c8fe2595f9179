// Memory that all ranks of a team on one host have mapped: how it is created, found and laid out.
//
// Each rank has a ring of slots, and every slot holds one chunk of its rank's data. In front of the
// slots lie the bits of the sleeping ranks, and each rank's cost of reading (write_way.h).
//
//   nonce | sleepers | read costs of each rank | slots of rank 0 | slots of rank 1 | ...
//   | long slots of rank 0 | long slots of rank 1 | ...
//
// A rank's slots together are as large as a core's cache. Access is slower if a line is still in
// the writer's cache when it is read, or in the reader's when it is rewritten, than if it has moved
// to the shared cache. Long slots are for devices, whose copies are long (device_runner.h); their
// tickets lie in the other slots.
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

// Tells ranks of one host where the first rank's arena is, and how to identify it.
struct ArenaOffer {
  uint64_t usable = 0;  // 0: there is none
  uint64_t nonce[2] = {0, 0};
  int64_t process = 0;
  int64_t file = -1;
};

// One chunk of one rank. The input's ticket, the compared values and short data share one line.
// Rarely read fields are on other lines.
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

  // Makes the arena of |ranks| ranks; called by the first rank.
  static Result<SharedArena> create(uint32_t ranks, ArenaOffer* offer);
  // Finds the arena of |offer| and verifies that it is the right one, or fails; called by the
  // others.
  static Result<SharedArena> open(uint32_t ranks, const ArenaOffer& offer);
  SharedArena(SharedArena&& other) noexcept;
  SharedArena& operator=(SharedArena&&) = delete;
  ~SharedArena();

  // Every rank has mapped it, or never will: the file is no longer needed.
  void close_file() { file_.reset(); }

  uint32_t ranks() const { return ranks_; }
  uint64_t size() const { return size_for(ranks_); }
  const std::byte* base() const { return base_; }
  // A bit for each rank, in words.
  std::atomic<uint64_t>* sleepers() const;
  // The costs of all ranks, by rank.
  ReadCosts* read_costs() const;
  // slots_per_rank() slots of each rank, rank by rank.
  ChunkSlot* slots() const;
  // Slots of each rank; a power of two.
  uint32_t slots_per_rank() const { return slots_for(ranks_); }
  static constexpr uint32_t kFewestSlots = 4;
  // Long slots of each rank, and bytes of each.
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
  // The slots of all ranks together stay within bounds; pages that are not used take no memory.
  static uint32_t slots_for(uint32_t ranks) {
    return ranks <= 32 ? 16 : ranks <= 64 ? 8 : kFewestSlots;
  }
  static uint64_t long_bytes_for(uint32_t ranks) {
    constexpr uint64_t kMaxTotalBytes = 64u << 20;  // pages that are not used take no memory
    constexpr uint64_t kMax = 2u << 20;
    return std::min(kMax, std::bit_floor(kMaxTotalBytes / kLongSlots / ranks));
  }

  uint32_t ranks_;
  UniqueFd file_;
  std::byte* base_;  // null: another object has the memory
};

}  // namespace hetcomm::collectives
