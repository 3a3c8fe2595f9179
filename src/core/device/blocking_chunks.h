// BlockingChunks provides host memory for blocking copies. It keeps some of the memory for reuse.
// [any-thread]
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace hetcomm {

class BlockingChunks {
 public:
  using Memory = std::unique_ptr<std::byte[]>;
  // The largest size of a chunk. NVIDIA's OpenCL (driver 580) may hang forever in a copy of more
  // than 4 MiB to unpinned host memory while its threads complete commands of another queue.
  static constexpr uint64_t kBytes = 2u << 20;

  // Returns a chunk of at least |bytes|, which must not exceed kBytes. May throw std::bad_alloc.
  Memory take(uint64_t bytes) {
    if (bytes > kMinKeptBytes) {
      const std::lock_guard lock(mutex_);
      for (Memory& kept : kept_) {
        if (kept != nullptr) return std::move(kept);
      }
    }
    return Memory(new std::byte[bytes > kMinKeptBytes ? kBytes : bytes]);
  }
  // Gives back |memory|, which take(bytes) returned.
  void give(Memory memory, uint64_t bytes) {
    if (bytes <= kMinKeptBytes) return;
    const std::lock_guard lock(mutex_);
    for (Memory& kept : kept_) {
      if (kept != nullptr) continue;
      kept = std::move(memory);
      return;
    }
  }

 private:
  static constexpr uint64_t kMinKeptBytes = 64u << 10;  // shorter chunks are cheap to allocate
  std::mutex mutex_;
  std::array<Memory, 2> kept_;  // under |mutex_|
};

}  // namespace hetcomm
