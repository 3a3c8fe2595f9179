// The memory of one tensor on one side (source or destination) of one execution.
//
// The processor touches only host memory. Device memory is staged: data to pack, or data that has
// arrived, is copied message by message. If staging does not suffice, host memory represents the
// device memory as a shadow, which is loaded before the execution or stored after it. Under the
// baton.
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
  // Whether its device copies many rows at regular distances in one call.
  bool copies_rows() const { return memory_->device().table->copy_rows_to_host != nullptr; }
  // Whether a device copies these rows one by one almost at its full speed.
  static bool has_long_rows(const Region& region) { return region.row_bytes >= kLongRow; }
  // The memory of the buffer, if it has a handle.
  Memory* named_memory() const { return reinterpret_cast<Memory*>(buffer_.memory); }
  BufferPiece piece() const { return {named_memory(), buffer_.offset, buffer_.length}; }
  // Address of byte 0 of the buffer, or of its place relative to the shadow. Not valid if it is
  // staged.
  std::byte* host() const { return reinterpret_cast<std::byte*>(base_); }
  // The |length| bytes from |offset| on, in the form that a message takes.
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) const;

  // Hands its host memory to |abandoned| if abandoned copies may touch it; it is then not reused.
  void leave_to(AbandonedCopies& abandoned) noexcept;
  // Starts to copy the used part; |handler| is told of the end. May throw std::bad_alloc.
  void load(Staging& staging, CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Stores |regions| of this tensor, which have been written in the shadow.
  void store(Staging& staging, const std::vector<const Region*>& regions,
             CopyHandler& handler) HETCOMM_UNDER_BATON;

 private:
  static constexpr uint64_t kLongRow = 64u << 10;
  // A lower average does not justify a separate copy, or for rows a place among those of a copy.
  static constexpr uint64_t kMinCopyBytes = 4u << 10;
  static constexpr uint64_t kMinRow = 64;
  bool worth_staging() const;

  static std::byte* make_room(std::unique_ptr<std::byte[]>& memory, uint64_t& size, uint64_t bytes);

  hetcomm_buffer_t buffer_{};
  const ProgramSide* side_ = nullptr;
  Memory* memory_ = nullptr;  // of a device that the processor cannot touch; null: host memory
  uintptr_t base_ = 0;
  bool shadowed_ = false;
  std::unique_ptr<std::byte[]> shadow_;
  uint64_t shadow_bytes_ = 0;
  std::unique_ptr<std::byte[]> rows_;  // the data to store, without gaps
  uint64_t rows_bytes_ = 0;
  CopyJob job_;
};

}  // namespace hetcomm::reshard
