#include "src/core/progress/passes.h"

#include <algorithm>
#include <new>

namespace hetcomm {
namespace {

// The interval at which a polling thread checks timers, and descriptors that are not polled
// directly.
constexpr uint64_t kSlowIntervalUs = 50;
constexpr uint64_t kLongestSleepNs = 60'000'000'000;

}  // namespace

void Passes::begin() {
  ticks_per_us_ = ticks_per_us();
  refresh_now();
}

void Passes::remove(EngineDriven* driven) { std::erase(driven_, driven); }

void Passes::run_once() {
  int moved = 0;
  for (EngineDriven* driven : driven_) moved += driven->progress();
  if (slow_is_due(moved)) run_slow();
}

int Passes::run_slow() {
  next_slow_ticks_ = ticks() + kSlowIntervalUs * ticks_per_us_;
  refresh_now();
  int moved = 0;
  try {
    moved = sleepers_.poller().poll();
  } catch (const std::bad_alloc&) {
    for (EngineDriven* driven : driven_) driven->out_of_memory();
    moved = 1;
  }
  // The doorbell does not count as work. If a thread sleeps, the doorbell may be ringing for that
  // thread. If none does, it rang too late, and is silenced here.
  if (sleepers_.doorbell().take_rung()) {
    --moved;
    if (sleepers_.sleeper() == Sleepers::Role::kNobody) sleepers_.doorbell().silence();
  }
  for (size_t i = 0; i < driven_.size(); ++i) driven_[i]->tick(now_ns_);
  if (now_ns_ >= next_sweep_ns_) sweep();
  return moved;
}

void Passes::sweep() {
  last_sweep_ns_ = now_ns_;
  next_sweep_ns_ = kForever;  // operations that the sweep starts can lower it
  uint64_t next_ns = now_ns_ + kSweepIntervalNs;
  try {
    next_ns = sweeper_.sweep(now_ns_);
  } catch (const std::bad_alloc&) {
    // The next sweep, after the usual interval, completes the work of this one.
  }
  next_sweep_ns_ = std::min(next_sweep_ns_, next_ns);
}

void Passes::timer_changed(uint64_t at_ns) {
  if (at_ns < next_sweep_ns_) next_sweep_ns_ = at_ns;
  if (armed_ && at_ns < wake_at_ns_) sleepers_.doorbell().ring();
}

uint64_t Passes::prepare_sleep(Sleep sleep) {
  run_slow();
  bool quiet = true;
  for (EngineDriven* driven : driven_) quiet = driven->prepare_sleep(sleep) && quiet;
  armed_ = true;
  uint64_t until = next_sweep_ns_;
  for (const EngineDriven* driven : driven_) until = std::min(until, driven->next_timer_ns());
  const uint64_t longest_ns = sleep == Sleep::kShort ? kShortSleepNs : kLongestSleepNs;
  wake_at_ns_ = std::min(until, now_ns_ + longest_ns);
  if (quiet && until > now_ns_) return wake_at_ns_;
  finish_sleep();
  return 0;
}

void Passes::finish_sleep() {
  if (!armed_) return;
  armed_ = false;
  for (EngineDriven* driven : driven_) driven->finish_sleep();
}

void Passes::interrupt_sleep() {
  finish_sleep();
  sleepers_.doorbell().ring();
}

void Passes::check_sleep() {
  for (const EngineDriven* driven : driven_) {
    if (driven->may_sleep_on() && driven->next_timer_ns() >= wake_at_ns_) continue;
    interrupt_sleep();
    return;
  }
}

}  // namespace hetcomm
