// Generators of schedules:
//    - warm-up counts are those of the papers, Hapt's {5, 2, 1} among them;
//    - small schedules have the orders that their papers print;
//    - every generator's schedule is sound for every number of ranks, chunks and micro-batches, and
//      has the peak that is known for it;
//    - counts that make no schedule are refused.
#include "pipeline/schedule/generate.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Warmups, CountsMatchThePapers) {
  EXPECT_THAT(plain_warmups(1), ElementsAre(1));
  EXPECT_THAT(plain_warmups(4), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(eager_warmups(3), ElementsAre(5, 3, 1));
  EXPECT_THAT(virtual_warmups({false, true, false}), ElementsAre(5, 4, 2, 1));
}

// Hapt's case: the first boundary takes almost a stage's time, and the second next to nothing.
TEST(Warmups, HidingCountsFollowBoundaryTimes) {
  const std::vector<uint64_t> stages = {1000, 1000, 1000};
  EXPECT_THAT(hiding_warmups(stages, {{900, 0}, {10, 0}}, 20'000).counts, ElementsAre(5, 2, 1));
  // A short boundary counts as 0 only up to epsilon.
  EXPECT_THAT(hiding_warmups(stages, {{900, 0}, {10, 0}}, 9'999).counts, ElementsAre(6, 3, 1));
  EXPECT_THAT(hiding_warmups(stages, {{900, 0}, {10, 0}}, 10'000).counts, ElementsAre(5, 2, 1));
  EXPECT_THAT(hiding_warmups(stages, {{500, 0}, {0, 500}}, 0).counts, ElementsAre(5, 3, 1));
  EXPECT_THAT(hiding_warmups(stages, {{501, 0}, {0, 0}}, 0).counts, ElementsAre(5, 2, 1));
  // The rule goes on beyond a stage's time.
  EXPECT_THAT(hiding_warmups(stages, {{0, 3000}, {0, 0}}, 0).counts, ElementsAre(9, 2, 1));
}

TEST(Warmups, BoundaryBusyLongerThanAStageIsExposed) {
  const HidingWarmups within = hiding_warmups({1000, 700}, {{1000, 9000}}, 0);
  EXPECT_THAT(within.exposed, IsEmpty());
  const HidingWarmups beyond = hiding_warmups({1000, 700, 600}, {{1001, 0}, {2000, 0}}, 0);
  EXPECT_THAT(beyond.exposed, ElementsAre(0, 1));
  // The step is then the busy time: the longest boundary takes one step.
  EXPECT_THAT(beyond.counts, ElementsAre(1 + 3 + 3, 1 + 3, 1));
}

TEST(Warmups, LargeTimesDoNotOverflow) {
  const uint64_t year = 31'536'000'000'000'000;
  EXPECT_THAT(hiding_warmups({year, year}, {{year, year}}, 1'000'000).counts, ElementsAre(6, 1));
  EXPECT_THAT(hiding_warmups({1, 1}, {{0, 18'446'744'073'710}}, 1).counts,
              ElementsAre(UINT32_MAX, 1));
}

std::string csv_of(const Result<Schedule>& schedule) {
  return schedule.ok() ? write_csv(schedule.value()) : std::string(schedule.status().text());
}

TEST(Generate, SmallSchedulesHaveTheExpectedOrders) {
  EXPECT_EQ(csv_of(gpipe(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(csv_of(one_f_one_b(plain_warmups(2), 3)),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(csv_of(zero_bubble_h1(2, 3)),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  EXPECT_EQ(csv_of(four_phase(plain_warmups(2), {true, false}, 2)),
            "0F0,0F1,0R0,0I0,0W0,0R1,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n");
  EXPECT_EQ(csv_of(looped_breadth_first(1, 2, 2)), "0F0,0F1,1F0,1F1,1B1,1B0,0B1,0B0\n");
  EXPECT_EQ(csv_of(interleaved(2, 2, 2)),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(csv_of(forward_only(2, 2, 3)), "0F0,0F1,2F0,2F1,0F2,2F2\n1F0,1F1,3F0,3F1,1F2,3F2\n");
}

struct Known {
  std::string name;
  std::function<Result<Schedule>(uint32_t ranks, uint32_t micro_batches)> make;
  // The most activations of any rank with many micro-batches; null: not known by a formula.
  std::function<int64_t(uint32_t ranks)> peak;
};

std::vector<Known> all_generators() {
  return {
      {"1F1B", [](uint32_t p, uint32_t m) { return one_f_one_b(plain_warmups(p), m); },
       [](uint32_t p) { return p; }},
      {"Eager-1F1B", [](uint32_t p, uint32_t m) { return one_f_one_b(eager_warmups(p), m); },
       [](uint32_t p) { return 2 * p - 1; }},
      {"ZB-H1", zero_bubble_h1, [](uint32_t p) { return p; }},
      {"ZB-H2", zero_bubble_h2, [](uint32_t p) { return 2 * p - 1; }},
      {"ZB-V", zero_bubble_v, [](uint32_t p) { return 2 * p; }},
      {"DualPipe-V", dual_pipe_v, [](uint32_t p) { return 2 * p + 1; }},
      {"GPipe", gpipe, nullptr},
      {"four-phase",
       [](uint32_t p, uint32_t m) {
         return four_phase(plain_warmups(p), std::vector<bool>(p, true), m);
       },
       [](uint32_t p) { return p; }},
      {"looped", [](uint32_t p, uint32_t m) { return looped_breadth_first(p, 3, m); }, nullptr},
      {"interleaved", [](uint32_t p, uint32_t m) { return interleaved(p, 3, m); },
       [](uint32_t p) { return 2 * p + 2 * (p - 1) + 1; }},
      {"interleaved zero bubble",
       [](uint32_t p, uint32_t m) { return interleaved_zero_bubble(p, 2, m); }, nullptr},
      {"forward only", [](uint32_t p, uint32_t m) { return forward_only(p, 2, m); }, nullptr},
  };
}

TEST(Generate, GeneratorsGiveSoundSchedulesForUpToNineRanks) {
  for (const Known& known : all_generators()) {
    int made = 0;
    for (uint32_t ranks = 1; ranks <= 9; ++ranks) {
      for (uint32_t micro_batches = 1; micro_batches <= 40; ++micro_batches) {
        const Result<Schedule> schedule = known.make(ranks, micro_batches);
        if (!schedule.ok()) continue;  // the refusals have a test of their own
        ++made;
        const Result<std::vector<uint32_t>> in_flight = needed_in_flight(schedule.value());
        ASSERT_TRUE(in_flight.ok()) << known.name << ", " << ranks << " ranks, " << micro_batches
                                    << " micro-batches: " << in_flight.status().text();
        const Result<CheckResult> result =
            check(schedule.value(), {.in_flight = in_flight.value(), .memory = {}, .limits = {}});
        ASSERT_TRUE(result.ok()) << known.name << ": " << result.status().text();
      }
    }
    EXPECT_GT(made, 100) << known.name;
  }
}

TEST(Generate, PeaksMatchTheKnownFormulas) {
  for (const Known& known : all_generators()) {
    if (known.peak == nullptr) continue;
    for (uint32_t ranks = 1; ranks <= 8; ++ranks) {
      const Result<Schedule> schedule = known.make(ranks, ranks * 6);
      ASSERT_TRUE(schedule.ok()) << known.name << schedule.status().text();
      const Result<CheckResult> result = check(schedule.value());
      ASSERT_TRUE(result.ok()) << known.name << result.status().text();
      const std::vector<int64_t>& peaks = result.value().peaks;
      EXPECT_EQ(*std::max_element(peaks.begin(), peaks.end()), known.peak(ranks))
          << known.name << ", " << ranks << " ranks";
    }
  }
}

// Where every rank has one stage, one item in flight is enough.
TEST(Generate, OneStagePerRankNeedsOneItemInFlight) {
  for (const Known& known : all_generators()) {
    if (known.name == "looped" || known.name.find("interleaved") != std::string::npos) continue;
    const Result<std::vector<uint32_t>> in_flight = needed_in_flight(known.make(6, 24).value());
    ASSERT_TRUE(in_flight.ok()) << known.name;
    for (const uint32_t each : in_flight.value()) EXPECT_EQ(each, 1u) << known.name;
  }
  EXPECT_THAT(needed_in_flight(looped_breadth_first(2, 2, 8).value()).value(),
              testing::Contains(testing::Gt(1u)));
}

TEST(Generate, ImpossibleCountsAreRefused) {
  EXPECT_THAT(csv_of(gpipe(0, 3)), HasSubstr("needs a rank"));
  EXPECT_THAT(csv_of(gpipe(3, 0)), HasSubstr("1 to 1048576 micro-batches, not 0"));
  EXPECT_THAT(csv_of(gpipe(kMaxStages + 1, 1)), HasSubstr("at most 16384 stages"));
  EXPECT_THAT(csv_of(interleaved(1u << 31, 4, 1)), HasSubstr("at most 16384 stages"));
  EXPECT_THAT(csv_of(interleaved(2, 0, 1)), HasSubstr("needs a stage"));
  EXPECT_THAT(csv_of(interleaved(4, 2, 9)), HasSubstr("9 micro-batches on 4 ranks go in 2 rounds"));
  EXPECT_THAT(csv_of(one_f_one_b({}, 3)), HasSubstr("needs a rank"));
  EXPECT_THAT(csv_of(one_f_one_b({2, 0}, 3)), HasSubstr("stage 1 needs one warm-up step"));
  EXPECT_THAT(csv_of(four_phase({2, 1}, {true}, 3)),
              HasSubstr("1 choices of recomputation for 2 stages"));
  EXPECT_THAT(csv_of(dual_pipe_v(4, 7)), HasSubstr("8 stages"));
}

}  // namespace
}  // namespace hetcomm::pipeline
