// ArenaRunner executes the operations of a team in the arena that its ranks share, one at a time.
//
// Data moves in chunks. A rank writes its input into its slot and publishes a ticket, waits for the
// tickets of all others, and reads its result from their slots (chunk_tickets.h). If some ranks do
// not know the lengths of all blocks, each rank announces its block lengths with its first chunk.
// The longest block of all ranks then determines the number of chunks. A rank whose devices copy
// directly requests long chunks with its first ticket, and all ranks switch to them
// (device_runner.h). Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/collectives/arena_sleepers.h"
#include "src/core/collectives/call_check.h"
#include "src/core/collectives/chunk_copier.h"
#include "src/core/collectives/chunk_layout.h"
#include "src/core/collectives/chunk_tickets.h"
#include "src/core/collectives/device_runner.h"
#include "src/core/collectives/shared_arena.h"
#include "src/core/collectives/task.h"
#include "src/core/collectives/task_copies.h"

namespace hetcomm::collectives {

class ArenaRunner {
 public:
  enum class Outcome : uint8_t { kWaits, kMoved, kDone, kMismatch };

  // All ranks must have mapped |arena|. |fences| is described at Agreement::needs_fences().
  ArenaRunner(SharedArena arena, uint32_t index, bool fences);
  ArenaRunner(const ArenaRunner&) = delete;
  ArenaRunner& operator=(const ArenaRunner&) = delete;

  // Returns whether an operation can use an arena. The result is the same on all ranks.
  static bool carries(const Call& call, uint32_t ranks);

  // Returns whether devices can copy directly to and from the arena for |task|.
  bool serves_devices(const Task& task) const HETCOMM_UNDER_BATON {
    return on_devices_.carries(task);
  }

  // Starts |task|. |task| and |copies| must stay valid until the operation is over or dropped.
  // |checks| is true if the ranks compare their calls.
  void start(Task& task, TaskCopies& copies, bool checks) HETCOMM_UNDER_BATON;
  // Processes some more chunks. Returns kMoved if it has processed some, kWaits if it could not,
  // and kDone if the operation is over. Returns kMismatch if it cannot continue for the reason that
  // mismatch() describes. The caller must then end it.
  Outcome advance() HETCOMM_UNDER_BATON;
  // Drops the current operation, which has failed. No other operation may follow.
  void drop() HETCOMM_UNDER_BATON { task_ = nullptr; }
  // Returns the memory that the ranks share.
  HostRange memory() const HETCOMM_UNDER_BATON {
    return HostRange::of(arena_.base(), arena_.size());
  }
  const CallCheck::Mismatch& mismatch() const HETCOMM_UNDER_BATON { return check_.mismatch(); }
  // Returns the ranks whose tickets are missing.
  std::vector<uint32_t> missing() const HETCOMM_UNDER_BATON;
  ArenaSleepers& sleepers() HETCOMM_UNDER_BATON { return sleepers_; }
  const ArenaSleepers& sleepers() const HETCOMM_UNDER_BATON { return sleepers_; }

 private:
  bool step() HETCOMM_UNDER_BATON;
  void ask_for_long() HETCOMM_UNDER_BATON;
  void change_to_long() HETCOMM_UNDER_BATON;
  uint64_t end_of(uint64_t chunk) const HETCOMM_UNDER_BATON;
  bool all_inputs(uint64_t chunk) HETCOMM_UNDER_BATON;
  bool agrees(uint32_t rank) HETCOMM_UNDER_BATON;
  std::byte* bytes_of(uint32_t rank, uint64_t chunk) const HETCOMM_UNDER_BATON {
    return tickets_.slot(rank, chunk).bytes + layout_.shift();
  }
  bool fits_inline(uint64_t length) const HETCOMM_UNDER_BATON;

  void publish(uint64_t chunk) HETCOMM_UNDER_BATON;
  void publish_bytes(uint64_t at, uint32_t block, uint64_t chunk,
                     uint64_t length) HETCOMM_UNDER_BATON;
  void publish_block(uint32_t block, uint64_t chunk, uint64_t bytes) HETCOMM_UNDER_BATON;
  void publish_all_but_own_share(uint64_t chunk, uint64_t length) HETCOMM_UNDER_BATON;
  void sum_own_share(uint64_t chunk) HETCOMM_UNDER_BATON;

  void consume(uint64_t chunk) HETCOMM_UNDER_BATON;
  void consume_blocks(uint64_t chunk) HETCOMM_UNDER_BATON;
  void consume_shares(uint64_t chunk) HETCOMM_UNDER_BATON;
  void consume_sum(uint64_t chunk) HETCOMM_UNDER_BATON;
  void sum_inline(std::byte* to, uint64_t length, uint64_t chunk) HETCOMM_UNDER_BATON;
  void sum(std::byte* out, uint64_t bytes, uint32_t ranks, const std::byte* own, uint64_t at,
           uint64_t chunk) HETCOMM_UNDER_BATON;
  void keep_own_block(uint64_t chunk) HETCOMM_UNDER_BATON;
  void copy_out(uint32_t block, uint64_t chunk, uint32_t writer) HETCOMM_UNDER_BATON;
  void note_read(uint32_t rank, uint64_t chunk, uint64_t bytes) HETCOMM_UNDER_BATON {
    if (!copier_.measures() || rank == index_) return;
    copier_.note_read(tickets_.way_of(rank, chunk), bytes);
  }

  SharedArena arena_;
  const uint32_t ranks_;
  const uint32_t index_;
  ChunkTickets tickets_;
  ArenaSleepers sleepers_;
  ChunkCopier copier_;
  ChunkLayout layout_;
  CallCheck check_;
  DeviceRunner on_devices_;
  std::vector<const std::byte*> inputs_;  // inputs of a sum, by rank
  Task* task_ = nullptr;                  // the current operation's task; null: none
  TaskCopies* copies_ = nullptr;          // copies of |task_|
  bool some_ask_ = false;                 // a rank has requested long chunks
  bool is_long_ = false;                  // this rank has switched to long chunks
  uint64_t chunks_ = 0;                   // the number of chunks known so far
  uint64_t published_ = 0;
  uint64_t reduced_ = 0;
  uint64_t consumed_ = 0;
};

}  // namespace hetcomm::collectives
