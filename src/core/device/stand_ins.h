// StandIns provides host memory that stands for device memory while an operation uses it. Copy
// engines reach the memory at full speed if it could be pinned when it was made. Unused memory is
// kept for reuse, up to a bound, since making it costs more than copying its contents. Callers hold
// the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/device/pinned_memory.h"

namespace hetcomm {

class StandIns {
 public:
  // The kind of a block: its NUMA node, the device that allocates it (null if none does), and
  // whether devices pin it.
  struct BlockKind {
    int node = kAnyNumaNode;
    const Device* allocator = nullptr;
    bool pins = false;
    bool operator==(const BlockKind&) const = default;
  };

 private:
  struct Block {
    PinnedMemory bytes;
    uint64_t size = 0;
    BlockKind kind;
  };

 public:
  // A block that StandIns has lent. Its destructor gives it back.
  class Memory {
   public:
    Memory() = default;
    Memory(Memory&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), block_(std::move(other.block_)) {}
    Memory& operator=(Memory&& other) noexcept HETCOMM_UNDER_BATON {
      reset();
      owner_ = std::exchange(other.owner_, nullptr);
      block_ = std::move(other.block_);
      return *this;
    }
    ~Memory() { reset(); }

    void reset() HETCOMM_UNDER_BATON {
      if (owner_ != nullptr) std::exchange(owner_, nullptr)->give(std::move(block_));
    }
    std::byte* get() const { return block_.bytes.get(); }
    explicit operator bool() const { return owner_ != nullptr; }

   private:
    friend class StandIns;
    StandIns* owner_ = nullptr;
    Block block_;
  };

  // Keeps up to |most_kept| unused bytes, or twice the size of the largest block if that is more.
  // An operation may need one block to send and one to receive. The devices outlive this object.
  // This object outlives the memory that it has lent.
  StandIns(DeviceSet& devices, uint64_t most_kept) : devices_(devices), most_kept_(most_kept) {}
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

  // Returns |size| bytes; empty if out of memory. May throw std::bad_alloc.
  Memory take(uint64_t size, const BlockKind& kind) HETCOMM_UNDER_BATON;

 private:
  static uint64_t rounded(uint64_t size);
  bool take_kept(uint64_t size, const BlockKind& kind, Block* block) HETCOMM_UNDER_BATON;
  bool make(uint64_t size, const BlockKind& kind, Block* block) HETCOMM_UNDER_BATON;
  void give(Block block) HETCOMM_UNDER_BATON;
  void take_back_stranded() HETCOMM_UNDER_BATON;
  void trim(uint64_t most) HETCOMM_UNDER_BATON;

  DeviceSet& devices_;
  const uint64_t most_kept_;
  uint64_t largest_ = 0;
  uint64_t kept_bytes_ = 0;
  size_t made_ = 0;  // number of blocks kept and in use
  std::vector<Block> kept_;
  std::vector<Block> stranded_;  // blocks that abandoned copies may touch
};

}  // namespace hetcomm
