// The background thread of thread mode. It makes progress while no thread of the caller's does.
//
// It drives and sleeps in the poller until a waiter begins to poll, or callers wait so often that
// they make all progress. Then it parks, so that a blocking wait costs no switch, and comes back
// when nobody has waited for a moment.
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

// Whether it pays to poll long for expected data. Data of a slow link or device comes later.
class LongPolls {
 public:
  // A long poll is tried now and then, even while long polls do not pay.
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

  // Thread mode was chosen. Call this before anything else.
  void enable() { enabled_ = true; }
  bool enabled() const { return enabled_; }
  // Keeps the thread on |processors| (see narrow_thread()), whether or not it runs already.
  void place(const ProcessorSet& processors) HETCOMM_UNDER_BATON;
  // Starts the thread in thread mode, if it does not run yet. Until then, waiting threads drive.
  Status start() HETCOMM_UNDER_BATON;
  // Joins the thread. Nothing may be pending.
  void stop();

  // All of the following are [any-thread].
  // A thread of the caller's begins to poll or has just ended a sleep. It makes progress itself.
  void note_use() {
    add_one(uses_);
    note_wait();
  }
  // A thread of the caller's waits and leaves nothing pending.
  void note_wait() { add_one(waits_); }
  // Work was left pending. If the thread takes a long nap, it looks sooner.
  void note_pending() {
    if (long_nap_.load(std::memory_order_relaxed) != 0 &&
        patience_.load(std::memory_order_relaxed) != 0) {
      wake();
    }
  }
  // Asks the thread to leave the sleeper's role and the poller.
  void evict() { evicted_.store(1, std::memory_order_release); }
  // A waiter that was the sleeper has left. If the thread relied on it, it watches again.
  void end_deep_nap() {
    if (deep_nap_.load(std::memory_order_seq_cst) == 0) return;
    note_use();  // not at once: this waiter was here just now
    wake();
  }

 private:
  // An addition that is lost to a race costs a nap.
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
  std::atomic<uint32_t> long_nap_{0};  // parked until it is woken, or for long
  std::atomic<uint32_t> deep_nap_{0};  // parked while a waiter sleeps long
  std::atomic<uint32_t> patience_{1};  // how many more fruitless wake-ups it accepts
  std::atomic<uint32_t> park_word_{0};
};

}  // namespace hetcomm
