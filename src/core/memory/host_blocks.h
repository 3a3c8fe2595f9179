// HostBlocks: blocks of host memory that are used for a while, and kept for use again up to a bound.
// Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"

namespace hetcomm {

class HostBlocks {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    uint64_t size = 0;
  };

  // Keeps |most_kept| bytes that nobody uses.
  explicit HostBlocks(uint64_t most_kept) : most_kept_(most_kept) {}
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  // A block of at least |bytes|, and of at most twice as many. May throw std::bad_alloc.
  Block take(uint64_t bytes) HETCOMM_UNDER_BATON {
    size_t best = kept_.size();
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i].size < bytes || kept_[i].size / 2 > bytes) continue;
      if (best == kept_.size() || kept_[i].size < kept_[best].size) best = i;
    }
    if (best == kept_.size()) {
      kept_.reserve(++blocks_);  // give() never needs memory
      try {
        return {std::unique_ptr<std::byte[]>(new std::byte[bytes]), bytes};
      } catch (const std::bad_alloc&) {
        --blocks_;
        throw;
      }
    }
    Block block = std::move(kept_[best]);
    kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(best));
    kept_bytes_ -= block.size;
    return block;
  }
  // The ones that were given first go where there are too many.
  void give(Block block) HETCOMM_UNDER_BATON {
    kept_bytes_ += block.size;
    kept_.push_back(std::move(block));
    while (kept_bytes_ > most_kept_) {
      kept_bytes_ -= kept_.front().size;
      kept_.erase(kept_.begin());
      --blocks_;
    }
  }

 private:
  const uint64_t most_kept_;
  uint64_t kept_bytes_ = 0;
  size_t blocks_ = 0;  // kept and in use
  std::vector<Block> kept_;
};

}  // namespace hetcomm
