// Waiter implements a blocking wait. First the calling thread holds the baton and polls. It
// releases the baton when another thread wants it. After a while the thread sleeps: in the poller
// if no other thread does, otherwise on the futex word of Sleepers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/progress/background.h"
#include "src/core/progress/baton_lock.h"
#include "src/core/progress/spin_policy.h"
#include "src/system/clock.h"

namespace hetcomm {

// |Done| is a function that returns whether the wait is over. It is called only by the waiting
// thread, with or without the baton.
template <typename Done>
class Waiter {
 public:
  // The waiter polls for |spin_ticks| before it sleeps.
  Waiter(BatonLock& baton, SpinPolicy& policy, Background& background, uint64_t deadline_ns,
         uint64_t spin_ticks, Done& done)
      : baton_(baton),
        policy_(policy),
        background_(background),
        deadline_ns_(deadline_ns),
        spin_ticks_(spin_ticks),
        done_(done) {}
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Waits until done() returns true or the deadline has passed. Returns false in the latter case.
  bool wait() HETCOMM_EXCLUDES(baton_role);

 private:
  // A waiter that has polled for this long without success yields to other threads.
  static constexpr uint64_t kEagerUs = 5;
  // While unrelated processes compete for the processor, the waiter sleeps after polling for this
  // long, because the peer may need this processor.
  static constexpr uint64_t kBesideStrangersUs = 100;

  bool poll() HETCOMM_UNDER_BATON;
  void take_over_watch() HETCOMM_UNDER_BATON;
  void sleep() HETCOMM_EXCLUDES(baton_role);
  void sleep_in_poller() HETCOMM_EXCLUDES(baton_role);
  void sleep_beside_watcher();
  void hand_over();

  BatonLock& baton_;
  SpinPolicy& policy_;
  Background& background_;
  const uint64_t deadline_ns_;
  const uint64_t spin_ticks_;
  uint64_t spin_end_ = 0;  // when to stop polling, in ticks; 0: not set yet
  Done& done_;
};

template <typename Done>
bool Waiter<Done>::wait() {
  background_.note_use();
  for (uint32_t round = 1;; ++round) {
    if (baton_.try_lock()) {
      bool stay = false;
      {
        const BatonLock::Held held(baton_);
        stay = poll();
      }
      const bool is_done = done_();
      if (is_done || !stay) hand_over();
      if (is_done) return true;
      if (stay) {
        baton_.give_way();
        continue;
      }
    } else {
      if (spin_end_ == 0) spin_end_ = ticks() + spin_ticks_;
      policy_.pause_once();
      if (done_()) {
        hand_over();
        return true;
      }
      if (ticks() < spin_end_ && ((round & 255) != 0 || now_ns() < deadline_ns_)) continue;
    }
    if (now_ns() >= deadline_ns_) {
      hand_over();
      return false;
    }
    sleep();
    if (done_()) {
      hand_over();
      return true;
    }
    spin_end_ = 0;
  }
}

// Polls until the wait is over, the time is up, another thread wants the baton, or sleeping waiters
// must be woken. Returns true in the last two cases, after which the thread continues to poll.
template <typename Done>
bool Waiter<Done>::poll() {
  Sleepers& sleepers = baton_.sleepers();
  Passes& passes = baton_.passes();
  const Sleepers::Polling polling(sleepers);
  take_over_watch();
  bool yields = policy_.yields();
  for (uint32_t round = 1;; ++round) {
    const int moved = passes.run();
    baton_.drain_queued();
    if (done_()) return false;
    if (moved > 0) {
      spin_end_ = 0;
      yields = policy_.yields();
      if (baton_.tally().changed() && sleepers.some_are_asleep()) return true;
    }
    if (baton_.is_wanted()) return true;
    if ((round & 31) == 0 || yields) {
      const uint64_t at = ticks();
      if (spin_end_ == 0) spin_end_ = at + spin_ticks_;
      if (at >= spin_end_) return false;
      // Polling without yields finds an early message sooner. A late message may depend on a thread
      // that needs this processor, so the waiter yields after kEagerUs.
      yields = yields || at + spin_ticks_ - policy_.ticks_in_us(kEagerUs) >= spin_end_;
      if (deadline_ns_ != kForever && now_ns() >= deadline_ns_) return false;
    }
    if (yields && !policy_.let_others_run() && policy_.adapts()) {
      spin_end_ = std::min(spin_end_, ticks() + policy_.ticks_in_us(kBesideStrangersUs));
    }
  }
}

// Replaces the sleeper, if there is one. A waiter moves to the futex word, and the background
// thread parks.
template <typename Done>
void Waiter<Done>::take_over_watch() {
  Sleepers& sleepers = baton_.sleepers();
  if (sleepers.sleeper() == Sleepers::Role::kBackground) background_.evict();
  if (baton_.passes().sleep_is_prepared()) baton_.passes().interrupt_sleep();
}

template <typename Done>
void Waiter<Done>::sleep() {
  Sleepers& sleepers = baton_.sleepers();
  if (!sleepers.somebody_polls() && sleepers.become(Sleepers::Role::kWaiter)) {
    sleep_in_poller();
  } else {
    sleep_beside_watcher();
  }
}

template <typename Done>
void Waiter<Done>::sleep_beside_watcher() {
  Sleepers& sleepers = baton_.sleepers();
  const uint32_t wake_ups = sleepers.wake_ups();
  const Sleepers::Asleep asleep(sleepers);
  baton_.fence();
  const uint64_t at = now_ns();
  // The watching thread may have left in the meantime. In that case this thread must replace it.
  if (!done_() && at < deadline_ns_ && sleepers.somebody_watches()) {
    sleepers.sleep(wake_ups, deadline_ns_ == kForever ? kForever : deadline_ns_ - at);
  }
}

template <typename Done>
void Waiter<Done>::sleep_in_poller() {
  Sleepers& sleepers = baton_.sleepers();
  uint64_t timer_ns = 0;
  {
    baton_.lock();
    const BatonLock::Held held(baton_);
    if (!done_()) timer_ns = baton_.passes().prepare_sleep(Sleep::kLong);
  }
  if (timer_ns != 0) {
    const Sleepers::Asleep asleep(sleepers);
    baton_.fence();
    const uint64_t until = std::min(timer_ns, deadline_ns_);
    const uint64_t at = now_ns();
    if (!done_() && at < until) sleepers.poller().wait(until == kForever ? kForever : until - at);
  }
  sleepers.doorbell().silence();
  {
    baton_.lock();
    const BatonLock::Held held(baton_);
    baton_.passes().finish_sleep();
    baton_.tally().note_change();  // another waiter may have to become the sleeper
    sleepers.leave();
    // The events that woke this thread are still in the poller.
    baton_.passes().run_slow();
  }
  background_.end_deep_nap();
}

// Called when this thread stops polling. Leaves pending work to the background thread. If other
// waiters sleep and no thread watches for them, wakes them, so that one becomes the sleeper.
template <typename Done>
void Waiter<Done>::hand_over() {
  if (background_.enabled() && baton_.tally().some_pending()) background_.note_pending();
  Sleepers& sleepers = baton_.sleepers();
  if (sleepers.some_are_asleep() && !sleepers.somebody_watches()) sleepers.wake();
}

}  // namespace hetcomm
