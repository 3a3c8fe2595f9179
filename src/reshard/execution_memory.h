// ExecutionMemory holds the memory of one execution: the buffers of all tensors on this rank, and
// scratch memory. It also determines how data moves from one region to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/device/host_blocks.h"
#include "src/core/progress/operation.h"
#include "src/reshard/common_rows.h"
#include "src/reshard/program.h"
#include "src/reshard/region.h"
#include "src/reshard/region_copy.h"
#include "src/reshard/side_memory.h"

namespace hetcomm::reshard {

// Returns whether the |first| region, in |one|, and the |second|, in |other|, are the same bytes.
bool is_same_memory(const SideMemory& one, const Region& first, const SideMemory& other,
                    const Region& second);

class ExecutionMemory {
 public:
  // |program| outlives this object.
  explicit ExecutionMemory(const Program& program);

  // Stores the buffers of all tensors, which have been checked. Adds those that this rank uses and
  // that have a memory handle to |pieces|. May throw std::bad_alloc. [any-thread]
  void bind(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
            std::vector<BufferPiece>& pieces);
  std::vector<SideMemory>& sources() { return sources_; }
  std::vector<SideMemory>& destinations() { return destinations_; }
  // Takes scratch memory if the program needs some. May throw std::bad_alloc.
  void take_scratch(HostBlocks& blocks) HETCOMM_UNDER_BATON;
  void give_scratch(HostBlocks& blocks) HETCOMM_UNDER_BATON;
  // Transfers to |abandoned| the memory that abandoned copies may access.
  void leave_to(AbandonedCopies& abandoned) noexcept;

  // --- regions of the program
  // Returns the memory of |region|; null if it is private memory of the execution.
  const SideMemory* side_of(const Region& region) const;
  // Returns the staged memory of |region|; null if the processor can access the region.
  const SideMemory* staged_side_of(const Region& region) const;
  std::byte* scratch() const { return scratch_.memory.get(); }
  // Returns |region| as a side of a copy. |sums| is the phase's memory for sums; null: it has none.
  CopySide copy_side_of(const Region& region, std::byte* sums = nullptr) const;
  bool converts(const Region& region) const;
  // Returns the bytes of |region| in a message.
  uint64_t packed_bytes(const Region& region) const;
  // Returns whether this rank's devices copy |arrival| directly from its source. If so, sets
  // |*rows| to the rows to copy.
  bool stays_on_device(const ProgramArrival& arrival, CommonRows* rows) const;
  // Returns the bytes of host memory that an arrival from this rank's own memory needs, before and
  // after conversion. Returns 0 if none of it is on a device, if it is already in place, or if
  // stays_on_device().
  uint64_t room_of(const ProgramArrival& arrival) const;

 private:
  const Program& program_;
  std::vector<SideMemory> sources_;       // by tensor
  std::vector<SideMemory> destinations_;  // by tensor
  // By tensor: whether devices copy directly from its source to its destination.
  std::vector<bool> copies_between_;
  HostBlocks::Block scratch_;
};

}  // namespace hetcomm::reshard
