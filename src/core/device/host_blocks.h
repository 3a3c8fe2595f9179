// HostBlocks provides blocks of host memory for temporary use. While there are users, it keeps
// unused blocks for reuse, up to a bound. Callers hold the baton.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/device/abandoned_copies.h"

namespace hetcomm {

class HostBlocks {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    uint64_t size = 0;
  };

  // Keeps up to |most_kept| unused bytes, plus the size of the largest block so far if that is
  // larger than |most_kept|. Memory that |abandoned| copies may touch is not reused. |abandoned|
  // outlives this object, and may be null.
  explicit HostBlocks(uint64_t most_kept, AbandonedCopies* abandoned = nullptr)
      : most_kept_(most_kept), abandoned_(abandoned) {}
  ~HostBlocks() { drop_kept(); }
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  void add_user() HETCOMM_UNDER_BATON { ++users_; }
  // Removes a user. The last one to leave frees all kept blocks.
  void drop_user() HETCOMM_UNDER_BATON {
    if (--users_ > 0) return;
    drop_kept();
    largest_ = 0;
  }

  // Returns a block of at least |bytes|. Reuses a kept block only if it has at most twice |bytes|,
  // and at most the larger of |bytes| and |most|. May throw std::bad_alloc.
  Block take(uint64_t bytes, uint64_t most = UINT64_MAX) HETCOMM_UNDER_BATON {
    Kept* best = nullptr;
    // Only this list and the next one have blocks that fit.
    const size_t list = list_of(bytes);
    for (size_t at = list; at < std::min(list + 2, lists_.size()); ++at) {
      size_t left = kMaxLookedAt;
      for (Kept* each = lists_[at]; each != nullptr && left > 0; each = each->next, --left) {
        const bool fits =
            each->size >= bytes && each->size / 2 <= bytes && each->size <= std::max(bytes, most);
        if (fits && (best == nullptr || each->size < best->size)) best = each;
      }
    }
    return best == nullptr ? allocate(bytes) : take_out(*best);
  }
  // Gives back |block|. If too many bytes are kept, frees the blocks that were given back first.
  // Frees all kept blocks while there is no user.
  void give(Block block) HETCOMM_UNDER_BATON {
    const HostRange range = HostRange::of(block.memory.get(), block.size);
    if (abandoned_ != nullptr && abandoned_->keep_if_touched(range, block.memory)) [[unlikely]] {
      --blocks_;
      return;
    }
    keep(std::move(block));
    const uint64_t most = most_kept_ + (largest_ > most_kept_ ? largest_ : 0);
    while (kept_bytes_ > most || users_ == 0) {
      if (oldest_ == nullptr) return;
      static_cast<void>(take_out(*oldest_));
      --blocks_;
    }
  }

 private:
  // The header of a kept block. The lists are intrusive, so give() allocates no memory.
  struct Kept {
    uint64_t size;  // bytes of the block
    Kept* newer;    // the kept block that was given back next
    Kept* older;
    Kept* next;  // in the list for its size, latest first
    Kept* previous;
  };
  // The most blocks of one list that take() checks.
  static constexpr size_t kMaxLookedAt = 16;

  // Blocks whose sizes have the same highest bit are in one list.
  static size_t list_of(uint64_t size) { return std::bit_width(std::max<uint64_t>(size, 1)) - 1u; }

  void keep(Block block) HETCOMM_UNDER_BATON {
    Kept*& list = lists_[list_of(block.size)];
    Kept* const kept = new (block.memory.release()) Kept{
        .size = block.size, .newer = nullptr, .older = newest_, .next = list, .previous = nullptr};
    (newest_ != nullptr ? newest_->newer : oldest_) = kept;
    newest_ = kept;
    if (list != nullptr) list->previous = kept;
    list = kept;
    kept_bytes_ += kept->size;
  }
  Block take_out(Kept& kept) HETCOMM_UNDER_BATON {
    (kept.newer != nullptr ? kept.newer->older : newest_) = kept.older;
    (kept.older != nullptr ? kept.older->newer : oldest_) = kept.newer;
    (kept.previous != nullptr ? kept.previous->next : lists_[list_of(kept.size)]) = kept.next;
    if (kept.next != nullptr) kept.next->previous = kept.previous;
    kept_bytes_ -= kept.size;
    return {std::unique_ptr<std::byte[]>(reinterpret_cast<std::byte*>(&kept)), kept.size};
  }
  Block allocate(uint64_t bytes) HETCOMM_UNDER_BATON {
    Block block{nullptr, std::max<uint64_t>(bytes, sizeof(Kept))};
    try {
      block.memory.reset(new std::byte[block.size]);
    } catch (const std::bad_alloc&) {
      // Kept blocks may be using up the memory.
      drop_kept();
      block.memory.reset(new std::byte[block.size]);
    }
    largest_ = std::max(largest_, block.size);
    ++blocks_;
    return block;
  }
  void drop_kept() HETCOMM_UNDER_BATON {
    while (oldest_ != nullptr) {
      static_cast<void>(take_out(*oldest_));
      --blocks_;
    }
  }

  const uint64_t most_kept_;
  AbandonedCopies* const abandoned_;
  uint64_t largest_ = 0;
  uint64_t kept_bytes_ = 0;
  size_t blocks_ = 0;  // number of blocks kept and in use
  size_t users_ = 0;
  Kept* oldest_ = nullptr;
  Kept* newest_ = nullptr;
  std::array<Kept*, 64> lists_{};
};

}  // namespace hetcomm
