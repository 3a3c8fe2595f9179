// RecentCompletions lists operations that have completed recently. A thread that waits for any of
// many operations checks this list first, so that it need not check all of its operations.
//
// The list is only a hint, because an entry may be overwritten, or an operation may complete while
// its |wait_index| is being set. The waiter finds such an operation because it checks all of its
// operations whenever one has ended.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class RecentCompletions {
 public:
  // Records |operation|, which has completed and had a |wait_index|.
  void keep(Operation& operation) HETCOMM_UNDER_BATON {
    const uint32_t in = in_.load(std::memory_order_relaxed);
    kept_[in % kKept].store(&operation, std::memory_order_relaxed);
    in_.store(in + 1, std::memory_order_release);
  }

  // Calls is_mine() for recently completed operations, oldest first, until it returns true.
  // [any-thread]
  template <typename IsMine>
  void find(IsMine&& is_mine) {
    const uint32_t in = in_.load(std::memory_order_acquire);
    uint32_t out = out_.load(std::memory_order_relaxed);
    const auto left = static_cast<int32_t>(in - out);
    if (left <= 0) return;  // another thread has already read further
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

  std::atomic<uint32_t> in_{0};
  std::atomic<uint32_t> out_{0};  // where find() begins; two racing threads may move it back
  std::array<std::atomic<Operation*>, kKept> kept_{};
};

}  // namespace hetcomm
