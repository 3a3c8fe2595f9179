#include "src/reshard/side_memory.h"

#include <cstring>

#include "src/base/copy.h"

namespace hetcomm::reshard {
std::byte* SideMemory::make_room(std::unique_ptr<std::byte[]>& memory, uint64_t& size,
                                 uint64_t bytes) {
  if (size < bytes) {
    memory.reset(new std::byte[bytes]);
    size = bytes;
  }
  return memory.get();
}

bool SideMemory::worth_staging() const {
  // A single row takes one copy with or without a shadow.
  if (side_->rows == 1) return true;
  if (!copies_rows()) return side_->used_bytes >= side_->rows * kLongRow;
  return side_->used_bytes >= side_->planes * kMinCopyBytes &&
         side_->used_bytes >= side_->rows * kMinRow;
}

void SideMemory::bind(const hetcomm_buffer_t& buffer, const ProgramSide& side) {
  buffer_ = buffer;
  side_ = &side;
  auto* memory = reinterpret_cast<Memory*>(buffer.memory);
  const bool on_host = memory == nullptr || memory->host_accessible();
  memory_ = on_host ? nullptr : memory;
  shadowed_ = false;
  base_ = memory == nullptr ? buffer.offset
          : on_host         ? reinterpret_cast<uintptr_t>(memory->address()) + buffer.offset
                            : 0;
  if (on_host || side.used_begin == side.used_end) return;
  if (!side.is_added && worth_staging()) return;
  shadowed_ = true;
  const std::byte* const shadow =
      make_room(shadow_, shadow_bytes_, side.used_end - side.used_begin);
  base_ = reinterpret_cast<uintptr_t>(shadow) - side.used_begin;
}

hetcomm_buffer_t SideMemory::part(uint64_t offset, uint64_t length) const {
  if (memory_ == nullptr || shadowed_) return hetcomm_buffer_host(host() + offset, length);
  return {buffer_.memory, buffer_.offset + offset, length};
}

void SideMemory::leave_to(AbandonedCopies& abandoned) noexcept {
  if (abandoned.keep_if_touched(HostRange::of(shadow_.get(), shadow_bytes_), shadow_)) {
    shadow_bytes_ = 0;
  }
  if (abandoned.keep_if_touched(HostRange::of(rows_.get(), rows_bytes_), rows_)) rows_bytes_ = 0;
}

void SideMemory::load(Staging& staging, CopyHandler& handler) {
  staging.start(job_, StreamDirection::kToHost, {piece()}, side_->used_begin, shadow_.get(),
                side_->used_end - side_->used_begin, handler);
}

// Stores only written data, because the bytes in between belong to other code.
void SideMemory::store(Staging& staging, const std::vector<const Region*>& regions,
                       CopyHandler& handler) {
  std::vector<BufferPiece> pieces;
  uint64_t bytes = 0;
  for (const Region* region : regions) {
    bytes += region->bytes();
    for (RowCursor row(*region); row.left() > 0; row.advance(row.left())) {
      const uint64_t begin = buffer_.offset + row.offset();
      if (!pieces.empty() && pieces.back().offset + pieces.back().length == begin) {
        pieces.back().length += row.left();
      } else {
        pieces.push_back({memory_, begin, row.left()});
      }
    }
  }
  std::byte* const rows = make_room(rows_, rows_bytes_, bytes);
  std::byte* next = rows;
  for (const BufferPiece& piece : pieces) {
    copy_long(next, host() + (piece.offset - buffer_.offset), piece.length);
    next += piece.length;
  }
  staging.start(job_, StreamDirection::kFromHost, pieces, 0, rows, bytes, handler);
}

}  // namespace hetcomm::reshard
