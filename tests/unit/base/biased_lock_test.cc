#include "src/system/biased_lock.h"

#include <sched.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

// Counts without atomics: with two concurrent threads a step gets lost, and ThreadSanitizer reports
// the race.
struct Guarded {
  explicit Guarded(BiasedLock::Bias bias) { lock.set_up(bias); }
  BiasedLock lock;
  int64_t steps = 0;
  int inside = 0;
  std::atomic<int> together{0};

  void step() {
    if (++inside != 1) together.store(1, std::memory_order_relaxed);
    ++steps;
    --inside;
  }
};

enum class Call : uint8_t { kAny, kUser, kEnter };

bool take(BiasedLock& lock, Call call) {
  switch (call) {
    case Call::kAny:
      return lock.try_lock();
    case Call::kUser:
      return lock.try_lock_as_user();
    case Call::kEnter:
      return lock.try_enter_as_user();
  }
  return false;
}

// Returns how many of |count| tries succeeded.
int64_t run(Guarded& guarded, Call call, int64_t count) {
  int64_t taken = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!take(guarded.lock, call)) {
      sched_yield();
      continue;
    }
    guarded.step();
    guarded.lock.unlock();
    ++taken;
  }
  return taken;
}

constexpr Call kCalls[] = {Call::kAny, Call::kUser, Call::kEnter};

bool other_takes(BiasedLock& lock, Call call) {
  bool taken = false;
  std::thread([&] { taken = take(lock, call); }).join();
  return taken;
}

TEST(BiasedLock, RefusesASecondHolder) {
  for (const auto bias : {BiasedLock::Bias::kNever, BiasedLock::Bias::kSoleUser}) {
    for (const Call mine : {Call::kAny, Call::kUser}) {
      for (const Call others : kCalls) {
        Guarded guarded(bias);
        ASSERT_TRUE(take(guarded.lock, mine));
        EXPECT_FALSE(guarded.lock.looks_free());
        EXPECT_FALSE(other_takes(guarded.lock, others));
        EXPECT_FALSE(other_takes(guarded.lock, others));
        guarded.lock.unlock();
        EXPECT_TRUE(guarded.lock.looks_free());
        EXPECT_TRUE(other_takes(guarded.lock, mine));
      }
    }
  }
}

TEST(BiasedLock, OnlySoleUserEntersWithoutLocking) {
  BiasedLock lock;
  lock.set_up(BiasedLock::Bias::kSoleUser);
  const bool first = lock.try_enter_as_user();
  if (!first) GTEST_SKIP() << "the kernel has no membarrier()";
  lock.unlock();
  ASSERT_TRUE(lock.try_enter_as_user());
  lock.unlock();
  EXPECT_FALSE(other_takes(lock, Call::kEnter));
  EXPECT_FALSE(lock.try_enter_as_user());
  EXPECT_TRUE(lock.try_lock_as_user());
  lock.unlock();
}

TEST(BiasedLock, SoleUseIsUnavailableIfBiasIsNever) {
  BiasedLock lock;
  lock.set_up(BiasedLock::Bias::kNever);
  EXPECT_FALSE(lock.try_enter_as_user());
  EXPECT_TRUE(lock.try_lock_as_user());
  lock.unlock();
}

// Set-up calls from one thread run concurrently with the first calls from another.
TEST(BiasedLock, KeepsSoleUseAfterEarlierCallsFromAnotherThread) {
  BiasedLock lock;
  lock.set_up(BiasedLock::Bias::kSoleUser);
  ASSERT_TRUE(other_takes(lock, Call::kAny));
  lock.unlock();
  if (!lock.try_enter_as_user()) GTEST_SKIP() << "the kernel has no membarrier()";
  lock.unlock();
  EXPECT_TRUE(lock.try_enter_as_user());
  lock.unlock();
}

// The critical moment is another thread's first call during the sole user's call. It occurs once in
// a lock's lifetime, so the test runs many lifetimes, with the sole user active in each.
TEST(BiasedLock, ExcludesOtherThreadsWhileSoleUseEnds) {
  constexpr int kLives = 1000;
  constexpr int64_t kSteps = 30;
  std::vector<std::unique_ptr<Guarded>> lives;
  lives.reserve(kLives);
  for (int i = 0; i < kLives; ++i) {
    lives.push_back(std::make_unique<Guarded>(BiasedLock::Bias::kSoleUser));
  }
  std::atomic<int> reached{0};  // lives that the sole user has started
  std::atomic<int> left{0};     // lives that the other thread has finished
  std::vector<int64_t> by_user(kLives);
  std::vector<int64_t> by_other(kLives);
  std::thread user([&] {
    for (int i = 0; i < kLives; ++i) {
      auto& taken = by_user[static_cast<size_t>(i)];
      taken = run(*lives[static_cast<size_t>(i)], Call::kUser, 1);
      reached.store(i + 1);
      while (left.load(std::memory_order_relaxed) <= i) {
        taken += run(*lives[static_cast<size_t>(i)], Call::kUser, 1);
      }
    }
  });
  for (int i = 0; i < kLives; ++i) {
    while (reached.load() <= i) sched_yield();
    Guarded& guarded = *lives[static_cast<size_t>(i)];
    for (int64_t step = 0; step < kSteps; ++step) {
      by_other[static_cast<size_t>(i)] += run(guarded, kCalls[i % 3], 1);
    }
    left.store(i + 1);
  }
  user.join();
  for (int i = 0; i < kLives; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_EQ(lives[at]->together.load(), 0) << "life " << i;
    ASSERT_EQ(lives[at]->steps, by_user[at] + by_other[at]) << "life " << i;
    ASSERT_TRUE(lives[at]->lock.looks_free()) << "life " << i;
  }
}

// Once shared, the lock remains usable by all threads.
TEST(BiasedLock, ExcludesOtherThreadsWhenShared) {
  Guarded guarded(BiasedLock::Bias::kSoleUser);
  int64_t taken[3] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] { taken[i] = run(guarded, Call::kUser, 200'000); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(guarded.together.load(), 0);
  EXPECT_EQ(guarded.steps, taken[0] + taken[1] + taken[2]);
  EXPECT_GT(guarded.steps, 0);
}

}  // namespace
}  // namespace hetcomm
