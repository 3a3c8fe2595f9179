// Passes calls everything that the engine drives: polled objects, descriptors, timers and the
// sweep. It also prepares the sleep of a thread in the poller, so that arrivals wake that thread.
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
  // The longest duration of a short sleep.
  static constexpr uint64_t kShortSleepNs = 100'000;

  Passes(Sweeper& sweeper, Sleepers& sleepers) : sweeper_(sweeper), sleepers_(sleepers) {}
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  // Call this before the first pass. Thread-safety analysis is off, because no other thread has
  // access to the context yet.
  void begin() HETCOMM_NO_THREAD_SAFETY_ANALYSIS;
  void add(EngineDriven* driven) HETCOMM_UNDER_BATON { driven_.push_back(driven); }
  void remove(EngineDriven* driven) HETCOMM_UNDER_BATON;

  // Makes one pass, which at intervals also checks descriptors and timers. Returns the number of
  // steps made.
  int run() HETCOMM_UNDER_BATON {
    int moved = 0;
    for (size_t i = 0; i < driven_.size(); ++i) moved += driven_[i]->progress();
    if ((++count_ & 15) == 0 && slow_is_due(moved)) moved += run_slow();
    return moved;
  }
  // Makes one pass for a thread that does not poll. Checks descriptors and timers if this is due.
  void run_once() HETCOMM_UNDER_BATON;
  // Checks timers, and descriptors that are not polled directly.
  int run_slow() HETCOMM_UNDER_BATON;

  // Prepares the sleep of a thread in the poller, so that arrivals wake it. Returns the time at
  // which the thread must wake up at the latest, or 0 if there is already work.
  uint64_t prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON;
  // Ends the prepared sleep, if there is one.
  void finish_sleep() HETCOMM_UNDER_BATON;
  // Returns whether a thread sleeps, or is about to, with a wake-up time that does not account for
  // work started since then. Such work must wake it.
  bool sleep_is_prepared() const HETCOMM_UNDER_BATON { return armed_; }
  // Ends the prepared sleep and wakes the sleeper, so that it checks everything again.
  void interrupt_sleep() HETCOMM_UNDER_BATON;
  // Call this after an operation was started. Interrupts the sleep if the operation has left work
  // for which the sleeper would not wake up in time.
  void check_sleep() HETCOMM_UNDER_BATON;

  // Schedules a check of timers at |at_ns|, unless one is due earlier. Wakes a sleeper that would
  // sleep longer.
  void timer_changed(uint64_t at_ns) HETCOMM_UNDER_BATON;
  // Brings the next sweep forward. Called when an operation has become pending whose default
  // deadline is recorded only by a sweep. Wakes no thread.
  void sweep_soon() HETCOMM_UNDER_BATON {
    const uint64_t at = last_sweep_ns_ + kSweepIntervalNs;
    if (at < next_sweep_ns_) next_sweep_ns_ = at;
  }
  uint64_t refresh_now() HETCOMM_UNDER_BATON { return now_ns_ = hetcomm::now_ns(); }
  const uint64_t& coarse_now() const HETCOMM_UNDER_BATON { return now_ns_; }

 private:
  static constexpr uint64_t kSweepIntervalNs = 20'000'000;
  static constexpr uint64_t kSlowGraceUs = 150;

  // Returns whether it is time to check descriptors. A pass that has |moved| something postpones
  // the check for up to kSlowGraceUs, so that a thread whose data has arrived does not first wait
  // for a system call.
  bool slow_is_due(int moved) const HETCOMM_UNDER_BATON {
    const uint64_t at = next_slow_ticks_ + (moved > 0 ? kSlowGraceUs * ticks_per_us_ : 0);
    return ticks() >= at;
  }
  void sweep() HETCOMM_UNDER_BATON;

  Sweeper& sweeper_;
  Sleepers& sleepers_;
  std::vector<EngineDriven*> driven_ HETCOMM_GUARDED_BY_BATON;
  uint64_t ticks_per_us_ = 1;
  uint64_t count_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t next_slow_ticks_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t now_ns_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t next_sweep_ns_ HETCOMM_GUARDED_BY_BATON = 0;
  uint64_t last_sweep_ns_ HETCOMM_GUARDED_BY_BATON = 0;
  bool armed_ HETCOMM_GUARDED_BY_BATON = false;       // a sleep is prepared
  uint64_t wake_at_ns_ HETCOMM_GUARDED_BY_BATON = 0;  // while armed: when the sleeper wakes
};

}  // namespace hetcomm
