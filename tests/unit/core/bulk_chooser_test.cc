// A machine whose two methods have known costs, which change: the chooser finds the cheaper one and
// spends little on probing.
#include "src/core/peer/transfer/bulk_chooser.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

constexpr uint64_t kMi = 1 << 20;

class Machine {
 public:
  // The costs in ns per byte:
  double put = 0.05;
  double get = 0.10;
  // One in this many transfers suffers a thread switch of 4 ms; 0: none.
  uint32_t interrupted_every = 0;

  // Returns the time of |count| transfers relative to the cheaper method's time.
  double run(BulkChooser& chooser, uint64_t bytes, int count, int window = 1) {
    double total = 0;
    double ideal = 0;
    for (int i = 0; i < count; i += window) {
      std::vector<bool> gets;
      for (int j = 0; j < window; ++j) gets.push_back(chooser.prefer_get(bytes));
      for (const bool by_get : gets) {
        double ns = (by_get ? get : put) * static_cast<double>(bytes) * noise_(random_);
        if (interrupted_every > 0 && random_() % interrupted_every == 0) ns += 4e6;
        chooser.measured(bytes, by_get, static_cast<uint64_t>(ns));
        total += (by_get ? get : put) * static_cast<double>(bytes);
        ideal += std::min(get, put) * static_cast<double>(bytes);
      }
    }
    return total / ideal;
  }

 private:
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> noise_{0.9, 1.2};
};

TEST(BulkChooser, TakesTheCheaperMethodAndProbesRarely) {
  for (const double get : {0.01, 0.03, 0.2, 1.0}) {
    for (const uint64_t bytes : {kMi / 32, kMi, 64 * kMi}) {
      for (const int window : {1, 64}) {
        BulkChooser chooser;
        Machine machine;
        machine.get = get;
        machine.run(chooser, bytes, 256, window);  // the first trials
        EXPECT_LT(machine.run(chooser, bytes, 64'000, window), 1.02)
            << get << " " << bytes << " " << window;
      }
    }
  }
}

TEST(BulkChooser, SwitchesWhenTheMethodInUseBecomesSlow) {
  BulkChooser chooser;
  Machine machine;
  machine.run(chooser, kMi, 1000);
  EXPECT_FALSE(chooser.prefer_get(kMi));
  machine.put = 0.5;  // a twentieth of a second per 100 transfers
  EXPECT_LT(machine.run(chooser, kMi, 1000), 1.1);
  machine.put = 0.05;
  machine.get = 0.5;
  EXPECT_LT(machine.run(chooser, kMi, 1000), 1.1);
}

TEST(BulkChooser, SwitchesWhenTheOtherMethodBecomesFast) {
  BulkChooser chooser;
  Machine machine;
  machine.put = 0.5;  // copying between distant cores
  machine.get = 0.08;
  machine.run(chooser, kMi, 1000);
  machine.put = 0.03;  // and between near ones
  machine.run(chooser, kMi, 2000);
  EXPECT_LT(machine.run(chooser, kMi, 1000), 1.05);
}

TEST(BulkChooser, ThreadSwitchesDoNotChangeTheChoice) {
  BulkChooser chooser;
  Machine machine;
  machine.get = 0.2;
  machine.interrupted_every = 20;
  machine.run(chooser, kMi, 1000);
  EXPECT_LT(machine.run(chooser, kMi, 20'000), 1.15);
}

TEST(BulkChooser, StopsUsingGetsAfterTheyFail) {
  BulkChooser chooser;
  int gets = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (chooser.prefer_get(kMi)) {
      ++gets;
      chooser.get_failed(kMi);
    } else {
      chooser.measured(kMi, false, 50'000);
    }
  }
  EXPECT_LE(gets, 3);
}

// Transfers that are cancelled are never measured.
TEST(BulkChooser, RepeatsACancelledTrial) {
  BulkChooser chooser;
  Machine machine;
  machine.get = 0.01;
  for (int i = 0; i < 6; ++i) static_cast<void>(chooser.prefer_get(kMi));
  machine.run(chooser, kMi, 2000);
  EXPECT_LT(machine.run(chooser, kMi, 2000), 1.05);
}

// All transfers begin before the first one has finished.
TEST(BulkChooser, DeepWindowDoesNotCountAsFailure) {
  for (const int window : {300, 600, 5000}) {
    for (const double get : {0.01, 0.2}) {
      BulkChooser chooser;
      Machine machine;
      machine.get = get;
      machine.run(chooser, kMi, window, window);
      machine.run(chooser, kMi, 2000);
      EXPECT_LT(machine.run(chooser, kMi, 20'000), 1.02) << window << " " << get;
    }
  }
}

// A peer shares its core, so some transfers are slow with either method.
TEST(BulkChooser, SlowTransfersInARowDoNotIncreaseTrials) {
  BulkChooser chooser;
  Machine machine;
  machine.get = 2;
  machine.run(chooser, kMi, 1000);
  int gets = 0;
  for (int i = 0; i < 40'000; ++i) {
    const bool by_get = chooser.prefer_get(kMi);
    gets += by_get ? 1 : 0;
    const double ns = (by_get ? 2 : 0.05) * kMi * (i % 40 < 6 ? 3 : 1);
    chooser.measured(kMi, by_get, static_cast<uint64_t>(ns));
  }
  EXPECT_LT(gets, 60);
}

TEST(BulkChooser, NewSizeStartsWithTheChoiceOfTheNextSmallerSize) {
  BulkChooser chooser;
  Machine machine;
  machine.get = 0.01;
  machine.run(chooser, kMi, 1000);
  EXPECT_TRUE(chooser.prefer_get(4 * kMi));
}

// One message may have suffered a thread switch, or found all its data in the cache.
TEST(TwoWays, OneOutlierInATrialDoesNotChangeTheCost) {
  for (const double odd : {100.0, 0.01}) {
    for (uint32_t when = 0; when < TwoWays::kBurst; ++when) {
      TwoWays ways;
      ways.begin_trial(Way::kPull);
      for (uint32_t i = 0; i < TwoWays::kBurst; ++i) {
        EXPECT_EQ(ways.measured_in_trial(i == when ? odd : 1.0), i + 1 == TwoWays::kBurst);
      }
      EXPECT_EQ(ways.cost(Way::kPull), 1.0);
    }
  }
}

TEST(BulkChooser, MeasuresAnEstimatedCostSoonIfMeasuringIsCheap) {
  BulkChooser chooser;
  Machine machine;
  machine.get = machine.put;
  machine.run(chooser, kMi, 1000);
  constexpr int kSoon = TwoWays::kBetweenTrials - 2;
  machine.run(chooser, 4 * kMi, kSoon);
  EXPECT_GT(std::max(chooser.cost(4 * kMi, false), chooser.cost(4 * kMi, true)), 0)
      << "what is told is a guess still";
}

}  // namespace
}  // namespace hetcomm
