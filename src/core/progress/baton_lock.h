// BatonLock implements the baton, which is the lock of the state of the core and the transports. It
// also owns Passes, through which the holder makes progress, and Sleepers and Tally, with which a
// holder that releases the baton wakes other threads.
//
// A call that finds the baton free does its work directly. If the baton is taken, a submission is
// added to a lock-free queue, which the holder drains before it releases the baton. After releasing
// it, the thread wakes waiters if operations have completed.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/passes.h"
#include "src/core/progress/sleepers.h"
#include "src/core/progress/submission_queue.h"
#include "src/core/progress/tally.h"
#include "src/system/biased_lock.h"
#include "src/system/membarrier.h"

namespace hetcomm {

class BatonLock {
 public:
  explicit BatonLock(Sweeper& sweeper) : passes_(sweeper, sleepers_) {}
  BatonLock(const BatonLock&) = delete;
  BatonLock& operator=(const BatonLock&) = delete;

  // Call this before any other function.
  Status start(BiasedLock::Bias bias);

  // Releases the baton at the end of a scope. The caller must have taken the baton.
  class HETCOMM_SCOPED_CAPABILITY Held {
   public:
    explicit Held(BatonLock& baton) HETCOMM_UNDER_BATON : baton_(baton) {}
    ~Held() HETCOMM_RELEASE() { baton_.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    BatonLock& baton_;
  };

  // The functions down to leave_as_user() take the baton or release it. [any-thread]
  bool try_lock() HETCOMM_TRY_ACQUIRE(baton_role) { return lock_.try_lock(); }
  // Like try_lock(), for calls on the data path. It is cheapest if only one thread makes such
  // calls.
  bool try_lock_as_user() HETCOMM_TRY_ACQUIRE(baton_role) { return lock_.try_lock_as_user(); }
  // Takes the baton, in order to report a completion under it, if this is cheap (see
  // BiasedLock::try_enter_as_user()). After a failure, no other thread is reporting under the
  // baton, and this thread must claim the operation that it reports.
  bool try_enter_as_user() HETCOMM_TRY_ACQUIRE(baton_role) {
    if (lock_.try_enter_as_user()) [[likely]]
      return true;
    if (lock_.sole_user_inside()) [[unlikely]]
      await_sole_user();
    drain_if_queued();
    return false;
  }
  void lock() HETCOMM_ACQUIRE(baton_role) {
    if (!try_lock()) lock_contended();
  }
  // Releases the baton. Inlining is forced because most calls on the data path end with it.
  [[gnu::always_inline]] void unlock() HETCOMM_RELEASE(baton_role) {
    if (!submitted_.empty()) drain();
    give_up();
    drain_if_queued();
  }
  // Releases the baton after try_enter_as_user(), if nothing was started and nothing completed.
  void leave_as_user() HETCOMM_RELEASE(baton_role) {
    unlock_word();
    fence_.light();
    drain_if_queued();
  }

  // Leaves the pending |operation| to the holder of the baton, or starts it if the baton is free by
  // then. [any-thread]
  void submit(Operation& operation) HETCOMM_EXCLUDES(baton_role);

  // Returns whether a thread spins for the baton. [any-thread]
  bool is_wanted() const { return contenders_.load(std::memory_order_relaxed) != 0; }
  // Lets threads that spin for the baton take it. Call this after unlock().
  void give_way() const;
  bool looks_free() const { return lock_.looks_free(); }  // [any-thread]
  // Sleeps until the baton is released, but only for a short time. The caller must then try to take
  // the baton again, and call stop_awaiting() when it stops trying.
  void await();
  void stop_awaiting() { awaited_.store(0, std::memory_order_relaxed); }
  // Orders this thread against a thread that releases the baton, so that at least one of them sees
  // what the other stored before. Calls of this function are rare, so it is the expensive side of
  // the fence.
  void fence() const { fence_.heavy(); }

  // Wakes a thread that sleeps in the poller. Call this before any action that can leave work that
  // no file descriptor signals.
  void begin_work() HETCOMM_UNDER_BATON {
    if (passes_.sleep_is_prepared()) [[unlikely]]
      passes_.interrupt_sleep();
  }
  // Starts the operations in the submission queue.
  void drain() HETCOMM_UNDER_BATON;
  void drain_queued() HETCOMM_UNDER_BATON {
    if (!submitted_.empty()) [[unlikely]]
      drain();
  }

  // The functions of these objects state which calls need the baton.
  Passes& passes() { return passes_; }
  Sleepers& sleepers() { return sleepers_; }
  Tally& tally() { return tally_; }
  const Tally& tally() const { return tally_; }

 private:
  // Other threads must see completions before this thread counts the sleepers, and must see that
  // the baton is free before this thread checks the queue again. The expensive side of the fence is
  // in the threads that go to sleep or add to the queue.
  void give_up() HETCOMM_RELEASE(baton_role) {
    const bool wake = tally_.take_changed();
    unlock_word();
    fence_.light();
    if (awaited_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      pass_on();
    if (wake && sleepers_.some_are_asleep()) sleepers_.wake();
  }
  void drain_if_queued() HETCOMM_EXCLUDES(baton_role) {
    if (!submitted_.empty()) [[unlikely]]
      drain_after_unlock();
  }
  void drain_after_unlock() HETCOMM_EXCLUDES(baton_role);
  void lock_contended() HETCOMM_ACQUIRE(baton_role);
  void await_sole_user() HETCOMM_EXCLUDES(baton_role);
  // Clang's thread-safety analysis does not know that the lock word represents the baton.
  void unlock_word() HETCOMM_RELEASE(baton_role) HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
    lock_.unlock();
  }
  void pass_on();

  AsymmetricFence fence_;
  BiasedLock lock_;
  alignas(64) SubmissionQueue submitted_;
  std::atomic<uint32_t> contenders_{0};
  std::atomic<uint32_t> awaited_{0};  // nonzero while a thread sleeps in await()
  Sleepers sleepers_;
  Tally tally_;
  Passes passes_;
};

}  // namespace hetcomm
