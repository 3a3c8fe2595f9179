// Schedules that are replaced between runs, over every transport:
//
//   * after each change the new schedule runs, whatever schedule was there before, and the last
//     activations of the old one are forgotten
//   * a plan that one rank refuses, that differs, or that has other stages or tensors changes
//     nothing on any rank
//   * callbacks, slots, buffers and traces are those of the new plan
//   * many changes keep nothing
#include <string>
#include <vector>

#include "pipeline/plan/plan_json.h"
#include "pipeline/schedule/named.h"
#include "tests/conformance/capi/pipeline/model.h"
#include "tests/conformance/capi/pipeline/own_pipeline.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::on_ranks;
using hetcomm::test::plan_of;
using pipeline::PipelinePlan;

class PipelineChanges : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineChanges, ::testing::ValuesIn(pipeline_cases()),
                         capi_case_name);

Ran change(hetcomm_pipeline_t* handle, const std::string& json, uint64_t timeout_ns = 0) {
  Ran ran;
  ran.status = hetcomm_pipeline_set_schedule(handle, json.c_str(), timeout_ns);
  if (ran.status != HETCOMM_OK) ran.text = hetcomm_pipeline_last_error();
  return ran;
}

hetcomm_pipeline_facts_t facts_of(hetcomm_pipeline_t* handle) {
  hetcomm_pipeline_facts_t facts{};
  facts.struct_size = sizeof(facts);
  EXPECT_EQ(hetcomm_pipeline_facts(handle, &facts), HETCOMM_OK) << hetcomm_pipeline_last_error();
  return facts;
}

// Schedules for one stage of each rank.
const std::vector<std::string>& schedules() {
  static const std::vector<std::string> names = {"1f1b",  "gpipe", "eager-1f1b", "zb-h1",
                                                 "zb-h2", "1f1b",  "zb-h1"};
  return names;
}

TEST_P(PipelineChanges, PipelineSwitchesThroughAllSchedules) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 9);
  run(3, [&](Member& me) {
    const auto rank = static_cast<uint32_t>(me.rank());
    Trained own(me, plan);
    uint64_t step = 0;
    for (const std::string& name : schedules()) {
      PipelinePlan next = plan;
      next.pipelines.front().schedule.name = name;
      next.pipelines.front().boundaries[1].in_flight = name == "gpipe" ? 9 : 0;
      const Ran changed = change(own.handle, pipeline::to_json(next));
      ASSERT_EQ(changed.status, HETCOMM_OK) << name << ": " << changed.text;
      const hetcomm_pipeline_facts_t facts = facts_of(own.handle);
      EXPECT_EQ(facts.slots, pipeline::check_plan(next)->front().peaks[rank]) << name;
      size_t size = 0;
      EXPECT_EQ(hetcomm_pipeline_trace(own.handle, 0, 0, nullptr, &size), HETCOMM_NOT_FOUND);
      for (int i = 0; i < 2; ++i) {
        const Ran ran = own.run(step++);
        ASSERT_EQ(ran.status, HETCOMM_OK) << name << ": " << ran.text;
        EXPECT_EQ(own.model.done, steps_of(next, rank)) << name;
      }
      EXPECT_EQ(hetcomm_pipeline_trace(own.handle, 0, 0, nullptr, &size), HETCOMM_OK);
    }
    EXPECT_EQ(facts_of(own.handle).runs, step);
  });
}

TEST_P(PipelineChanges, RefusedPlanChangesNothing) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 6);
  run(3, [&](Member& me) {
    const auto rank = static_cast<uint32_t>(me.rank());
    Trained own(me, plan);
    const std::string good = pipeline::to_json(plan);
    const auto refuse = [&](const std::string& json, hetcomm_status_t status,
                            const std::string& text) {
      const Ran changed = change(own.handle, me.rank() == 1 ? json : good);
      EXPECT_EQ(changed.status, me.rank() == 1 ? status : HETCOMM_ABORTED) << changed.text;
      EXPECT_TRUE(has(changed.text, text)) << changed.text;
      const Ran ran = own.run(0);
      EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
      EXPECT_EQ(own.model.done, steps_of(plan, rank));
    };
    refuse("{", HETCOMM_INVALID_ARGUMENT, "plan");
    PipelinePlan other = plan;
    other.pipelines.front().stages[1].items_end = 2;
    other.model_hash = "other";
    refuse(pipeline::to_json(other), HETCOMM_INVALID_ARGUMENT, "its model");
    other = plan;
    other.pipelines.front().boundaries[0].tensors[0].shape[2] = 3;
    refuse(pipeline::to_json(other), HETCOMM_INVALID_ARGUMENT, "pipelines[0].boundaries differ");
    other = plan_of(on_ranks({0, 1, 2}), "1f1b", 7);
    other.training.global_batch = 28;
    refuse(pipeline::to_json(other), HETCOMM_INVALID_ARGUMENT, "micro-batches of pipelines[0]");
    other = plan_of(on_ranks({1, 0, 2}), "1f1b", 6);
    refuse(pipeline::to_json(other), HETCOMM_INVALID_ARGUMENT, "pipelines[0].stages differ");
    other = plan;
    other.pipelines.front().schedule.name = "zb-v";
    refuse(pipeline::to_json(other), HETCOMM_INVALID_ARGUMENT, "zb-v");
    EXPECT_EQ(hetcomm_pipeline_set_schedule(own.handle, me.rank() == 1 ? nullptr : good.c_str(), 0),
              me.rank() == 1 ? HETCOMM_INVALID_ARGUMENT : HETCOMM_ABORTED);
  });
}

TEST_P(PipelineChanges, DifferingPlansChangeNothing) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 4);
  run(2, [&](Member& me) {
    Trained own(me, plan);
    PipelinePlan next = plan;
    next.pipelines.front().schedule.name = me.rank() == 0 ? "gpipe" : "zb-h1";
    const Ran changed = change(own.handle, pipeline::to_json(next));
    EXPECT_EQ(changed.status, HETCOMM_MISMATCH) << changed.text;
    const Ran ran = own.run(0);
    EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
    EXPECT_EQ(own.model.done, steps_of(plan, static_cast<uint32_t>(me.rank())));
  });
}

TEST_P(PipelineChanges, ScheduleThatNeedsAMissingCallbackIsRefused) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 4);
  run(2, [&](Member& me) {
    Model model(plan, static_cast<uint32_t>(me.rank()));
    model.chunks()[0].weight_grad.function = nullptr;
    Made made = create(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK) << made.text;
    PipelinePlan next = plan;
    next.pipelines.front().schedule.name = "zb-h1";
    const Ran changed = change(made.handle, pipeline::to_json(next));
    EXPECT_NE(changed.status, HETCOMM_OK);
    EXPECT_TRUE(has(changed.text, "no callback for the weight gradient")) << changed.text;
    EXPECT_EQ(run_once(made.handle).status, HETCOMM_OK);
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineChanges, SetScheduleWithoutOneRankEndsThePipeline) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 4);
  run(2, [&](Member& me) {
    Trained own(me, plan);
    if (me.rank() == 0) {
      const Ran changed = change(own.handle, pipeline::to_json(plan), 100 * kMs);
      EXPECT_EQ(changed.status, HETCOMM_TIMED_OUT) << changed.text;
      EXPECT_EQ(own.run(0).status, HETCOMM_TIMED_OUT);
    }
    EXPECT_TRUE(me.meet());
    if (me.rank() == 1) {
      const Ran ran = own.run(0);
      // It may see first that the other rank does something else.
      EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || ran.status == HETCOMM_ABORTED) << ran.text;
      EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || has(ran.text, "TIMED_OUT")) << ran.text;
    }
    EXPECT_TRUE(me.meet());
  });
}

class PipelineChangesInTurn : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(
    All, PipelineChangesInTurn,
    ::testing::Values(CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      moving_by_itself()),
    capi_case_name);

TEST_P(PipelineChangesInTurn, ManyScheduleChangesLeakNoMemory) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 4);
  run(2, [&](Member& me) {
    Trained own(me, plan);
    std::string jsons[2];
    for (int i = 0; i < 2; ++i) {
      PipelinePlan next = plan;
      next.pipelines.front().schedule.name = i == 0 ? "gpipe" : "zb-h1";
      jsons[i] = pipeline::to_json(next);
    }
    uint64_t before = 0;
    constexpr uint64_t kChanges = kSanitized ? 60 : 400;
    for (uint64_t i = 0; i < kChanges; ++i) {
      const Ran changed = change(own.handle, jsons[i % 2]);
      ASSERT_EQ(changed.status, HETCOMM_OK) << changed.text;
      const Ran ran = own.run(i);
      ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
      if (i == kChanges / 4) before = resident_bytes();
    }
    // Sanitizers keep a part of each handle.
    if (!kSanitized) {
      EXPECT_LT(resident_bytes(), before + (uint64_t{512} << 10));
    }
  });
}

class PipelineChangesOnDevices : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineChangesOnDevices,
                         ::testing::Values(CapiCase{.name = "shm",
                                                    .transports = "shm",
                                                    .settings = "DEVICES=sim-address:memory=1M;",
                                                    .thread_progress = true}),
                         capi_case_name);

// Its buffers cannot be allocated on one rank, when other reshard plans were made already.
TEST_P(PipelineChangesOnDevices, OutOfMemoryDuringAScheduleChangeKeepsTheOldSchedule) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 6, 4, 8, 16);
  plan.ranks[2].device = 1;
  run(3, [&](Member& me) {
    Trained own(me, plan);
    PipelinePlan next = plan;
    next.pipelines.front().boundaries[1].in_flight = 1024;  // of 4 KiB each
    for (uint64_t i = 0; i < 3; ++i) {
      const Ran changed = change(own.handle, pipeline::to_json(next));
      EXPECT_EQ(changed.status, me.rank() == 2 ? HETCOMM_OUT_OF_MEMORY : HETCOMM_ABORTED)
          << changed.text;
      const Ran ran = own.run(i);
      ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    }
    next.pipelines.front().boundaries[1].in_flight = 8;
    const Ran changed = change(own.handle, pipeline::to_json(next));
    EXPECT_EQ(changed.status, HETCOMM_OK) << changed.text;
    const Ran ran = own.run(3);
    EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
  });
}

}  // namespace
}  // namespace hetcomm_test
