// A yielding thread next to other threads, on the test's own clock. It keeps yielding while yields
// return immediately. Late returns are followed by periods without yields, which grow up to a limit
// and start small again once the other thread has gone. A second test runs next to a real busy
// thread that gets few time slices.
#include "src/system/yielder.h"

#include <sched.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "src/system/clock.h"

namespace hetcomm {
namespace {

constexpr uint64_t kUs = 1;
constexpr uint64_t kMs = 1000 * kUs;

class Waiter {
 public:
  // Yields for |us| where each yield takes |each_us|. Returns the number of yields.
  int run(uint64_t us, uint64_t each_us) {
    int yields = 0;
    for (const uint64_t end = now_us_ + us; now_us_ < end;) {
      if (!yielder_.may_yield(now_us_ * ticks_per_us())) {
        now_us_ += 1;
        continue;
      }
      yielder_.yielded(now_us_ * ticks_per_us(), (now_us_ + each_us) * ticks_per_us());
      now_us_ += each_us;
      ++yields;
    }
    return yields;
  }
  bool may_yield() const { return yielder_.may_yield(now_us_ * ticks_per_us()); }

 private:
  Yielder yielder_;
  uint64_t now_us_ = 1;
};

TEST(Yielder, KeepsYieldingWhileYieldsReturnAtOnce) {
  Waiter waiter;
  EXPECT_EQ(waiter.run(100 * kMs, 10), 10'000);
  EXPECT_EQ(waiter.run(100 * kMs, 400), 250);  // another rank has worked for a while
  EXPECT_TRUE(waiter.may_yield());
}

TEST(Yielder, GivesFewSlicesToAnotherBusyThread) {
  Waiter waiter;
  EXPECT_EQ(waiter.run(90 * kMs, 4 * kMs), 1);
  EXPECT_FALSE(waiter.may_yield());
  EXPECT_LE(waiter.run(10'000 * kMs, 4 * kMs), 16);
  // A few immediate returns, as after a sleep, do not reset the period.
  while (!waiter.may_yield()) waiter.run(1 * kMs, 1);
  EXPECT_EQ(waiter.run(100, 1), 100);
  EXPECT_EQ(waiter.run(700 * kMs, 4 * kMs), 1);
}

// The yielder must notice that the other thread has gone.
TEST(Yielder, RetriesWithinABoundedTime) {
  Waiter waiter;
  waiter.run(10'000 * kMs, 4 * kMs);
  EXPECT_GE(waiter.run(10'000 * kMs, 4 * kMs), 10);
  waiter.run(800 * kMs, 1);
  EXPECT_TRUE(waiter.may_yield());
}

TEST(Yielder, ResetsItsPauseOnceTheOtherThreadHasGone) {
  Waiter waiter;
  waiter.run(5'000 * kMs, 4 * kMs);
  while (!waiter.may_yield()) waiter.run(1 * kMs, 1);
  EXPECT_EQ(waiter.run(1'000, 1), 1'000);
  EXPECT_EQ(waiter.run(4 * kMs, 4 * kMs), 1);
  EXPECT_EQ(waiter.run(99 * kMs, 1), 0);
  EXPECT_GT(waiter.run(10 * kMs, 1), 1'000);
}

// The scheduler's own time does not count.
TEST(TimedYielder, LosesLittleTimeToABusyThread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  std::atomic<bool> stop{false};
  std::thread stranger([&stop] {
    while (!stop.load(std::memory_order_relaxed)) cpu_relax();
  });
  Yielder yielder;
  uint64_t lost_ns = 0;
  int yields = 0;
  const uint64_t start = now_ns();
  for (uint64_t at = start; at < start + 2'000'000'000;) {
    const bool yielded = yielder.yield();
    const uint64_t after = now_ns();
    if (yielded) {
      lost_ns += after - at;
      ++yields;
    }
    at = after;
  }
  stop.store(true);
  stranger.join();
  sched_setaffinity(0, sizeof(before), &before);
  EXPECT_GT(yields, 0);
  EXPECT_LT(lost_ns, 600'000'000u);
}

}  // namespace
}  // namespace hetcomm
