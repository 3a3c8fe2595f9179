// SpinPolicy decides how long a waiting thread polls before it sleeps, and when it yields to other
// threads.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "src/system/clock.h"
#include "src/system/yielder.h"

namespace hetcomm {

class SpinPolicy {
 public:
  // Sets the policy. If |adapts| is true, a waiter polls for a shorter time while unrelated
  // processes compete for its processor. Call this before any use.
  void set_up(uint64_t spin_ns, bool adapts, bool yields);

  // Sets how long a waiter polls before it sleeps. [any-thread]
  void set_spin(uint64_t spin_ns) {
    spin_ticks_.store(spin_ns * ticks_per_us_ / 1000, std::memory_order_relaxed);
  }
  // Sets whether a polling thread yields the processor in every round. [any-thread]
  void set_yields(bool yields) { yields_.store(yields, std::memory_order_relaxed); }

  uint64_t spin_ticks() const { return spin_ticks_.load(std::memory_order_relaxed); }
  bool adapts() const { return adapts_; }
  bool yields() const {
    return yields_.load(std::memory_order_relaxed) ||
           near_work_.load(std::memory_order_relaxed) != 0;
  }
  // Mark the beginning and the end of a time in which other threads of this process work on the
  // awaited data, on this host's processors. Polling threads yield to them. Call the two functions
  // in pairs. [any-thread]
  void begin_near_work() { near_work_.fetch_add(1, std::memory_order_relaxed); }
  void end_near_work() { near_work_.fetch_sub(1, std::memory_order_relaxed); }
  uint64_t ticks_in_us(uint64_t us) const { return us * ticks_per_us_; }

  // Yields the processor and returns true. If recent yields took long, executes a pause instruction
  // instead and returns false. If yields() is true, always yields, because the thread that runs
  // instead is most likely the awaited one.
  bool let_others_run() {
    if (!yields()) return yielder_.yield();
    sched_yield();
    return true;
  }
  // Pauses or yields once, for a thread that then polls again immediately.
  void pause_once() const {
    if (yields()) {
      sched_yield();
    } else {
      cpu_relax();
    }
  }

 private:
  uint64_t ticks_per_us_ = 1;
  std::atomic<uint64_t> spin_ticks_{0};
  std::atomic<bool> yields_{false};
  std::atomic<uint32_t> near_work_{0};
  bool adapts_ = true;
  Yielder yielder_;
};

}  // namespace hetcomm
