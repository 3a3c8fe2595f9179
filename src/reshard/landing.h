// A Landing provides a bounded amount of host memory, in which messages of one direction are packed
// or received. Callers hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/room.h"
#include "src/core/device/host_blocks.h"

namespace hetcomm::reshard {

class Landing {
 public:
  // |blocks| outlives this object.
  Landing(HostBlocks& blocks, uint64_t most_bytes) : blocks_(blocks), most_bytes_(most_bytes) {}
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  // Returns memory of |bytes|, or null if the bound does not allow it now. |must| overrides the
  // bound, so that the oldest work can always continue. May throw std::bad_alloc.
  std::byte* take(uint64_t bytes, bool must) HETCOMM_UNDER_BATON {
    if (used_bytes_ + bytes > most_bytes_ && !must) return nullptr;
    make_room(used_);
    const uint64_t left = most_bytes_ - std::min(used_bytes_, most_bytes_);
    used_.push_back(blocks_.take(bytes, left));
    used_bytes_ += used_.back().size;
    return used_.back().memory.get();
  }
  void give(const std::byte* memory) HETCOMM_UNDER_BATON {
    for (HostBlocks::Block& block : used_) {
      if (block.memory.get() != memory) continue;
      used_bytes_ -= block.size;
      blocks_.give(std::exchange(block, std::move(used_.back())));
      used_.pop_back();
      return;
    }
  }

 private:
  HostBlocks& blocks_;
  const uint64_t most_bytes_;
  uint64_t used_bytes_ = 0;
  std::vector<HostBlocks::Block> used_;
};

}  // namespace hetcomm::reshard
