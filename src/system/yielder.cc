#include "src/system/yielder.h"

#include <sched.h>

#include <algorithm>

#include "src/system/clock.h"

namespace hetcomm {

bool Yielder::yield() {
  const uint64_t from = ticks();
  if (!may_yield(from)) {
    cpu_relax();
    return false;
  }
  sched_yield();
  yielded(from, ticks());
  return true;
}

// If two threads call this at the same time, one count may be lost. This is harmless, because the
// counts only serve as an estimate.
void Yielder::yielded(uint64_t from, uint64_t until) {
  if (until - from >= kLateUs * ticks_per_us()) {
    came_late(until);
    return;
  }
  const uint32_t prompt = prompt_.load(std::memory_order_relaxed);
  if (prompt < kEnoughPrompt) prompt_.store(prompt + 1, std::memory_order_relaxed);
}

void Yielder::came_late(uint64_t at) {
  const bool again = prompt_.exchange(0, std::memory_order_relaxed) < kEnoughPrompt;
  const uint64_t last = pause_us_.load(std::memory_order_relaxed);
  const uint64_t pause = again ? std::min(last * 2, kLongestPauseUs) : kFirstPauseUs;
  pause_us_.store(pause, std::memory_order_relaxed);
  silent_until_.store(at + pause * ticks_per_us(), std::memory_order_relaxed);
}

}  // namespace hetcomm
