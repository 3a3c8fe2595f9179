// HostBlocks: blocks of host memory that are used for a while, and kept for use again up to a bound,
// while there is somebody who may use them. Under the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/memory/abandoned_copies.h"

namespace hetcomm {

class HostBlocks {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    uint64_t size = 0;
  };

  // Keeps |most_kept| bytes that nobody uses, and besides as many as the largest block has had. What
  // copies may touch that are |abandoned|, which outlives this, is not
  // used again.
  explicit HostBlocks(uint64_t most_kept, AbandonedCopies* abandoned = nullptr)
      : most_kept_(most_kept), abandoned_(abandoned) {}
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  void add_user() HETCOMM_UNDER_BATON { ++users_; }
  // The last one takes all that is kept along.
  void drop_user() HETCOMM_UNDER_BATON {
    if (--users_ > 0) return;
    drop_kept();
    largest_ = 0;
  }

  // A block of at least |bytes|, and of at most twice as many and |most| unless that is less. May
  // throw std::bad_alloc.
  Block take(uint64_t bytes, uint64_t most = UINT64_MAX) HETCOMM_UNDER_BATON {
    size_t best = kept_.size();
    for (size_t i = 0; i < kept_.size(); ++i) {
      const uint64_t size = kept_[i].size;
      if (size < bytes || size / 2 > bytes || size > std::max(bytes, most)) continue;
      if (best == kept_.size() || size < kept_[best].size) best = i;
    }
    if (best == kept_.size()) return allocate(bytes);
    Block block = std::move(kept_[best]);
    kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(best));
    kept_bytes_ -= block.size;
    return block;
  }
  // The ones that were given first go where there are too many.
  void give(Block block) HETCOMM_UNDER_BATON {
    const HostRange range = HostRange::of(block.memory.get(), block.size);
    if (abandoned_ != nullptr && abandoned_->keep_if_touched(range, block.memory)) [[unlikely]] {
      --blocks_;
      return;
    }
    kept_bytes_ += block.size;
    kept_.push_back(std::move(block));
    const uint64_t most = most_kept_ + (largest_ > most_kept_ ? largest_ : 0);
    while (kept_bytes_ > most || users_ == 0) {
      if (kept_.empty()) return;
      kept_bytes_ -= kept_.front().size;
      kept_.erase(kept_.begin());
      --blocks_;
    }
  }

 private:
  Block allocate(uint64_t bytes) HETCOMM_UNDER_BATON {
    kept_.reserve(blocks_ + 1);  // give() never needs memory
    Block block;
    try {
      block.memory.reset(new std::byte[bytes]);
    } catch (const std::bad_alloc&) {
      // What is kept may be in the way.
      drop_kept();
      block.memory.reset(new std::byte[bytes]);
    }
    block.size = bytes;
    largest_ = std::max(largest_, bytes);
    ++blocks_;
    return block;
  }
  void drop_kept() HETCOMM_UNDER_BATON {
    blocks_ -= kept_.size();
    kept_.clear();
    kept_bytes_ = 0;
  }

  const uint64_t most_kept_;
  AbandonedCopies* const abandoned_;
  uint64_t largest_ = 0;
  uint64_t kept_bytes_ = 0;
  size_t blocks_ = 0;  // kept and in use
  size_t users_ = 0;
  std::vector<Block> kept_;
};

}  // namespace hetcomm
