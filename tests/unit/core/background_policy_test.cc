// The background thread's decisions:
//   * it is of use if callers wait seldom, up to the last pass that found work
//   * it is in the way if callers come again soon, unless it serves a peer
//   * long polls end if they are in vain, and are tried again now and then
#include "src/core/progress/background_policy.h"

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

constexpr uint64_t kStart = 1'000'000'000'000;
constexpr uint64_t kSoon = 100;

// A thread that wakes up again and again while it drives the engine.
class UsefulnessTest : public ::testing::Test {
 protected:
  struct Wake {
    uint64_t slept = kSoon / 2;
    uint64_t waits = 1;  // waits of callers during the sleep
    bool ended = true;
    bool for_callers = true;
    bool found = true;
  };
  void wake(const Wake& each) {
    usefulness_.begin_sleep(now_, waits_);
    now_ += each.slept;
    waits_ += each.waits;
    usefulness_.end_sleep(now_);
    usefulness_.note_wake(waits_, each.ended, each.for_callers, each.found);
  }
  // Returns whether the thread is in the way after |times| such wake-ups, and not before.
  bool in_the_way_after(uint32_t times, const Wake& each) {
    for (uint32_t i = 0; i < times; ++i) {
      if (usefulness_.in_the_way()) return false;
      wake(each);
    }
    return usefulness_.in_the_way();
  }

  uint64_t now_ = kStart;
  uint64_t waits_ = 17;
  Usefulness usefulness_{now_, waits_, kSoon};
};

TEST_F(UsefulnessTest, ThreadThatFoundNothingIsNotUseful) {
  EXPECT_FALSE(usefulness_.of_use(waits_));
  EXPECT_FALSE(usefulness_.of_use(waits_ + 5));
}

TEST_F(UsefulnessTest, ThreadIsUsefulIfCallersComeTooRarely) {
  usefulness_.note_found(kStart + kSoon);
  EXPECT_FALSE(usefulness_.of_use(waits_));  // not later than a caller that waits soon
  usefulness_.note_found(kStart + kSoon + 1);
  EXPECT_TRUE(usefulness_.of_use(waits_));
  EXPECT_TRUE(usefulness_.of_use(waits_ + 1));
  EXPECT_FALSE(usefulness_.of_use(waits_ + 2));
  usefulness_.note_found(kStart + 10 * kSoon + 1);
  EXPECT_TRUE(usefulness_.of_use(waits_ + 10));
  EXPECT_FALSE(usefulness_.of_use(waits_ + 11));
}

TEST_F(UsefulnessTest, ServingOnePromptCallerPutsTheThreadInTheWay) {
  EXPECT_TRUE(in_the_way_after(1, {}));
}

TEST_F(UsefulnessTest, ThreadThatServesCallersIsInTheWayEvenIfItFoundNothing) {
  EXPECT_TRUE(in_the_way_after(1, {.found = false}));
}

TEST_F(UsefulnessTest, RepeatedVainWakesForPeersPutTheThreadInTheWay) {
  EXPECT_TRUE(in_the_way_after(Usefulness::kMaxVainWakes, {.for_callers = false, .found = false}));
}

TEST_F(UsefulnessTest, ThreadThatServesAPeerIsNotInTheWay) {
  EXPECT_FALSE(in_the_way_after(100, {.for_callers = false, .found = true}));
}

TEST_F(UsefulnessTest, ThreadIsNotInTheWayOfAbsentOrLateCallers) {
  EXPECT_FALSE(in_the_way_after(100, {.waits = 0}));
  EXPECT_FALSE(in_the_way_after(100, {.slept = kSoon}));
  EXPECT_FALSE(in_the_way_after(100, {.ended = false}));
}

TEST_F(UsefulnessTest, OnlyConsecutiveVainWakesCount) {
  const Wake vain{.for_callers = false, .found = false};
  const Wake served{.for_callers = false, .found = true};
  for (int i = 0; i < 100; ++i) {
    for (uint32_t j = 0; j + 1 < Usefulness::kMaxVainWakes; ++j) wake(vain);
    EXPECT_FALSE(usefulness_.in_the_way());
    wake(served);
  }
}

TEST(LongPollsTest, LongPollsStopAfterThreeFindNothing) {
  LongPolls polls;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(polls.pay());
  for (int i = 0; i < 3; ++i) polls.note_vain();
  EXPECT_FALSE(polls.pay());
}

TEST(LongPollsTest, LongPollsAreRetriedRarelyWhileTheyFindNothing) {
  LongPolls polls;
  for (int i = 0; i < 1000; ++i) polls.note_vain();
  uint32_t trials = 0;
  for (uint32_t i = 0; i < 10 * LongPolls::kTrialsApart; ++i) trials += polls.pay() ? 1U : 0U;
  EXPECT_EQ(trials, 10u);
}

TEST(LongPollsTest, FourSuccessfulTrialsReenableLongPolls) {
  LongPolls polls;
  for (int i = 0; i < 1000; ++i) polls.note_vain();
  for (int i = 0; i < 3; ++i) polls.note_found();
  EXPECT_FALSE(polls.pay());
  polls.note_found();
  EXPECT_TRUE(polls.pay());
}

TEST(LongPollsTest, LongPollsThatSucceedHalfTheTimeDoNotPay) {
  LongPolls polls;
  for (int i = 0; i < 1000; ++i) {
    polls.note_vain();
    polls.note_found();
  }
  EXPECT_FALSE(polls.pay());
}

}  // namespace
}  // namespace hetcomm
