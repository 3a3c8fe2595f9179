// Clock: time goes forward, the tick rate fits the kernel's clock, deadlines do not wrap around.
#include <gtest/gtest.h>

#include "src/base/clock.h"

namespace hetcomm {
namespace {

TEST(Clock, GoesForward) {
  uint64_t last = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const uint64_t now = now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, TickRateFitsTheKernelsClock) {
  const uint64_t rate = ticks_per_us();
  ASSERT_GT(rate, 0u);
  const uint64_t start_ns = now_ns();
  const uint64_t start = ticks();
  while (now_ns() - start_ns < 5'000'000) cpu_relax();
  const double measured_us = static_cast<double>(ticks() - start) / static_cast<double>(rate);
  const double real_us = static_cast<double>(now_ns() - start_ns) / 1e3;
  // Half is allowed: either measurement may have been interrupted.
  EXPECT_GT(measured_us, real_us * 0.5);
  EXPECT_LT(measured_us, real_us * 2);
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
