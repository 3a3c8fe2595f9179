// Giving the processor to other threads, as long as it comes back at once.
//
// A thread that waits gives up the processor for the thread that it waits for. Beside a stranger
// that computes it loses a whole time slice for every yield, milliseconds, and the scheduler may
// charge it for that as well. How long the last yields took tells one from the other.
#pragma once

#include <atomic>
#include <cstdint>

namespace hetcomm {

class Yielder {
 public:
  // Yields, unless that took long lately; then it pauses, and returns false. [any-thread]
  bool yield();

  // yield() asks the first and tells the second. Times are in ticks.
  bool may_yield(uint64_t at) const { return at >= silent_until_.load(std::memory_order_relaxed); }
  void yielded(uint64_t from, uint64_t until);

 private:
  static constexpr uint64_t kLateUs = 500;
  // It does without yields for the first of these times after one late yield, and at most for the
  // second.
  static constexpr uint64_t kFirstPauseUs = 100'000;
  static constexpr uint64_t kLongestPauseUs = 800'000;
  // That many in a row came back at once: the stranger has gone.
  static constexpr uint32_t kEnoughPrompt = 256;

  void came_late(uint64_t at);

  std::atomic<uint64_t> silent_until_{0};  // ticks
  std::atomic<uint64_t> pause_us_{kFirstPauseUs};
  std::atomic<uint32_t> prompt_{0};  // since the last late one
};

}  // namespace hetcomm
