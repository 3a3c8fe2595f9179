// In debug builds the overlap guard detects receives whose buffers overlap those of other pending
// receives of the context. The contents of such memory would be undefined. Receives on a user's
// stream are exempt, because each starts only after the receives before it have ended.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <mutex>
#include <utility>

#include "src/core/device/memory.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// [any-thread]
class OverlapGuard {
 public:
#ifdef NDEBUG
  static constexpr bool kActive = false;
#else
  static constexpr bool kActive = true;
#endif

  // Records the pieces of |receive|. Returns false and records nothing if a piece overlaps another
  // piece of it or of a pending receive.
  bool add(const Operation& receive) {
    if (receive.options.on_stream) return true;
    const std::lock_guard lock(mutex_);
    size_t added = 0;
    const bool fits = for_each_range(receive, [&](const Range& range) {
      const auto next = ranges_.upper_bound(range.first);
      if (next != ranges_.end() && next->first.first == range.first.first &&
          next->first.second < range.second) {
        return false;
      }
      if (next != ranges_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first.first == range.first.first && previous->second > range.first.second) {
          return false;
        }
      }
      ranges_.insert(range);
      ++added;
      return true;
    });
    if (!fits) erase(receive, added);
    return fits;
  }
  void remove(const Operation& receive) {
    if (receive.options.on_stream) return;
    const std::lock_guard lock(mutex_);
    erase(receive, SIZE_MAX);
  }

 private:
  // Memory and offset; for host memory, null and the address.
  using Start = std::pair<const Memory*, uint64_t>;
  using Range = std::pair<const Start, uint64_t>;  // start and end

  template <typename Use>
  static bool for_each_range(const Operation& receive, Use&& use) {
    if (receive.buffers.pieces.empty()) {
      const auto address = reinterpret_cast<uint64_t>(receive.buffers.extent.iov_base);
      return receive.length == 0 || use(Range{{nullptr, address}, address + receive.length});
    }
    for (const BufferPiece& piece : receive.buffers.pieces) {
      if (piece.length == 0) continue;
      const bool on_host = piece.memory != nullptr && piece.memory->host_accessible();
      const uint64_t base = on_host ? reinterpret_cast<uint64_t>(piece.memory->address()) : 0;
      const uint64_t begin = base + piece.offset;
      if (!use(Range{{on_host ? nullptr : piece.memory, begin}, begin + piece.length}))
        return false;
    }
    return true;
  }
  void erase(const Operation& receive, size_t most) {
    for_each_range(receive, [&](const Range& range) {
      if (most == 0) return false;
      --most;
      ranges_.erase(range.first);
      return true;
    });
  }

  std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::map<Start, uint64_t> ranges_{&memory_};
};

}  // namespace hetcomm
