#include "src/core/device/stand_ins.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "src/base/room.h"

namespace hetcomm {

// Returns |size| rounded up, so operations of similar sizes can share blocks. In blocks of more
// than 64 KiB, less than an eighth is unused.
uint64_t StandIns::rounded(uint64_t size) {
  constexpr uint64_t kSmallest = 64u << 10;
  if (size <= kSmallest) return kSmallest;
  const uint64_t step = std::bit_floor(size) / 8;
  return size > UINT64_MAX - step ? size : (size + step - 1) / step * step;
}

StandIns::Memory StandIns::take(uint64_t size, const BlockKind& kind) {
  Memory memory;
  make_room(kept_, made_ + 1 - kept_.size());  // so give() does not allocate
  if (!stranded_.empty()) [[unlikely]]
    take_back_stranded();
  const uint64_t bytes = rounded(size);
  const BlockKind pageable{.node = kind.node, .allocator = kind.allocator, .pins = false};
  Block* const block = &memory.block_;
  if (!take_kept(bytes, kind, block) &&
      !(devices_.calls().has_holds() && take_kept(bytes, pageable, block))) {
    const bool made = make(bytes, kind, block);
    const bool could_not_pin = made && block->kind.pins && !block->bytes.is_pinned();
    if ((!made || could_not_pin) && !kept_.empty()) {
      // Kept blocks may be using up the memory.
      if (made) --made_;
      trim(0);
      *block = {};
      if (!make(bytes, kind, block)) return memory;
    } else if (!made) {
      return memory;
    }
  }
  block->bytes.meet_devices(devices_);
  memory.owner_ = this;
  return memory;
}

bool StandIns::take_kept(uint64_t size, const BlockKind& kind, Block* block) {
  auto best = kept_.end();
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    if (each->size < size || each->size / 2 > size || each->kind != kind) continue;
    if (best == kept_.end() || each->size < best->size) best = each;
  }
  if (best == kept_.end()) return false;
  *block = std::move(*best);
  kept_.erase(best);
  kept_bytes_ -= block->size;
  return true;
}

bool StandIns::make(uint64_t size, const BlockKind& kind, Block* block) {
  block->kind = kind;
  if (!block->bytes.allocate_unless_held(devices_, kind.allocator, size, kind.node,
                                         &block->kind.pins)) {
    return false;
  }
  block->size = size;
  largest_ = std::max(largest_, size);
  ++made_;
  return true;
}

void StandIns::take_back_stranded() {
  for (Block& block : std::exchange(stranded_, {})) give(std::move(block));
}

void StandIns::give(Block block) {
  if (devices_.abandoned().touch(block.bytes.range())) [[unlikely]] {
    try {
      stranded_.push_back(std::move(block));
    } catch (const std::bad_alloc&) {
      --made_;  // the block is freed when the copy has ended
    }
    return;
  }
  kept_bytes_ += block.size;
  kept_.push_back(std::move(block));
  trim(std::max(most_kept_, 2 * largest_));
}

// Frees the blocks that were given back first, until at most |most| bytes are kept. Keeps pinned
// blocks while a stream is held back: unpinning would be deferred, and kept blocks can be reused.
void StandIns::trim(uint64_t most) {
  const bool unpins = !devices_.calls().has_holds();
  for (auto each = kept_.begin(); each != kept_.end() && kept_bytes_ > most;) {
    if (each->kind.pins && !unpins) {
      ++each;
      continue;
    }
    kept_bytes_ -= each->size;
    each = kept_.erase(each);
    --made_;
  }
}

}  // namespace hetcomm
