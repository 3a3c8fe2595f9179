// The memory of one tensor on one side, source or destination, in one execution.
//
// The processor touches host memory only. Device memory is staged: what is packed or has arrived is
// copied message by message. Where that does not do, host memory represents it, a shadow, which is
// loaded before the execution or stored after it. Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/core/memory/memory.h"
#include "src/core/memory/staging.h"
#include "src/core/progress/operation.h"
#include "src/reshard/program.h"

namespace hetcomm::reshard {

class SideMemory {
 public:
  // |buffer| was checked against |side|, which outlives this. May throw std::bad_alloc.
  void bind(const hetcomm_buffer_t& buffer, const ProgramSide& side);

  bool has_shadow() const { return shadowed_; }
  bool is_staged() const { return memory_ != nullptr && !shadowed_; }
  // Its device copies rows at regular distances at once.
  bool copies_rows() const { return memory_->device().table->copy_rows_to_host != nullptr; }
  // Rows that a device copies one by one about as fast as it copies at all.
  static bool has_long_rows(const Region& region) { return region.row_bytes >= kLongRow; }
  // The memory of the buffer, if it has a handle.
  Memory* named_memory() const { return reinterpret_cast<Memory*>(buffer_.memory); }
  BufferPiece piece() const { return {named_memory(), buffer_.offset, buffer_.length}; }
  // Where byte 0 of the buffer lies, or would lie in the shadow. Not if it is staged.
  std::byte* host() const { return reinterpret_cast<std::byte*>(base_); }
  // The |length| bytes from |offset| on, as a message takes them.
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) const;

  // Copies that were |abandoned| may touch its host memory, which is not used again then.
  void leave_to(AbandonedCopies& abandoned) noexcept;
  // Start copies of what is used; |handler| hears of the end. May throw std::bad_alloc.
  void load(Staging& staging, CopyHandler& handler) HETCOMM_UNDER_BATON;
  // |regions| of this tensor have been written in the shadow.
  void store(Staging& staging, const std::vector<const Region*>& regions,
             CopyHandler& handler) HETCOMM_UNDER_BATON;

 private:
  static constexpr uint64_t kLongRow = 64u << 10;
  // Less on average is not worth a copy of its own, and rows not a place among those of a copy.
  static constexpr uint64_t kMinCopyBytes = 4u << 10;
  static constexpr uint64_t kMinRow = 64;
  bool worth_staging() const;

  static std::byte* make_room(std::unique_ptr<std::byte[]>& memory, uint64_t& size, uint64_t bytes);

  hetcomm_buffer_t buffer_{};
  const ProgramSide* side_ = nullptr;
  Memory* memory_ = nullptr;  // of a device that the processor cannot touch; null: host
  uintptr_t base_ = 0;
  bool shadowed_ = false;
  std::unique_ptr<std::byte[]> shadow_;
  uint64_t shadow_bytes_ = 0;
  std::unique_ptr<std::byte[]> rows_;  // what is stored, without gaps
  uint64_t rows_bytes_ = 0;
  CopyJob job_;
};

}  // namespace hetcomm::reshard
