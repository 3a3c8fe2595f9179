// Pipelines whose micro-batches have different lengths, over every transport:
//
//   * each micro-batch has the elements that its length needs, in any order of lengths, on four
//     stages of different degrees, with several tensors, in training and evaluation
//   * one rank that knows the lengths is enough
//   * lengths that nobody knows, or that ranks know differently, end the run on all ranks
//   * lengths that the plan does not list begin no run
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/capi/pipeline/model.h"
#include "tests/conformance/capi/pipeline/own_pipeline.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::activations;
using hetcomm::test::on_ranks;
using hetcomm::test::plan_of;
using hetcomm::test::StageWish;
using hetcomm::test::with_lengths;
using pipeline::PipelinePlan;

class PipelineLengths : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineLengths, ::testing::ValuesIn(pipeline_cases()),
                         capi_case_name);

hetcomm_pipeline_run_options_t options_with(const std::vector<uint64_t>& lengths, uint64_t step) {
  hetcomm_pipeline_run_options_t options = options_of(step);
  options.lengths = lengths.data();
  options.length_count = lengths.size();
  return options;
}

// All ranks draw the same.
std::vector<uint64_t> drawn(const std::vector<uint64_t>& lengths, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint64_t> all(count);
  for (uint64_t& each : all) each = lengths[random() % lengths.size()];
  return all;
}

TEST_P(PipelineLengths, FourStagesRunMicroBatchesOfDifferentLengths) {
  const std::vector<uint64_t> lengths = {4, 8, 12, 32};
  const std::vector<StageWish> stages = {{.ranks = {0, 1}, .degrees = {.data = 2}},
                                         {.ranks = {2}},
                                         {.ranks = {3, 4}, .degrees = {.tensor = 2}},
                                         {.ranks = {5}}};
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe"}) {
    PipelinePlan plan = with_lengths(plan_of(stages, schedule, 7), lengths);
    // One that is alike in all micro-batches, and one that skips stages.
    auto& boundaries = plan.pipelines.front().boundaries;
    boundaries[1].tensors.push_back(activations("positions", 4, 6, 1));
    pipeline::PlanBoundary skip = boundaries[0];
    skip.to = 3;
    boundaries.push_back(skip);
    run(6, [&](Member& me) {
      Trained own(me, plan);
      for (unsigned step = 0; step < 6; ++step) {
        own.model.lengths = drawn(lengths, 7, step);
        // Every time another rank knows them, and sometimes all.
        const std::vector<uint64_t> known = own.model.lengths;
        hetcomm_pipeline_run_options_t options = options_of(step);
        if (step == 5 || me.rank() == static_cast<int>(step)) options = options_with(known, step);
        if (step == 3) options.flags = HETCOMM_PIPELINE_EVALUATE;
        const Ran ran = own.run(options);
        ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
        EXPECT_EQ(own.model.done, steps_of(plan, static_cast<uint32_t>(me.rank()), step == 3));
      }
    });
  }
}

// Each pipeline has lengths of its own, and one has none.
TEST_P(PipelineLengths, EachPipelineHasItsOwnLengths) {
  const PipelinePlan plain = plan_of(on_ranks({0, 1}), "1f1b", 5);
  PipelinePlan plan = plain;
  const std::vector<std::vector<uint64_t>> lengths = {{}, {4, 8}, {16, 24, 40}};
  for (uint32_t i = 1; i < 3; ++i) {
    PipelinePlan more =
        with_lengths(plan_of(on_ranks({2 * i, 2 * i + 1}), "1f1b", 4 + i), lengths[i]);
    more.pipelines.front().stages.back().items_end = plan.items;
    plan.pipelines.push_back(more.pipelines.front());
    plan.training.global_batch += more.training.global_batch;
  }
  plan.ranks.resize(6, plan.ranks.front());
  run(6, [&](Member& me) {
    Trained own(me, plan);
    const auto of = static_cast<size_t>(me.rank() / 2);
    for (unsigned step = 0; step < 4; ++step) {
      hetcomm_pipeline_run_options_t options = options_of(step);
      if (of > 0) own.model.lengths = drawn(lengths[of], 4 + of, step);
      const std::vector<uint64_t> known = own.model.lengths;
      if (of > 0 && me.rank() % 2 == 1) options = options_with(known, step);
      const Ran ran = own.run(options);
      ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    }
  });
}

TEST_P(PipelineLengths, LengthsUnknownToEveryRankEndTheRun) {
  const PipelinePlan plan = with_lengths(plan_of(on_ranks({0, 1, 2}), "1f1b", 4), {4, 8});
  run(3, [&](Member& me) {
    Trained own(me, plan);
    const Ran ran = own.run(0);
    EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || ran.status == HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "no rank knows the length of micro-batch 0 of pipeline 0"))
        << ran.text;
    EXPECT_TRUE(own.model.done.empty());
  });
}

TEST_P(PipelineLengths, DifferingLengthsEndTheRun) {
  const PipelinePlan plan = with_lengths(plan_of(on_ranks({0, 1, 2}), "1f1b", 4), {4, 8});
  run(3, [&](Member& me) {
    Trained own(me, plan);
    const std::vector<uint64_t> lengths = {4, 8, me.rank() == 2 ? 8u : 4u, 8};
    const Ran ran = own.run(me.rank() == 1 ? options_of(0) : options_with(lengths, 0));
    EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || ran.status == HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "different lengths for micro-batch 2 of pipeline 0: 4 and 8"))
        << ran.text;
    EXPECT_TRUE(own.model.done.empty());
  });
}

TEST_P(PipelineLengths, InvalidLengthsAreRefused) {
  const PipelinePlan plan = with_lengths(plan_of(on_ranks({0, 1}), "1f1b", 3), {4, 8});
  run(2, [&](Member& me) {
    Trained own(me, plan);
    for (const std::vector<uint64_t>& wrong :
         {std::vector<uint64_t>{4, 5, 8}, {4, 8}, {4, 8, 8, 8}, {4, 8, 12}, {0, 4, 4}}) {
      EXPECT_EQ(own.run(options_with(wrong, 0)).status, HETCOMM_INVALID_ARGUMENT);
    }
    own.model.lengths = {8, 4, 8};
    const std::vector<uint64_t> good = own.model.lengths;
    const Ran ran = own.run(options_with(good, 1));
    EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
  });
}

}  // namespace
}  // namespace hetcomm_test
