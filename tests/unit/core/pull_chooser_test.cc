// A pair of ranks whose methods for moving eager messages have known costs, which change. The
// receiver reports the cheaper method to the sender, and probing costs little.
#include "src/core/peer/transfer/pull_chooser.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

constexpr uint64_t kKi = 1 << 10;

// Sender and receiver, each making its own half of the decision.
class TwoRanks {
 public:
  // Costs in ns per byte to copy in, to copy out and to read, and in ns per message read.
  double copy = 0.03;
  double take = 0.03;
  double read = 0.10;
  double read_fixed = 2000;
  bool sender_follows = true;
  // The sender sends this many messages before a decision reaches it.
  int late = 0;

  struct Result {
    double ns = 0;  // total
    int pulled = 0;
    int told = 0;
  };
  // Sends messages. With |alone|, each message waits for a reply; otherwise they are sent back to
  // back.
  Result run(uint64_t bytes, int count, bool alone) {
    Result result;
    const double size = static_cast<double>(bytes);
    for (int i = 0; i < count; ++i) {
      if (told_in_ >= 0 && told_in_-- == 0) plan_.told(PullClass::of(bytes), told_);
      bool changed = false;
      double took = 0;
      if (plan_.pulls(bytes, [&] { return static_cast<uint64_t>(now_); }) && sender_follows) {
        took = reading(bytes);
        ++result.pulled;
        changed = chooser_.pulled(bytes, noisy(took - 300), plan_.copy_ns_per_mib(bytes));
      } else {
        took = alone ? (copy + take) * size : std::max(copy, take) * size;
        if (plan_.samples_next(bytes)) plan_.copied(bytes, noisy(copy * size));
        if (chooser_.samples_next(bytes)) changed = chooser_.took(bytes, noisy(take * size), 1);
      }
      if (changed) {
        told_ = chooser_.pause_of(PullClass::of(bytes));
        told_in_ = late;
        ++result.told;
        if (late == 0) plan_.told(PullClass::of(bytes), told_);
      }
      // The reply takes equally long.
      now_ += alone ? 2 * took : took;
      result.ns += took;
    }
    return result;
  }
  PullChooser& chooser() { return chooser_; }
  void late_now(uint64_t bytes) {
    plan_.late(bytes);
    while (!plan_.pulls(bytes, [] { return uint64_t{0}; })) {
      if (chooser_.samples_next(bytes)) {
        (void)chooser_.took(bytes, noisy(take * static_cast<double>(bytes)), 1);
      }
    }
  }
  // Returns the time to read a message.
  double reading(uint64_t bytes) const {
    return read * static_cast<double>(bytes) + read_fixed + 300;
  }

 private:
  uint64_t noisy(double ns) { return static_cast<uint64_t>(ns * noise_(random_)); }

  PullChooser chooser_;
  PullRule plan_;
  double now_ = 1e9;
  uint64_t told_ = kPullNone;
  int told_in_ = -1;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> noise_{0.9, 1.2};
};

TEST(PullChooser, CopiesIfCopyingIsCheaperAndProbesRarely) {
  for (const uint64_t bytes : {16 * kKi, 32 * kKi, 100 * kKi, 200 * kKi}) {
    for (const bool alone : {true, false}) {
      for (const int late : {0, 16}) {
        TwoRanks ranks;
        ranks.late = late;
        ranks.run(bytes, 2000, alone);  // the first trial
        const double ideal = static_cast<double>(bytes) * (alone ? 0.06 : 0.03);
        const TwoRanks::Result result = ranks.run(bytes, 100'000, alone);
        EXPECT_LT(result.ns / (100'000 * ideal), 1.02) << bytes << " " << alone << " " << late;
        EXPECT_GT(result.told, 2) << "it never looks again";
      }
    }
  }
}

TEST(PullChooser, PullsBetweenDistantCoresAndProbesRarely) {
  for (const bool alone : {true, false}) {
    for (const int late : {0, 16}) {
      TwoRanks ranks;
      ranks.late = late;
      ranks.copy = ranks.take = 0.5;
      ranks.run(64 * kKi, 2000, alone);
      const TwoRanks::Result result = ranks.run(64 * kKi, 100'000, alone);
      EXPECT_LT(result.ns / (100'000 * ranks.reading(64 * kKi)), 1.03);
      EXPECT_LT(result.pulled, 100'000) << "copying is never looked at again";
    }
  }
}

// Copying in and copying out overlap in a stream, but not for a single message.
TEST(PullChooser, PullsOnlySingleMessagesIfStreamsCopyFaster) {
  TwoRanks ranks;
  ranks.copy = ranks.take = 0.1;
  ranks.read = 0.11;
  ranks.read_fixed = 500;
  ranks.run(64 * kKi, 2000, true);
  EXPECT_GT(ranks.run(64 * kKi, 10'000, true).pulled, 9'000);
  EXPECT_LT(ranks.run(64 * kKi, 10'000, false).pulled, 1'000);
  EXPECT_GT(ranks.run(64 * kKi, 10'000, true).pulled, 9'000);
}

// One side of copying may be the bottleneck.
TEST(PullChooser, IncludesTheCostOfCopyingAtTheSender) {
  for (const int late : {0, 16}) {
    TwoRanks ranks;
    ranks.late = late;
    ranks.copy = 0.5;
    ranks.take = 0.05;
    ranks.run(64 * kKi, 2000, false);
    const TwoRanks::Result result = ranks.run(64 * kKi, 100'000, false);
    EXPECT_LT(result.ns / (100'000 * ranks.reading(64 * kKi)), 1.03) << late;
  }
}

// Messages of two sizes alternate.
TEST(PullChooser, LearnsTheSendersCopyCostForEachSize) {
  TwoRanks ranks;
  ranks.copy = 0.5;
  ranks.take = 0.05;
  int pulled[2] = {};
  for (int i = 0; i < 20'000; ++i) {
    pulled[i % 2] += ranks.run(i % 2 == 0 ? 20 * kKi : 100 * kKi, 1, false).pulled;
  }
  EXPECT_GT(pulled[0], 8'000);
  EXPECT_GT(pulled[1], 8'000);
}

// A thread switch occurs while the first message is copied.
TEST(PullChooser, OneSlowCopyDoesNotDistortTheCopyCost) {
  PullRule plan;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(plan.samples_next(64 * kKi));
    plan.copied(64 * kKi, i == 0 ? 3'000'000 : 2'000);
  }
  EXPECT_LT(plan.copy_ns_per_mib(64 * kKi), 40'000u);
}

TEST(PullChooser, CopiesForAWhileIfTheReceiverIsLate) {
  PullRule plan;
  plan.told(PullClass::of(64 * kKi), kPullAll);
  const auto pulls = [&] { return plan.pulls(64 * kKi, [] { return uint64_t{0}; }); };
  int copied = 0;
  for (int answers = 0; answers < 10; ++answers) {
    ASSERT_TRUE(pulls());
    for (int i = 0; i < 14; ++i) plan.late(64 * kKi);  // all the messages in flight
    int here = 0;
    while (!pulls()) ++here;
    EXPECT_EQ(here, answers == 0 ? 16 : 2 * copied);
    copied = here;
  }
  plan.answered(64 * kKi);
  plan.late(64 * kKi);
  int here = 0;
  while (!pulls()) ++here;
  EXPECT_EQ(here, 16);
}

// Copies by a sender whose receiver was late do not count against copying.
TEST(PullChooser, NoticesFasterCopyingWhileTheReceiverIsLate) {
  TwoRanks ranks;
  ranks.copy = ranks.take = 0.5;
  ranks.run(64 * kKi, 2000, false);
  for (int i = 0; i < 8; ++i) ranks.late_now(64 * kKi);
  ranks.run(64 * kKi, 4000, false);
  ranks.copy = ranks.take = 0.03;
  ranks.run(64 * kKi, 10'000, false);
  EXPECT_LT(ranks.run(64 * kKi, 1000, false).pulled, 100);
}

TEST(PullChooser, SwitchesToPullingWhenCopyingBecomesSlow) {
  TwoRanks ranks;
  ranks.run(64 * kKi, 20'000, false);
  ranks.copy = ranks.take = 0.5;
  EXPECT_GT(ranks.run(64 * kKi, 2'000, false).pulled, 1'500);
  ranks.copy = ranks.take = 0.03;
  ranks.read = 1.0;
  EXPECT_LT(ranks.run(64 * kKi, 2'000, false).pulled, 500);
}

TEST(PullChooser, SwitchesToCopyingWhenCopyingBecomesFast) {
  TwoRanks ranks;
  ranks.copy = ranks.take = 0.5;
  ranks.run(64 * kKi, 2000, false);
  ranks.copy = ranks.take = 0.03;
  ranks.run(64 * kKi, 2000, false);
  EXPECT_LT(ranks.run(64 * kKi, 1000, false).pulled, 100);
}

TEST(PullChooser, TrialEndsIfTheSenderDoesNotFollow) {
  TwoRanks ranks;
  ranks.sender_follows = false;
  const TwoRanks::Result result = ranks.run(64 * kKi, 10'000, false);
  EXPECT_GT(result.told, 2) << "the trial never ends";
  EXPECT_LT(result.told, 100);
}

TEST(PullChooser, NeverPullsASizeAgainAfterAFailure) {
  TwoRanks ranks;
  EXPECT_TRUE(ranks.chooser().insist(64 * kKi));
  EXPECT_EQ(ranks.chooser().pause_of(PullClass::of(64 * kKi)), kPullAll);
  EXPECT_TRUE(ranks.chooser().failed(64 * kKi));
  EXPECT_FALSE(ranks.chooser().insist(64 * kKi));
  EXPECT_EQ(ranks.run(64 * kKi, 10'000, false).pulled, 0);
  EXPECT_GT(ranks.run(128 * kKi, 10'000, false).pulled, 0);
}

// The peer may report any numbers.
TEST(PullChooser, RecoversFromExtremeCostsReportedByThePeer) {
  TwoRanks ranks;
  for (const uint64_t cost : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    for (int i = 0; i < 100; ++i) ranks.chooser().pulled(64 * kKi, 1000, cost);
    ranks.run(64 * kKi, 1000, false);
  }
  ranks.run(64 * kKi, 10'000, false);
  EXPECT_LT(ranks.run(64 * kKi, 10'000, false).pulled, 500) << "it believes the lie for ever";
  PullRule plan;
  for (const uint64_t pause : {uint64_t{1}, UINT64_MAX - 1, UINT64_MAX}) {
    plan.told(0, pause);
    plan.pulls(16 * kKi, [] { return uint64_t{0}; });
    plan.pulls(16 * kKi, [] { return UINT64_MAX; });
  }
}

}  // namespace
}  // namespace hetcomm
