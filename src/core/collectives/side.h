// Side holds the buffers that this rank sends in a collective operation, or those into which it
// receives. Host memory, called the stand-in, can take the place of buffers on devices.
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
  // Stores the |count| buffers of the caller in a fresh side. If |blocks| is true, there is a
  // buffer for each rank. On failure, |*text| describes the problem.
  Code fill(const hetcomm_buffer_t* buffers, size_t count, bool blocks, std::string* text);
  void reset() HETCOMM_UNDER_BATON;

  // Return the total length in bytes, and the length of each buffer if there is a buffer for each
  // rank.
  uint64_t length() const { return length_; }
  const std::vector<uint64_t>& lengths() const { return lengths_; }
  // Returns the length of the block if there is a buffer for each rank, and otherwise the total
  // length.
  uint64_t length_of(uint32_t block) const { return many_.empty() ? length_ : lengths_[block]; }
  // Sets the distance in bytes from one block to the next in a buffer that holds all blocks.
  void set_stride(uint64_t bytes) { stride_ = bytes; }
  // Returns whether every block holds a whole number of elements.
  bool is_multiple_of(uint64_t element_bytes) const;
  // Returns whether this side needs a stand-in, because the CPU cannot access some of its memory.
  bool is_staged() const { return on_device_ && length_ > 0 && !is_direct_; }
  // Makes the side direct, so that it needs no stand-in, if its devices copy memory shared with
  // other processes at full speed.
  void go_direct(Staging& staging) HETCOMM_UNDER_BATON;
  bool is_direct() const { return is_direct_; }

  // Appends this side's buffers, except those without a Memory.
  void append_pieces(std::vector<BufferPiece>* pieces) const;
  // Allocates host memory as the stand-in for the buffers. Returns false if out of memory.
  bool make_room(Staging& staging) HETCOMM_UNDER_BATON;
  // Returns whether |other| is the same buffer, as in an in-place operation.
  bool is_buffer_of(const Side& other) const {
    return many_.empty() && other.many_.empty() && one_ == other.one_;
  }
  // Uses the memory at |host| as the stand-in of this side as well. The memory must outlive this
  // side.
  void share_room(std::byte* host) { host_ = host; }
  // Returns whether one stand-in can serve both sides at full speed, because their devices are the
  // same.
  bool is_near(const Side& other) const;
  // Return the length of the longest block, and the number of blocks.
  uint64_t longest_block() const;
  uint64_t block_count() const;
  // Returns the recommended length of copies between devices and their stand-in memory.
  uint64_t slice_bytes(Staging& staging, StreamDirection direction) const HETCOMM_UNDER_BATON;
  // Appends the copies that devices must make between the buffers and their stand-in, for |bytes|
  // of each block, starting at |offset|. Copies blocks in host memory immediately. |rows| must have
  // capacity for one entry per block.
  void append_rows(uint64_t offset, uint64_t bytes, StreamDirection direction,
                   std::vector<StagedRows>* rows) const;
  // Copies |bytes| of a block, starting at |offset|, to or from |host|. If a device must make the
  // copy, appends it to |rows| instead, which must have capacity for it.
  void append_range(uint32_t block, uint64_t offset, uint64_t bytes, std::byte* host,
                    StreamDirection direction, std::vector<StagedRows>* rows) const;
  // Replaces the data to send with a copy whose elements are multiplied by |factor|. Returns false
  // if out of memory.
  bool scale(Staging& staging, reduce::Type type, uint64_t element_bytes,
             double factor) HETCOMM_UNDER_BATON;

  // Returns the location of a block.
  BufferPiece piece_of(uint32_t block) const {
    if (!many_.empty()) return many_[block];
    return {one_.memory, one_.offset + block * stride_, one_.length};
  }
  // Returns the location of a block on a device. The memory is null if the block is not on a
  // device.
  BufferPiece device_piece(uint32_t block) const;
  std::byte* address(uint32_t block) const {
    if (host_ != nullptr) return host_ + (many_.empty() ? block * stride_ : starts_[block]);
    return host_address(piece_of(block));
  }

 private:
  static std::byte* host_address(const BufferPiece& piece);
  std::vector<BufferPiece> pieces() const;
  // If |piece| is on a device, adds a row for |bytes| of it, starting at |at|. Otherwise copies
  // these bytes immediately. |host| is the stand-in for them.
  static void add_rows(const BufferPiece& piece, uint64_t at, uint64_t bytes, std::byte* host,
                       StreamDirection direction, std::vector<StagedRows>* rows);

  BufferPiece one_{};              // the buffer, if there is only one; its blocks are contiguous
  std::vector<BufferPiece> many_;  // a buffer for each rank
  std::vector<uint64_t> lengths_;  // lengths of |many_|
  std::vector<uint64_t> starts_;   // offsets of |many_| in |host_|
  uint64_t length_ = 0;
  uint64_t stride_ = 0;
  bool on_device_ = false;
  bool is_direct_ = false;
  std::byte* host_ = nullptr;  // stand-in host memory for the buffers; null: none
  StandIns::Memory room_;      // owns |host_| unless the other side does
};

}  // namespace hetcomm::collectives
