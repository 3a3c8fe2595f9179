#include "src/core/collectives/side.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "src/base/copy.h"
#include "src/core/device/memory.h"

namespace hetcomm::collectives {
namespace {

bool on_device(const BufferPiece& piece) {
  return piece.length > 0 && piece.memory != nullptr && !piece.memory->host_accessible();
}

}  // namespace

std::byte* Side::host_address(const BufferPiece& piece) {
  if (piece.memory == nullptr) return reinterpret_cast<std::byte*>(piece.offset);
  return static_cast<std::byte*>(piece.memory->address()) + piece.offset;
}

Code Side::fill(const hetcomm_buffer_t* buffers, size_t count, bool blocks, std::string* text) {
  if (blocks) {
    many_.reserve(count);
    lengths_.reserve(count);
  }
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t& buffer = buffers[i];
    auto* memory = reinterpret_cast<Memory*>(buffer.memory);
    if (memory != nullptr && !memory->contains(buffer.offset, buffer.length)) {
      *text = fmt::format("buffer {}: offset {} and length {} end past the memory's {} bytes", i,
                          buffer.offset, buffer.length, memory->size());
      return Code::kOutOfRange;
    }
    const BufferPiece piece{memory, buffer.offset, buffer.length};
    if (buffer.length > UINT64_MAX - length_) {
      *text = "the buffers together are longer than 2^64 bytes";
      return Code::kOutOfRange;
    }
    if (blocks) {
      starts_.push_back(length_);
      lengths_.push_back(buffer.length);
      many_.push_back(piece);
    } else {
      one_ = piece;
    }
    length_ += buffer.length;
    on_device_ = on_device_ || on_device(piece);
  }
  return Code::kOk;
}

void Side::reset() {
  one_ = {};
  many_.clear();
  lengths_.clear();
  starts_.clear();
  length_ = stride_ = 0;
  on_device_ = is_direct_ = false;
  host_ = nullptr;
  room_.reset();
}

bool Side::is_multiple_of(uint64_t element_bytes) const {
  const auto whole = [element_bytes](uint64_t bytes) { return bytes % element_bytes == 0; };
  return many_.empty() ? whole(length_) : std::all_of(lengths_.begin(), lengths_.end(), whole);
}

void Side::append_pieces(std::vector<BufferPiece>* pieces) const {
  if (one_.memory != nullptr) pieces->push_back(one_);
  for (const BufferPiece& piece : many_) {
    if (piece.memory != nullptr) pieces->push_back(piece);
  }
}

void Side::go_direct(Staging& staging) {
  is_direct_ = is_staged() && staging.takes_any_memory(pieces());
}

bool Side::make_room(Staging& staging) {
  room_ = staging.stand_in(length_, pieces());
  host_ = room_.get();
  return static_cast<bool>(room_);
}

bool Side::is_near(const Side& other) const {
  const std::vector<BufferPiece> own = pieces();
  const std::vector<BufferPiece> others = other.pieces();
  const auto device_of = [](const std::vector<BufferPiece>& pieces) {
    const auto found = std::find_if(pieces.begin(), pieces.end(), on_device);
    return found == pieces.end() ? SIZE_MAX : found->memory->device_index();
  };
  return device_of(own) == device_of(others);
}

std::vector<BufferPiece> Side::pieces() const {
  return many_.empty() ? std::vector<BufferPiece>{one_} : many_;
}

BufferPiece Side::device_piece(uint32_t block) const {
  return on_device(many_.empty() ? one_ : many_[block]) ? piece_of(block) : BufferPiece{};
}

uint64_t Side::longest_block() const {
  if (!many_.empty()) return *std::max_element(lengths_.begin(), lengths_.end());
  return stride_ > 0 ? std::min(stride_, length_) : length_;
}

uint64_t Side::slice_bytes(Staging& staging, StreamDirection direction) const {
  return staging.slice_bytes(direction, pieces());
}

void Side::add_rows(const BufferPiece& piece, uint64_t at, uint64_t bytes, std::byte* host,
                    StreamDirection direction, std::vector<StagedRows>* rows) {
  if (on_device(piece)) {
    rows->push_back(
        {.memory = piece.memory, .rows = one_row(piece.offset + at, bytes), .host = host});
  } else if (direction == StreamDirection::kToHost) {
    copy_long(host, host_address(piece) + at, bytes);
  } else {
    copy_long(host_address(piece) + at, host, bytes);
  }
}

void Side::append_range(uint32_t block, uint64_t offset, uint64_t bytes, std::byte* host,
                        StreamDirection direction, std::vector<StagedRows>* rows) const {
  BufferPiece piece = piece_of(block);
  if (host_ != nullptr) piece = {nullptr, reinterpret_cast<uint64_t>(address(block)), piece.length};
  add_rows(piece, offset, bytes, host, direction, rows);
}

uint64_t Side::block_count() const {
  if (!many_.empty()) return many_.size();
  const uint64_t block = longest_block();
  return block > 0 ? length_ / block : 0;
}

void Side::append_rows(uint64_t offset, uint64_t bytes, StreamDirection direction,
                       std::vector<StagedRows>* rows) const {
  const uint64_t block_bytes = many_.empty() ? longest_block() : 0;
  if (many_.empty() && offset == 0 && bytes >= block_bytes) {
    // The copy covers whole blocks, which are contiguous.
    add_rows(one_, 0, length_, host_, direction, rows);
    return;
  }
  for (uint64_t block = 0; block < block_count(); ++block) {
    const uint64_t length = many_.empty() ? block_bytes : lengths_[block];
    if (offset >= length) continue;
    const uint64_t part = std::min(bytes, length - offset);
    const BufferPiece& piece = many_.empty() ? one_ : many_[block];
    const uint64_t at = many_.empty() ? block * block_bytes + offset : offset;
    std::byte* const host = host_ + (many_.empty() ? at : starts_[block] + offset);
    add_rows(piece, at, part, host, direction, rows);
  }
}

bool Side::scale(Staging& staging, reduce::Type type, uint64_t element_bytes, double factor) {
  if (length_ == 0) return true;
  StandIns::Memory scaled = staging.stand_in(length_, {});
  if (!scaled) return false;
  if (many_.empty()) {
    reduce::scale(type, scaled.get(), address(0), length_ / element_bytes, factor);
  }
  for (uint32_t block = 0; block < many_.size(); ++block) {
    if (lengths_[block] == 0) continue;
    reduce::scale(type, scaled.get() + starts_[block], address(block),
                  lengths_[block] / element_bytes, factor);
  }
  room_ = std::move(scaled);
  host_ = room_.get();
  return true;
}

}  // namespace hetcomm::collectives
