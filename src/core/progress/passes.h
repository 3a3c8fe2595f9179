// Passes over everything that is driven: polled objects, descriptors, timers and the sweep. Also
// the wake-ups that are arranged before a thread sleeps in the poller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/progress/driven.h"
#include "src/core/progress/sleepers.h"
#include "src/system/clock.h"

namespace hetcomm {

class Passes {
 public:
  // A short sleep lasts at most this long.
  static constexpr uint64_t kShortSleepNs = 100'000;

  Passes(Submitter& submitter, Sleepers& sleepers) : submitter_(submitter), sleepers_(sleepers) {}
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  // Call this before the first pass. It is not analysed: no other thread knows the context yet.
  void begin() HETCOMM_NO_THREAD_SAFETY_ANALYSIS;
  void add(Driven* driven) HETCOMM_UNDER_BATON { driven_.push_back(driven); }
  void remove(Driven* driven) HETCOMM_UNDER_BATON;

  // Makes one pass. Every now and then it looks at descriptors and timers too.
  int run() HETCOMM_UNDER_BATON {
    int moved = 0;
    for (size_t i = 0; i < driven_.size(); ++i) moved += driven_[i]->progress();
    if ((++count_ & 15) == 0 && slow_is_due(moved)) moved += run_slow();
    return moved;
  }
  // Makes one pass for a thread that does not poll. Looks at descriptors and timers if that is due.
  void run_once() HETCOMM_UNDER_BATON;
  // Looks at descriptors that are not polled directly, and at timers.
  int run_slow() HETCOMM_UNDER_BATON;

  // Arranges a wake-up. Returns when to wake up at the latest; 0 when there is work already.
  uint64_t prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON;
  // Takes the arrangements back, if there are any.
  void finish_sleep() HETCOMM_UNDER_BATON;
  // Whether a thread sleeps in the poller, until a time that ignores what is started now.
  bool sleep_is_prepared() const HETCOMM_UNDER_BATON { return armed_; }
  // Takes the arrangements back and wakes the sleeper, so that it looks at everything again.
  void interrupt_sleep() HETCOMM_UNDER_BATON;
  // An operation was started: interrupts the sleep if that has left work that no arrangement
  // covers.
  void check_sleep() HETCOMM_UNDER_BATON;

  // There is something to do at |at_ns|, perhaps earlier than known.
  void timer_changed(uint64_t at_ns) HETCOMM_UNDER_BATON;
  // An operation with the default deadline became pending: the next sweep notes it. Wakes nobody.
  void sweep_soon() HETCOMM_UNDER_BATON {
    const uint64_t at = last_sweep_ns_ + kSweepIntervalNs;
    if (at < next_sweep_ns_) next_sweep_ns_ = at;
  }
  uint64_t refresh_now() HETCOMM_UNDER_BATON { return now_ns_ = hetcomm::now_ns(); }
  const uint64_t& coarse_now() const HETCOMM_UNDER_BATON { return now_ns_; }

 private:
  static constexpr uint64_t kSweepIntervalNs = 20'000'000;
  static constexpr uint64_t kSlowGraceUs = 150;

  // For a while, a pass that has |moved| something leaves descriptors to a pass that has not. So a
  // thread that waits for what came does not wait for a system call first.
  bool slow_is_due(int moved) const HETCOMM_UNDER_BATON {
    const uint64_t at = next_slow_ticks_ + (moved > 0 ? kSlowGraceUs * ticks_per_us_ : 0);
    return ticks() >= at;
  }
  void sweep() HETCOMM_UNDER_BATON;

  Submitter& submitter_;
  Sleepers& sleepers_;
  std::vector<Driven*> driven_ HETCOMM_GUARDED_BY_BATON;
  uint64_t ticks_per_us_ = 1;
  uint64_t count_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t next_slow_ticks_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t now_ns_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t next_sweep_ns_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t last_sweep_ns_ HETCOMM_GUARDED_BY_BATON = 0;
  bool armed_ HETCOMM_GUARDED_BY_BATON = false;       // transports ring the doorbell
  uint64_t wake_at_ns_ HETCOMM_GUARDED_BY_BATON = 0;  // when the sleeper looks again, while armed
};

}  // namespace hetcomm
