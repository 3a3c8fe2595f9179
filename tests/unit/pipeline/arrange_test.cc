// Schedules under a memory limit:
//    - with CrossPipe's times and the memory of 1F1B, a micro-batch takes at most 1.025 of what no
//      schedule can beat;
//    - over a grid of delays, rates, limits and stage orders every schedule is sound and within its
//      limits, and never slower than the known ones that fit;
//    - memory of any weights, recomputation and whole backward steps are held to the limit too;
//    - more effort is never worse, and the same arguments give the same schedule;
//    - limits that no schedule meets are refused, with the rank.
#include "pipeline/arrange/arrange.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/arrange/improve.h"
#include "pipeline/arrange/list_schedule.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

using ::testing::HasSubstr;

ArrangeProblem flat_problem(uint32_t stages, uint32_t micro_batches, int64_t limit) {
  ArrangeProblem problem;
  problem.micro_batches = micro_batches;
  problem.rank_of = deal_stages(stages, stages, StageOrder::kLoop);
  problem.limits.assign(stages, limit);
  problem.times.stages.assign(stages, {.forward_ns = 100,
                                       .backward_ns = 200,
                                       .input_grad_ns = 120,
                                       .weight_grad_ns = 80,
                                       .recompute_ns = 100});
  problem.times.forward.resize(stages - 1);
  problem.times.backward.resize(stages - 1);
  return problem;
}

void make_slow(ArrangeProblem& problem, uint32_t boundary, BoundaryTime time) {
  problem.times.forward[boundary] = problem.times.backward[boundary] = time;
}

// Returns the schedule, which must be sound and within the limits.
Schedule arranged(const ArrangeProblem& problem, uint64_t effort) {
  const Result<Schedule> schedule = arrange(problem, {.effort = effort, .seed = 1});
  EXPECT_TRUE(schedule.ok()) << schedule.status().text();
  if (!schedule.ok()) return {};
  std::vector<uint32_t> in_flight = problem.in_flight;
  if (in_flight.empty()) in_flight.assign(problem.stages() - 1, kMaxMicroBatches);
  const Result<CheckResult> sound =
      check(schedule.value(),
            {.in_flight = in_flight, .memory = problem.memory, .limits = problem.limits});
  EXPECT_TRUE(sound.ok()) << sound.status().text() << "\n" << write_csv(schedule.value());
  return schedule.value();
}

// CrossPipe (ATC 2025), case 1: seconds that no schedule can beat if an activation lives from the
// start of F to the end of W.
TEST(Arrange, SchedulesComeCloseToCrossPipeBounds) {
  constexpr double kForward = 0.038;
  constexpr double kStep = 0.1050;
  constexpr double kWeight = 0.0206;
  const auto ns = [](double seconds) { return static_cast<uint64_t>(std::llround(seconds * 1e9)); };
  struct Row {
    double latency, busy, bound;
  };
  for (const Row& row : {Row{0, 0, 0.1329}, Row{0.25, 0.25, 0.1377}, Row{0.25, 2, 0.1543},
                         Row{2, 0.25, 0.1543}, Row{2, 2, 0.1709}}) {
    ArrangeProblem problem = flat_problem(8, 16, 8);
    problem.times.stages.assign(8, {.forward_ns = ns(kForward),
                                    .backward_ns = ns(kStep - kForward),
                                    .input_grad_ns = ns(kStep - kForward - kWeight),
                                    .weight_grad_ns = ns(kWeight)});
    make_slow(problem, 3, {ns(row.busy * kForward), ns(row.latency * kForward)});
    const uint64_t total_ns = time_of(problem, arranged(problem, 30'000'000));
    EXPECT_LE(static_cast<double>(total_ns) / 16e9, 1.025 * row.bound)
        << row.latency << " " << row.busy;
  }
}

TEST(Arrange, ArrangedSchedulesAreAtLeastAsFastAsKnownOnes) {
  for (const uint64_t latency_ns : {0u, 50u, 300u, 900u}) {
    for (const uint64_t busy_ns : {0u, 100u, 350u}) {
      for (const int64_t limit : {1, 2, 4, 5, 7, 20}) {
        ArrangeProblem problem = flat_problem(4, 9, limit);
        make_slow(problem, 1, {busy_ns, latency_ns});
        const uint64_t ns = time_of(problem, arranged(problem, 100'000));
        for (const Schedule& known :
             {one_f_one_b(plain_warmups(4), 9).value(), one_f_one_b(eager_warmups(4), 9).value(),
              zero_bubble_h1(4, 9).value(), zero_bubble_h2(4, 9).value(),
              four_phase(plain_warmups(4), std::vector<bool>(4), 9).value(),
              four_phase(eager_warmups(4), std::vector<bool>(4), 9).value()}) {
          const bool fits =
              check(known, {.in_flight = {}, .memory = {}, .limits = problem.limits}).ok();
          if (fits) {
            EXPECT_LE(ns, time_of(problem, known)) << limit << " " << write_csv(known);
          }
        }
      }
    }
  }
}

// A limit of 1 leaves one order: one micro-batch after the other.
TEST(Arrange, TightestLimitSerializesMicroBatches) {
  const ArrangeProblem problem = flat_problem(3, 2, 1);
  EXPECT_EQ(write_csv(arranged(problem, 100'000)),
            "0F0,0I0,0W0,0F1,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n2F0,2I0,2W0,2F1,2I1,2W1\n");
}

TEST(Arrange, RanksWithSeveralStagesAreArranged) {
  for (const StageOrder order : {StageOrder::kLoop, StageOrder::kV}) {
    for (const int64_t limit : {2, 3, 5, 8, 30}) {
      ArrangeProblem problem = flat_problem(6, 8, 0);
      problem.rank_of = deal_stages(3, 6, order);
      problem.limits.assign(3, limit);
      make_slow(problem, 0, {.busy_ns = 20, .latency_ns = 150});
      const Schedule schedule = arranged(problem, 300'000);
      EXPECT_EQ(schedule.ranks(), 3u);
      const Schedule loop = interleaved_zero_bubble(3, 2, 6).value();
      if (order == StageOrder::kLoop && limit == 30) {
        problem.micro_batches = 6;
        EXPECT_LE(time_of(problem, arranged(problem, 300'000)), time_of(problem, loop));
        problem.micro_batches = 8;
      }
      if (order == StageOrder::kV && limit >= 6) {
        EXPECT_LE(time_of(problem, schedule), time_of(problem, zero_bubble_v(3, 8).value()));
      }
    }
  }
}

TEST(Arrange, LimitsHoldForUnevenStepMemory) {
  ArrangeProblem problem = flat_problem(4, 8, 1000);
  problem.memory.assign(4,
                        {.forward = 200, .recompute = 0, .input_grad = -120, .weight_grad = -80});
  problem.memory[1] = {.forward = 900, .recompute = 0, .input_grad = -100, .weight_grad = -800};
  arranged(problem, 300'000);
  // The recomputation of the first stage begins when the second stage has freed its memory.
  ArrangeProblem turns = flat_problem(2, 1, 0);
  turns.rank_of = {0, 0};
  turns.limits = {11};
  turns.recomputes = {true, false};
  turns.memory = {{.forward = 1, .recompute = 10, .input_grad = 0, .weight_grad = -11},
                  {.forward = 5, .recompute = 0, .input_grad = 0, .weight_grad = -5}};
  EXPECT_EQ(write_csv(arranged(turns, 1000)), "0F0,1F0,1I0,1W0,0R0,0I0,0W0\n");
  // Recomputation: F keeps little, and R brings the rest.
  problem.recomputes = {true, false, true, true};
  problem.memory.assign(4,
                        {.forward = 50, .recompute = 500, .input_grad = -150, .weight_grad = -400});
  problem.memory[1] = {};
  const Schedule schedule = arranged(problem, 300'000);
  EXPECT_THAT(write_csv(schedule), HasSubstr("0R7"));
  EXPECT_THAT(write_csv(schedule), testing::Not(HasSubstr("1R")));
}

TEST(Arrange, UnsplitBackwardStepsStayWhole) {
  ArrangeProblem problem = flat_problem(4, 8, 3);
  problem.splits_backward = false;
  make_slow(problem, 2, {.busy_ns = 0, .latency_ns = 400});
  const std::string csv = write_csv(arranged(problem, 300'000));
  EXPECT_THAT(csv, HasSubstr("3B7"));
  EXPECT_THAT(csv, testing::Not(HasSubstr("W")));
}

TEST(Arrange, MoreItemsInFlightAllowAFasterSchedule) {
  ArrangeProblem problem = flat_problem(4, 10, 10);
  make_slow(problem, 1, {.busy_ns = 250, .latency_ns = 300});
  problem.in_flight = {1, 1, 1};
  const uint64_t one = time_of(problem, arranged(problem, 2'000'000));
  problem.in_flight = {1, 3, 1};
  const uint64_t three = time_of(problem, arranged(problem, 2'000'000));
  EXPECT_LT(three, one);
}

TEST(Arrange, MoreEffortIsNeverWorseAndResultsAreRepeatable) {
  ArrangeProblem problem = flat_problem(6, 10, 4);
  make_slow(problem, 2, {.busy_ns = 60, .latency_ns = 210});
  const uint64_t none = time_of(problem, arranged(problem, 0));
  const Schedule some = arranged(problem, 500'000);
  const Schedule more = arranged(problem, 5'000'000);
  EXPECT_LE(time_of(problem, some), none);
  EXPECT_LT(time_of(problem, more), none);
  EXPECT_EQ(arranged(problem, 500'000), some);
}

TEST(Arrange, ImpossibleLimitsAreRefused) {
  ArrangeProblem problem = flat_problem(3, 4, 2);
  problem.limits[1] = 0;
  EXPECT_EQ(arrange(problem).status().text(),
            "rank 1 needs 1 for one micro-batch, and 0 is its limit");
  EXPECT_EQ(arrange(problem).status().code(), Code::kOutOfRange);
  problem.limits[1] = 5;
  problem.memory.assign(3, {.forward = 2, .recompute = 0, .input_grad = 0, .weight_grad = -1});
  EXPECT_THAT(std::string(arrange(problem).status().text()),
              HasSubstr("stage 0 do not free what the others add, or free more"));
  problem.memory.resize(2);
  EXPECT_FALSE(arrange(problem).ok());
  problem.memory.clear();
  problem.rank_of[2] = 3;
  EXPECT_THAT(std::string(arrange(problem).status().text()),
              HasSubstr("stage 2 is on rank 3, and 3 ranks have limits"));
  EXPECT_FALSE(arrange({}).ok());
}

}  // namespace
}  // namespace hetcomm::pipeline
