// DeviceRunner executes an operation in the arena if the devices of some rank copy directly into
// and out of the slots, so that their memory needs no stand-in in host memory.
//
// Only long device copies are worthwhile (kMinCopyBytes in device_runner.cc), so chunks are long
// and have their own slots. Everything that a rank sends goes through its slot, including its own
// block. A rank fills a slot, publishes the ticket, and computes its part of a sum in its own slot
// once all inputs have arrived. Then it copies its result out of the slots that hold it. Ranks
// without such devices do the same on the CPU. Slots are filled and drained concurrently, chunk by
// chunk.
//
// A core is slow to read lines from the cache of another core with which it shares no cache.
// Therefore a rank can also fill private memory, and then write the data for other ranks past the
// caches. The machine does not report which is faster, so whole operations are measured both ways
// (way_trials.h). Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/collectives/arena_sleepers.h"
#include "src/core/collectives/chunk_layout.h"
#include "src/core/collectives/chunk_tickets.h"
#include "src/core/collectives/shared_arena.h"
#include "src/core/collectives/task.h"
#include "src/core/collectives/task_copies.h"
#include "src/core/collectives/way_trials.h"

namespace hetcomm::collectives {

class DeviceRunner {
 public:
  // |arena|, |tickets| and |sleepers| must outlive this object.
  DeviceRunner(const SharedArena& arena, uint32_t index, ChunkTickets& tickets,
               ArenaSleepers& sleepers);
  DeviceRunner(const DeviceRunner&) = delete;
  DeviceRunner& operator=(const DeviceRunner&) = delete;

  // Returns whether the runner can execute |task|. The result is the same on all ranks.
  bool carries(const Task& task) const HETCOMM_UNDER_BATON;

  // Starts an operation, which uses the next tickets. |task| and |copies| must stay valid until the
  // operation is over or dropped.
  void start(Task& task, TaskCopies& copies) HETCOMM_UNDER_BATON;
  // Advances by one chunk. Returns false if no chunk is ready.
  bool step() HETCOMM_UNDER_BATON;
  bool over() const HETCOMM_UNDER_BATON { return consumed_ == chunks_; }
  // Ends the completed operation, and returns the number of its chunks.
  uint64_t finish() HETCOMM_UNDER_BATON;
  // Returns whether the ticket of |rank| is missing.
  bool misses(uint32_t rank) const HETCOMM_UNDER_BATON;

 private:
  // The number of chunks that this rank can publish before it has finished the first of them.
  static constexpr uint64_t kWindow = SharedArena::kLongSlots / 2;

  uint64_t end_of(uint64_t chunk) const HETCOMM_UNDER_BATON;
  bool all_inputs(uint64_t chunk) HETCOMM_UNDER_BATON;
  // Returns the memory for the data that this rank sends in |chunk|, and for its part of the sum.
  std::byte* own_bytes(uint64_t chunk) const HETCOMM_UNDER_BATON {
    if (memory_ == nullptr) return bytes_of(index_, chunk);
    return memory_ + chunk % kWindow * arena_.long_slot_bytes();
  }
  std::byte* input_of(uint32_t rank, uint64_t chunk) const HETCOMM_UNDER_BATON {
    return rank == index_ ? own_bytes(chunk) : bytes_of(rank, chunk);
  }
  std::byte* bytes_of(uint32_t rank, uint64_t chunk) const HETCOMM_UNDER_BATON {
    return arena_.long_slot(rank, static_cast<uint32_t>(chunk % SharedArena::kLongSlots));
  }
  // Copies the part of |side|'s |block| that is in |chunk| to offset |at| of own_bytes(). If the
  // block is on a device, adds a row for the device to copy instead. |block| has |bytes| bytes.
  void fill_block(const Side& side, uint32_t block, uint64_t bytes, uint64_t chunk,
                  uint64_t at) HETCOMM_UNDER_BATON;
  void drain_block(uint32_t block, uint64_t bytes, uint64_t chunk, uint32_t writer,
                   uint64_t at) HETCOMM_UNDER_BATON;
  void fill(uint64_t chunk) HETCOMM_UNDER_BATON;
  void show(uint64_t chunk, uint64_t from, uint64_t to) HETCOMM_UNDER_BATON;
  void show_inputs(uint64_t chunk) HETCOMM_UNDER_BATON;
  void sum(uint64_t chunk) HETCOMM_UNDER_BATON;
  void drain(uint64_t chunk) HETCOMM_UNDER_BATON;
  void drain_blocks(uint64_t chunk) HETCOMM_UNDER_BATON;

  const SharedArena& arena_;
  const uint32_t index_;
  ChunkTickets& tickets_;
  ArenaSleepers& sleepers_;
  ChunkLayout layout_;
  std::vector<const std::byte*> inputs_;  // inputs of a sum, by rank
  Task* task_ = nullptr;
  TaskCopies* copies_ = nullptr;
  WayTrials ways_;
  std::byte* memory_ = nullptr;  // private memory in which chunks are filled; null: in the slots
  uint64_t started_ns_ = 0;
  bool sums_ = false;
  bool own_block_stays_ = false;  // in place: this rank's block is already in the result
  uint64_t chunks_ = 0;
  // The number of chunks that have reached each stage: filled_ >= published_ >= summed_ >= drained_
  // >= consumed_. Copies for filled and drained chunks may still be running.
  uint64_t filled_ = 0;
  uint64_t published_ = 0;
  uint64_t summed_ = 0;
  uint64_t drained_ = 0;
  uint64_t consumed_ = 0;
};

}  // namespace hetcomm::collectives
