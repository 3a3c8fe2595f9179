#include "src/base/yielder.h"

#include <sched.h>

#include <algorithm>

#include "src/base/clock.h"

namespace hetcomm {

// Two threads that use it at once may both count, or one's count may be lost: the verdict is an
// estimate.
bool Yielder::yield() {
  const uint64_t before = ticks();
  if (before < silent_until_.load(std::memory_order_relaxed)) {
    cpu_relax();
    return false;
  }
  sched_yield();
  const uint64_t after = ticks();
  if (after - before >= kLateUs * ticks_per_us()) {
    came_late(after);
    return true;
  }
  const uint32_t prompt = prompt_.load(std::memory_order_relaxed);
  if (prompt < kEnoughPrompt) prompt_.store(prompt + 1, std::memory_order_relaxed);
  return true;
}

bool Yielder::beside_strangers() const {
  return ticks() < silent_until_.load(std::memory_order_relaxed);
}

void Yielder::came_late(uint64_t at) {
  const bool again = prompt_.exchange(0, std::memory_order_relaxed) < kEnoughPrompt;
  const uint64_t last = pause_us_.load(std::memory_order_relaxed);
  const uint64_t pause = again ? std::min(last * 2, kLongestPauseUs) : kFirstPauseUs;
  pause_us_.store(pause, std::memory_order_relaxed);
  silent_until_.store(at + pause * ticks_per_us(), std::memory_order_relaxed);
}

}  // namespace hetcomm
