// The background thread of thread mode. It makes progress while no thread of the caller does.
//
// It drives the engine and sleeps in the poller until a waiter begins to poll, or until callers
// wait so often that they make all progress. Then it parks, so that a blocking wait costs no thread
// switch, and resumes when no thread has waited for a moment.
//
//   drive + sleep in poller  --evicted, in the way-->  parked  --unused for a moment-->  drive ...
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/baton_lock.h"
#include "src/core/progress/spin_policy.h"
#include "src/system/processors.h"

namespace hetcomm {

// Whether it pays to poll long for expected data. Data from a slow link or device arrives later.
class LongPolls {
 public:
  // Whether to poll long now. A long poll is tried occasionally even while long polls do not pay.
  bool pay() { return score_ >= 0 || ++since_trial_ % kTrialsApart == 0; }
  void note_found() { score_ = std::min(score_ + 1, kMax); }
  // A fruitless long poll costs more than a successful one saves.
  void note_vain() { score_ = std::max(score_ - 2, -kMax); }

 private:
  static constexpr int kMax = 4;
  static constexpr uint32_t kTrialsApart = 32;
  int score_ = kMax;
  uint32_t since_trial_ = 0;
};

class Background {
 public:
  Background(BatonLock& baton, const SpinPolicy& spin) : baton_(baton), spin_(spin) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Enables thread mode. Call this before anything else.
  void enable() { enabled_ = true; }
  bool enabled() const { return enabled_; }
  // Keeps the thread on |processors| (see narrow_thread()), whether or not it is already running.
  void place(const ProcessorSet& processors) HETCOMM_UNDER_BATON;
  // Starts the thread in thread mode, if it is not running. Until then, waiting threads make
  // progress.
  Status start() HETCOMM_UNDER_BATON;
  // Joins the thread. Nothing may be pending.
  void stop();

  // All functions below are [any-thread].
  // Records that a thread of the caller begins to poll or has just woken up, and makes progress
  // itself.
  void note_use() {
    add_one(uses_);
    note_wait();
  }
  // Records that a thread of the caller waits and leaves nothing pending.
  void note_wait() { add_one(waits_); }
  // Records that work was left pending. Shortens a long nap of the thread.
  void note_pending() {
    if (long_nap_.load(std::memory_order_relaxed) != 0 &&
        patience_.load(std::memory_order_relaxed) != 0) {
      wake();
    }
  }
  // Asks the thread to leave the sleeper's role and the poller.
  void evict() { evicted_.store(1, std::memory_order_release); }
  // Call this when a waiter that was the sleeper has left. Ends the deep nap of a thread that
  // relied on it.
  void end_deep_nap() {
    if (deep_nap_.load(std::memory_order_seq_cst) == 0) return;
    note_use();  // not immediately: this waiter was active just now
    wake();
  }

 private:
  // Adds one without locking. An addition lost to a race costs one nap.
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
  uint32_t naps_beside_sleeper_ = 0;  // used by this thread only
  bool polls_long_ = false;           // used by this thread only
  LongPolls long_polls_;              // used by this thread only
  alignas(64) std::atomic<uint64_t> uses_{0};
  std::atomic<uint64_t> waits_{0};
  alignas(64) std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> evicted_{0};   // asks the thread to leave the poller
  std::atomic<uint32_t> long_nap_{0};  // parked for long, or until it is woken
  std::atomic<uint32_t> deep_nap_{0};  // parked while a waiter sleeps long
  std::atomic<uint32_t> patience_{1};  // number of further fruitless wake-ups accepted
  std::atomic<uint32_t> park_word_{0};
};

}  // namespace hetcomm
