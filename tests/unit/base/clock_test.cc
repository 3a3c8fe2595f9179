// Clock: time never goes backwards, the tick rate matches the kernel's clock, and deadlines do not
// overflow.
#include "src/system/clock.h"

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

TEST(Clock, DoesNotGoBackwards) {
  uint64_t last = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const uint64_t now = now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, TickRateMatchesTheKernelClock) {
  const uint64_t rate = ticks_per_us();
  ASSERT_GT(rate, 0u);
  // Clock readings on both sides bound the tick interval, however long an interruption is.
  const uint64_t before_ns = now_ns();
  const uint64_t start = ticks();
  const uint64_t start_ns = now_ns();
  while (now_ns() - start_ns < 5'000'000) cpu_relax();
  const uint64_t end_ns = now_ns();
  const uint64_t end = ticks();
  const uint64_t after_ns = now_ns();
  const double measured_us = static_cast<double>(end - start) / static_cast<double>(rate);
  // Half the time is accepted, because the rate measurement may have been interrupted.
  EXPECT_GT(measured_us, static_cast<double>(end_ns - start_ns) / 1e3 * 0.5);
  EXPECT_LT(measured_us, static_cast<double>(after_ns - before_ns) / 1e3 * 2);
}

TEST(Clock, DeadlineDoesNotWrapAround) {
  EXPECT_EQ(deadline_after(10, 5), 15u);
  EXPECT_EQ(deadline_after(10, kForever), kForever);
  EXPECT_EQ(deadline_after(10, kForever - 10), kForever);
  EXPECT_EQ(deadline_after(10, kForever - 11), kForever - 1);
  EXPECT_EQ(deadline_after(kForever, 1), kForever);
}

}  // namespace
}  // namespace hetcomm
