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

// Returns whether region |first| in |one| and region |second| in |other| are the same bytes.
bool is_same_memory(const SideMemory& one, const Region& first, const SideMemory& other,
                    const Region& second);

class ExecutionMemory {
 public:
  // |program| outlives this object.
  explicit ExecutionMemory(const Program& program);

  // Stores the buffers of all tensors, which have been checked. Adds to |pieces| those that this
  // rank uses and that have a memory handle. May throw std::bad_alloc. [any-thread]
  void bind(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
            std::vector<BufferPiece>& pieces);
  std::vector<SideMemory>& sources() { return sources_; }
  std::vector<SideMemory>& destinations() { return destinations_; }
  // Allocates scratch memory if the program needs any. May throw std::bad_alloc.
  void take_scratch(HostBlocks& blocks) HETCOMM_UNDER_BATON;
  void give_scratch(HostBlocks& blocks) HETCOMM_UNDER_BATON;
  // Moves the memory that abandoned copies can still access to |abandoned|.
  void leave_to(AbandonedCopies& abandoned) noexcept;

  // --- regions of the program ---

  // Returns the buffer that contains |region|, or null if the region is in the execution's private
  // memory.
  const SideMemory* side_of(const Region& region) const;
  // Returns the staged memory of |region|, or null if the processor can access the region.
  const SideMemory* staged_side_of(const Region& region) const;
  std::byte* scratch() const { return scratch_.memory.get(); }
  // Returns |region| as a side of a copy. |sums| is the phase's memory for sums, or null if it has
  // none.
  CopySide copy_side_of(const Region& region, std::byte* sums = nullptr) const;
  bool converts(const Region& region) const;
  // Returns the number of bytes that |region| takes in a message.
  uint64_t packed_bytes(const Region& region) const;
  // Returns whether this rank's devices copy |arrival| directly from its source. If so, sets
  // |*rows| to the rows to copy.
  bool stays_on_device(const ProgramArrival& arrival, CommonRows* rows) const;
  // Returns the bytes of host memory that are needed for an arrival from this rank's own memory,
  // before and after conversion. Returns 0 if none of the data is on a device, if it is already in
  // place, or if stays_on_device() returns true.
  uint64_t room_of(const ProgramArrival& arrival) const;

 private:
  const Program& program_;
  std::vector<SideMemory> sources_;       // indexed by tensor
  std::vector<SideMemory> destinations_;  // indexed by tensor
  // Indexed by tensor: true if devices copy directly from its source to its destination.
  std::vector<bool> copies_between_;
  HostBlocks::Block scratch_;
};

}  // namespace hetcomm::reshard
