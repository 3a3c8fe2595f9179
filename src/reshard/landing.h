// Landing: host memory in which messages of one direction are packed or land, up to a bound. Blocks
// are kept and used again. Under the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "src/base/baton_role.h"

namespace hetcomm::reshard {

class Landing {
 public:
  explicit Landing(uint64_t most_bytes) : most_bytes_(most_bytes) {}
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  // Null where the bound does not allow it now. |must|: the bound does not count; the oldest work
  // can always go on. Throws std::bad_alloc.
  std::byte* take(uint64_t bytes, bool must) HETCOMM_UNDER_BATON {
    Block* best = nullptr;
    for (Block& block : blocks_) {
      if (block.used || block.size < bytes) continue;
      if (best == nullptr || block.size < best->size) best = &block;
    }
    if (best == nullptr) {
      if (held_ + bytes > most_bytes_) drop_unused();
      if (held_ + bytes > most_bytes_ && !must) return nullptr;
      blocks_.reserve(blocks_.size() + 1);
      std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);
      blocks_.push_back({std::move(memory), bytes, false});
      held_ += bytes;
      best = &blocks_.back();
    }
    best->used = true;
    return best->memory.get();
  }
  void give(const std::byte* memory) HETCOMM_UNDER_BATON {
    for (Block& block : blocks_) {
      if (block.memory.get() == memory) block.used = false;
    }
  }

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    uint64_t size;
    bool used;
  };
  void drop_unused() HETCOMM_UNDER_BATON {
    std::erase_if(blocks_, [this](const Block& block) HETCOMM_UNDER_BATON {
      if (!block.used) held_ -= block.size;
      return !block.used;
    });
  }

  const uint64_t most_bytes_;
  uint64_t held_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace hetcomm::reshard
