// The memory of one side of a collective operation, sent or received, as host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/datatype.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/staging.h"
#include "src/core/progress/operation.h"
#include "src/reduce/reduce.h"

namespace hetcomm::collectives {

class Side {
 public:
  // Takes over |count| buffers of the caller, into a fresh side. With |blocks| there is a buffer
  // for each rank. |*text| says what is wrong with them.
  Code fill(const hetcomm_buffer_t* buffers, size_t count, bool blocks, std::string* text);
  void reset() HETCOMM_UNDER_BATON;

  // Bytes in all, and of each buffer where there is one for each rank.
  uint64_t length() const { return length_; }
  const std::vector<uint64_t>& lengths() const { return lengths_; }
  // Bytes of the block where there is a buffer for each rank, else bytes in all.
  uint64_t length_of(uint32_t block) const { return many_.empty() ? length_ : lengths_[block]; }
  // Bytes from one block to the next in a buffer that holds all of them.
  void set_stride(uint64_t bytes) { stride_ = bytes; }
  // Whether every block is a whole number of elements.
  bool is_multiple_of(uint64_t element_bytes) const;
  // Whether some of it is memory that the CPU cannot touch, so that it is staged.
  bool is_staged() const { return on_device_ && length_ > 0 && !is_direct_; }
  // Nothing is to stand for it, if its devices copy from and to any memory by themselves.
  void go_direct(Staging& staging) HETCOMM_UNDER_BATON;
  bool is_direct() const { return is_direct_; }

  // Appends the memories that it lies in.
  void append_pieces(std::vector<BufferPiece>* pieces) const;
  // Takes host memory that stands for the buffers; false when there is none.
  bool make_room(Staging& staging) HETCOMM_UNDER_BATON;
  // Whether the other side is the same buffer, as in an operation in place.
  bool is_buffer_of(const Side& other) const {
    return many_.empty() && other.many_.empty() && one_ == other.one_;
  }
  // Memory from |host| on, which lives longer, stands for this one as well.
  void share_room(std::byte* host) { host_ = host; }
  // Whether one memory could stand for both sides, at full speed for the devices of both.
  bool is_near(const Side& other) const;
  // Bytes of the longest block, and number of blocks.
  uint64_t longest_block() const;
  uint64_t block_count() const;
  // How long copies between devices and what stands for them should be.
  uint64_t slice_bytes(Staging& staging, StreamDirection direction) const HETCOMM_UNDER_BATON;
  // Appends, for copies between the buffers and what stands for them, |bytes| from |offset| on of
  // each block that lies on a device. Copies those of other blocks. There is room in |rows| for as
  // many as there are blocks.
  void append_rows(uint64_t offset, uint64_t bytes, StreamDirection direction,
                   std::vector<StagedRows>* rows) const;
  // Copies |bytes| from |offset| on of a block to |host|, or from there. Appends what devices are
  // to copy: there is room for it.
  void append_part(uint32_t block, uint64_t offset, uint64_t bytes, std::byte* host,
                   StreamDirection direction, std::vector<StagedRows>* rows) const;
  // Replaces what is sent by a copy whose elements are multiplied by |factor|; false when there is
  // no memory for it.
  bool scale(Staging& staging, reduce::Type type, uint64_t element_bytes,
             double factor) HETCOMM_UNDER_BATON;

  // Where a block lies.
  BufferPiece place(uint32_t block) const {
    if (!many_.empty()) return many_[block];
    return {one_.memory, one_.offset + block * stride_, one_.length};
  }
  // Where a block lies if that is on a device; else the memory is null.
  BufferPiece device_place(uint32_t block) const;
  std::byte* address(uint32_t block) const {
    if (host_ != nullptr) return host_ + (many_.empty() ? block * stride_ : starts_[block]);
    return host_address(place(block));
  }

 private:
  static std::byte* host_address(const BufferPiece& piece);
  std::vector<BufferPiece> pieces() const;
  // Adds |bytes| of |piece| from |at| on, or copies them, where |host| stands for them.
  static void add_rows(const BufferPiece& piece, uint64_t at, uint64_t bytes, std::byte* host,
                       StreamDirection direction, std::vector<StagedRows>* rows);

  BufferPiece one_{};              // the buffer where there is one; blocks are in a row
  std::vector<BufferPiece> many_;  // a buffer for each rank
  std::vector<uint64_t> lengths_;  // lengths of |many_|
  std::vector<uint64_t> starts_;   // where |many_| begin in |host_|
  uint64_t length_ = 0;
  uint64_t stride_ = 0;
  bool on_device_ = false;
  bool is_direct_ = false;
  std::byte* host_ = nullptr;  // host memory that stands for the buffers; null: none does
  StandIns::Memory room_;      // the same, unless the other side has it
};

}  // namespace hetcomm::collectives
