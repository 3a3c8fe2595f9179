// AsymmetricFence serves flag protocols of the kind "store mine, then look at yours". Each side of
// such a protocol needs a full fence between its store and its load. If one side runs far more
// often than the other, the rare side can pay for both sides by membarrier(). The frequent side
// then needs only a compiler fence.
#pragma once

#include <atomic>

namespace hetcomm {

// Fences the two sides of one flag protocol between threads of this process. Each protocol has its
// own object. All members are [any-thread] after set_up().
class AsymmetricFence {
 public:
  // Registers the process. Without the kernel's support both sides fence in full.
  void set_up();
  // Fences on the frequent side.
  void light() const {
    if (asymmetric_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  // Fences on the rare side: in full, on every processor that runs a thread of this process.
  void heavy() const;
  // Returns whether the kernel supports asymmetric fences; light() then costs nothing.
  bool asymmetric() const { return asymmetric_; }

 private:
  bool asymmetric_ = false;
};

// Registers this process, so that barriers from other processes reach it, and tries a barrier.
// Returns false if barriers are not available here.
bool register_global_membarrier();
// Fences in full on all processors that run a registered process, this one included. Returns false
// if the kernel refused.
[[nodiscard]] bool global_membarrier();

}  // namespace hetcomm
