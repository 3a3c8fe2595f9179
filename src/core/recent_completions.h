// Operations that have completed lately and that somebody waits for among many, so that who waits
// for any of them need not look at all.
//
// A hint: what was overwritten, or completed while it was being marked, is found by looking at all.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "src/core/operation.h"

namespace hetcomm {

class RecentCompletions {
 public:
  // Every completion. Under the baton.
  void note(Operation& operation) {
    if (operation.any_place() != 0) [[unlikely]]
      keep(operation);
    count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // Changes with every completion. [any-thread]
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

  // Shows complete ones to is_mine(), the oldest first, until that returns true. [any-thread]
  template <typename IsMine>
  void find(IsMine&& is_mine) {
    const uint32_t in = in_.load(std::memory_order_acquire);
    uint32_t out = out_.load(std::memory_order_relaxed);
    if (in - out > kKept) out = in - kKept;
    bool first = true;
    for (; out != in; ++out) {
      Operation* const operation = kept_[out % kKept].load(std::memory_order_relaxed);
      if (operation->state() == OperationState::kComplete) {
        if (is_mine(*operation)) return;
        first = false;
      } else if (first) {
        out_.store(out + 1, std::memory_order_relaxed);
      }
    }
  }

 private:
  static constexpr uint32_t kKept = 256;

  void keep(Operation& operation) {
    const uint32_t in = in_.load(std::memory_order_relaxed);
    kept_[in % kKept].store(&operation, std::memory_order_relaxed);
    in_.store(in + 1, std::memory_order_release);
  }

  std::atomic<uint64_t> count_{0};
  std::atomic<uint32_t> in_{0};
  std::atomic<uint32_t> out_{0};  // those before it have been reported
  std::array<std::atomic<Operation*>, kKept> kept_{};
};

}  // namespace hetcomm
