#include <sched.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "src/base/clock.h"
#include "src/base/yielder.h"

namespace hetcomm {
namespace {

constexpr uint64_t kMs = 1'000'000;

void bind_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(processor), &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

// A thread on |processor| that does |turn| until the end.
template <typename Turn>
class Neighbour {
 public:
  Neighbour(int processor, Turn turn)
      : thread_([this, processor, turn] {
          bind_to(processor);
          running_.store(true);
          while (!stop_.load(std::memory_order_relaxed)) turn();
        }) {
    while (!running_.load()) sched_yield();
  }
  ~Neighbour() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> running_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class YielderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    processor_ = sched_getcpu();
    bind_to(processor_);
  }
  void TearDown() override { sched_setaffinity(0, sizeof(before_), &before_); }

  cpu_set_t before_{};
  int processor_ = 0;
  Yielder yielder_;
};

// True when |count| yields came within 10 s.
bool yields_often(Yielder& yielder, int count) {
  int yields = 0;
  const uint64_t end = now_ns() + 10'000 * kMs;
  while (yields < count && now_ns() < end) yields += yielder.yield() ? 1 : 0;
  return yields == count;
}

TEST_F(YielderTest, YieldsAsLongAsTheProcessorComesBackAtOnce) {
  const Neighbour friendly(processor_, [] { sched_yield(); });
  EXPECT_TRUE(yields_often(yielder_, 10'000));
}

TEST_F(YielderTest, GivesAStrangerFewSlices) {
  const Neighbour stranger(processor_, [] { cpu_relax(); });
  // Every yield may cost a slice of milliseconds; what the scheduler takes by itself does not
  // count.
  uint64_t lost_ns = 0;
  const uint64_t start = now_ns();
  uint64_t at = start;
  while (at < start + 2000 * kMs) {
    const bool yielded = yielder_.yield();
    const uint64_t after = now_ns();
    if (yielded) lost_ns += after - at;
    at = after;
  }
  EXPECT_LT(lost_ns, 600 * kMs);
}

TEST_F(YielderTest, YieldsAgainWhenTheStrangerHasGone) {
  {
    const Neighbour stranger(processor_, [] { cpu_relax(); });
    const uint64_t end = now_ns() + 10'000 * kMs;
    while (!yielder_.beside_strangers() && now_ns() < end) yielder_.yield();
    ASSERT_TRUE(yielder_.beside_strangers());
  }
  EXPECT_TRUE(yields_often(yielder_, 1000));
}

}  // namespace
}  // namespace hetcomm
