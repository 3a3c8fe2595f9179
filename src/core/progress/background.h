// Background runs the thread of thread mode (HETCOMM_PROGRESS=thread). The thread makes progress
// while no application thread does.
//
// The thread drives the engine and sleeps in the poller until a waiter begins to poll, or until
// callers wait so often that they make all progress themselves. The thread then parks, so that a
// blocking wait costs no thread switch. It resumes when no thread has waited for a moment.
//
//   drive + sleep in poller  --evicted, in the way-->  parked  --no waits lately-->  drive ...
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/background_policy.h"
#include "src/core/progress/baton_lock.h"
#include "src/core/progress/spin_policy.h"
#include "src/system/processors.h"

namespace hetcomm {

class Background {
 public:
  Background(BatonLock& baton, const SpinPolicy& spin) : baton_(baton), spin_(spin) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Enables thread mode. Call this before any other function.
  void enable() { enabled_ = true; }
  bool enabled() const { return enabled_; }
  // Restricts the thread to |processors| (see narrow_thread()), whether or not it is already
  // running.
  void place(const ProcessorSet& processors) HETCOMM_UNDER_BATON;
  // Starts the thread if thread mode is enabled and the thread is not running yet. Until then, only
  // waiting threads make progress.
  Status start() HETCOMM_UNDER_BATON;
  // Joins the thread. No operation may be pending.
  void stop();

  // All functions below are [any-thread].

  // Records that an application thread begins to poll or has just woken up, and now makes progress.
  void note_use() {
    add_one(uses_);
    note_wait();
  }
  // Records that an application thread waited and left nothing pending.
  void note_wait() { add_one(waits_); }
  // Records that work was left pending. Wakes the background thread from a long nap, unless its
  // recent wake-ups were fruitless.
  void note_pending() {
    if (long_nap_.load(std::memory_order_relaxed) != 0 &&
        patience_.load(std::memory_order_relaxed) != 0) {
      wake();
    }
  }
  // Requests that the thread leave the poller and the role of the sleeper.
  void evict() { evicted_.store(1, std::memory_order_release); }
  // Call this when a waiter that was the sleeper has left. Ends a deep nap, during which the
  // background thread relies on that waiter.
  void end_deep_nap() {
    if (deep_nap_.load(std::memory_order_seq_cst) == 0) return;
    note_use();  // a waiter was just active, so the thread stays parked a little longer
    wake();
  }

 private:
  // Adds one without an atomic read-modify-write. A race can lose an increment, which costs one
  // nap.
  static void add_one(std::atomic<uint64_t>& count) {
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void run() HETCOMM_EXCLUDES(baton_role);
  void drive() HETCOMM_EXCLUDES(baton_role);
  void park();
  bool nap_long();
  bool nap_short();
  void note_wake(bool of_use);
  void wake();
  bool lock_beside_waiters() HETCOMM_TRY_ACQUIRE(baton_role);
  uint64_t spin_end() HETCOMM_UNDER_BATON;
  bool work_is_left() const;
  bool nobody_is_there() const;
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  BatonLock& baton_;
  const SpinPolicy& spin_;
  bool enabled_ = false;
  ProcessorSet processors_;
  std::thread thread_;
  uint32_t naps_beside_sleeper_ = 0;  // used by the background thread only
  bool polls_long_ = false;           // used by the background thread only
  LongPolls long_polls_;              // used by the background thread only
  alignas(64) std::atomic<uint64_t> uses_{0};
  std::atomic<uint64_t> waits_{0};
  alignas(64) std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> evicted_{0};   // nonzero: the thread must leave the poller
  std::atomic<uint32_t> long_nap_{0};  // nonzero in nap_long(), which note_pending() ends
  std::atomic<uint32_t> deep_nap_{0};  // nonzero during a deep nap, which end_deep_nap() ends
  std::atomic<uint32_t> patience_{1};  // number of further fruitless wake-ups accepted
  std::atomic<uint32_t> park_word_{0};
};

}  // namespace hetcomm
