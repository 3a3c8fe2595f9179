// Operations that have completed lately and that somebody waits for among many, so that who waits
// for any of them need not look at all.
//
// A hint: what was overwritten, or completed while it was being marked, is found by looking at all,
// whenever count() has changed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "src/core/operation.h"

namespace hetcomm {

class RecentCompletions {
 public:
  // |operation| is complete; |marked|: it had a place in a list before that. Under the baton.
  void note(Operation& operation, bool marked) {
    if (marked) [[unlikely]]
      keep(operation);
    note_change();
  }
  // A request was released, or something else has ended that somebody may wait for. Under the
  // baton.
  void note_change() {
    count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // Changes with every end of an operation. [any-thread]
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

  // Shows complete ones to is_mine(), the oldest first, until that returns true. [any-thread]
  template <typename IsMine>
  void find(IsMine&& is_mine) {
    const uint32_t in = in_.load(std::memory_order_acquire);
    uint32_t out = out_.load(std::memory_order_relaxed);
    const auto left = static_cast<int32_t>(in - out);
    if (left <= 0) return;  // another thread has seen more already
    if (left > static_cast<int32_t>(kKept)) out = in - kKept;
    bool all_reported = true;
    for (; out != in; ++out) {
      Operation* const operation = kept_[out % kKept].load(std::memory_order_relaxed);
      if (operation->state() == OperationState::kComplete) {
        if (is_mine(*operation)) return;
        all_reported = false;
      } else if (all_reported) {
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
  std::atomic<uint32_t> out_{0};  // find() begins there; two threads may set it back
  std::array<std::atomic<Operation*>, kKept> kept_{};
};

}  // namespace hetcomm
