// Flag protocols of the kind "store mine, then look at yours", where both sides need a full fence
// between store and load and one side runs far more often than the other: membarrier() lets the
// rare side pay for both. The frequent side then needs a compiler fence only.
#pragma once

#include <atomic>

namespace hetcomm {

// A fence between threads of this process, one per protocol. All members are [any-thread] after
// set_up().
class AsymmetricFence {
 public:
  // Registers the process. Without the kernel's support both sides fence in full.
  void set_up();
  // The frequent side.
  void light() const {
    if (asymmetric_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  // The rare side: a full fence on every processor that runs a thread of this process.
  void heavy() const;
  // Returns whether the kernel supports it; then light() costs nothing.
  bool asymmetric() const { return asymmetric_; }

 private:
  bool asymmetric_ = false;
};

// Registers this process, so that the barriers of other processes reach it, and tries one. Returns
// false if they are not available here.
bool register_global_membarrier();
// A full fence on all processors that run a registered process, this one included. False: the
// kernel refused it.
[[nodiscard]] bool global_membarrier();

}  // namespace hetcomm
