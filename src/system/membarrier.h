// AsymmetricFence is for protocols in which each of two threads stores its own flag and then loads
// the flag of the other. Each side of such a protocol needs a full fence between its store and its
// load. If one side runs far more often than the other, the rare side can call membarrier(), and
// the frequent side then needs only a compiler fence.
#pragma once

#include <atomic>

namespace hetcomm {

// The fence of one such protocol between threads of this process. All members are [any-thread]
// after set_up().
class AsymmetricFence {
 public:
  // Registers the process with the kernel. If the kernel does not support this, both sides use full
  // fences.
  void set_up();
  // The fence of the frequent side.
  void light() const {
    if (asymmetric_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  // The fence of the rare side: a full fence on every processor that runs a thread of this process.
  void heavy() const;
  // Returns whether the kernel supports asymmetric fences. If so, light() executes no instruction.
  bool asymmetric() const { return asymmetric_; }

 private:
  bool asymmetric_ = false;
};

// Registers this process for the barriers of other processes, and tries a barrier. Returns false if
// the kernel does not support them or forbids them.
bool register_global_membarrier();
// Executes a full fence on all processors that run a registered process, including this one.
// Returns false if the kernel refuses.
[[nodiscard]] bool global_membarrier();

}  // namespace hetcomm
