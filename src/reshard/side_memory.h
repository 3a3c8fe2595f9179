// SideMemory holds the memory of one tensor on one side (source or destination) of one execution.
//
// The processor accesses only host memory. Device memory is staged: data to be packed, and data
// that has arrived, is copied message by message. If staging is not possible or would be slow, host
// memory serves as a shadow of the device memory. The shadow is loaded before the execution, or
// stored after it. Callers hold the baton, except in bind().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/memory/staging.h"
#include "src/core/progress/operation.h"
#include "src/reshard/program.h"

namespace hetcomm::reshard {

class SideMemory {
 public:
  // Sets the buffer, which was checked against |side|. |side| outlives this object. May throw
  // std::bad_alloc.
  void bind(const hetcomm_buffer_t& buffer, const ProgramSide& side);

  bool has_shadow() const { return shadowed_; }
  bool is_staged() const { return memory_ != nullptr && !shadowed_; }
  // Returns whether the device can copy many rows at regular distances in one call.
  bool copies_rows() const { return memory_->device().table->copy_rows_to_host != nullptr; }
  // Returns whether the rows of |region| are so long that a device copies them one by one at almost
  // full speed.
  static bool has_long_rows(const Region& region) { return region.row_bytes >= kLongRow; }
  // Returns the memory handle of the buffer, or null if it has none.
  Memory* named_memory() const { return reinterpret_cast<Memory*>(buffer_.memory); }
  BufferPiece piece() const { return {named_memory(), buffer_.offset, buffer_.length}; }
  // Returns the address of byte 0 of the buffer. With a shadow, returns the address to which an
  // offset in the buffer is added to get the address in the shadow. Not valid if the memory is
  // staged.
  std::byte* host() const { return reinterpret_cast<std::byte*>(base_); }
  // Returns the |length| bytes from |offset| as a buffer for a message.
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) const;

  // Moves the host memory to |abandoned| if abandoned copies may still access it, so that it is not
  // reused.
  void leave_to(AbandonedCopies& abandoned) noexcept;
  // Starts copying the used range to the shadow, and notifies |handler| when the copy ends. May
  // throw std::bad_alloc.
  void load(Staging& staging, CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Starts copying |regions| of this tensor, which have been written in the shadow, to the device.
  void store(Staging& staging, const std::vector<const Region*>& regions,
             CopyHandler& handler) HETCOMM_UNDER_BATON;

 private:
  static constexpr uint64_t kLongRow = 64u << 10;
  // Staging requires at least kMinCopyBytes on average for each plane, which is one device copy,
  // and at least kMinRow bytes on average for each row. A device that cannot copy many rows in one
  // call requires kLongRow bytes on average for each row.
  static constexpr uint64_t kMinCopyBytes = 4u << 10;
  static constexpr uint64_t kMinRow = 64;
  bool worth_staging() const;

  static std::byte* make_room(std::unique_ptr<std::byte[]>& memory, uint64_t& size, uint64_t bytes);

  hetcomm_buffer_t buffer_{};
  const ProgramSide* side_ = nullptr;
  Memory* memory_ = nullptr;  // device memory that the CPU cannot access; null for host memory
  uintptr_t base_ = 0;
  bool shadowed_ = false;
  std::unique_ptr<std::byte[]> shadow_;
  uint64_t shadow_bytes_ = 0;
  std::unique_ptr<std::byte[]> rows_;  // data to store, without gaps
  uint64_t rows_bytes_ = 0;
  CopyJob job_;
};

}  // namespace hetcomm::reshard
