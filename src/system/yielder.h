// Yields the processor to other threads, as long as they give it back promptly.
//
// A waiting thread yields the processor to the thread that it waits for. If an unrelated
// thread computes on the same processor, each yield costs a whole time slice (milliseconds), and
// the scheduler may even charge the waiting thread for it. The duration of the last yields tells
// the two cases apart.
#pragma once

#include <atomic>
#include <cstdint>

namespace hetcomm {

class Yielder {
 public:
  // Yields, unless recent yields took long; in that case it only pauses and returns false.
  // [any-thread]
  bool yield();

  // yield() calls may_yield() before and yielded() after a yield. Times are in ticks.
  bool may_yield(uint64_t at) const { return at >= silent_until_.load(std::memory_order_relaxed); }
  void yielded(uint64_t from, uint64_t until);

 private:
  static constexpr uint64_t kLateUs = 500;
  // After one late yield there are no yields for this time.
  static constexpr uint64_t kFirstPauseUs = 100'000;
  // The longest time to which that pause grows.
  static constexpr uint64_t kLongestPauseUs = 800'000;
  // After this many consecutive prompt yields the unrelated thread is considered gone.
  static constexpr uint32_t kEnoughPrompt = 256;

  void came_late(uint64_t at);

  std::atomic<uint64_t> silent_until_{0};  // in ticks; no yields before this time
  std::atomic<uint64_t> pause_us_{kFirstPauseUs};
  std::atomic<uint32_t> prompt_{0};  // prompt yields since the last late one
};

}  // namespace hetcomm
