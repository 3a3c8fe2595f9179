// Yields the processor to other threads, as long as it gets the processor back promptly.
//
// A waiting thread yields so that the thread that it waits for can run. But if an unrelated thread
// computes on the same processor, each yield costs a whole time slice (milliseconds), and the
// scheduler may even charge the waiting thread for it. The duration of recent yields distinguishes
// the two cases.
#pragma once

#include <atomic>
#include <cstdint>

namespace hetcomm {

class Yielder {
 public:
  // Yields and returns true. If recent yields took long, executes a pause instruction instead and
  // returns false. [any-thread]
  bool yield();

  // The two parts of yield(): may_yield() is called before a yield and yielded() after it. Times
  // are in ticks.
  bool may_yield(uint64_t at) const { return at >= silent_until_.load(std::memory_order_relaxed); }
  void yielded(uint64_t from, uint64_t until);

 private:
  static constexpr uint64_t kLateUs = 500;
  // There are no yields for this long after a late one.
  static constexpr uint64_t kFirstPauseUs = 100'000;
  // The maximum of that pause, which doubles when late yields recur.
  static constexpr uint64_t kLongestPauseUs = 800'000;
  // After this many consecutive prompt yields, the unrelated thread is assumed to be gone.
  static constexpr uint32_t kEnoughPrompt = 256;

  void came_late(uint64_t at);

  std::atomic<uint64_t> silent_until_{0};  // in ticks; no yields before this time
  std::atomic<uint64_t> pause_us_{kFirstPauseUs};
  std::atomic<uint32_t> prompt_{0};  // prompt yields since the last late one
};

}  // namespace hetcomm
