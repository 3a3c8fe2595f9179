// Pipelines, over every transport:
//
//   * every named schedule moves every element of activations and gradients to where the plan has
//     it, on 2 and 4 ranks, in several runs, in the order of the schedule
//   * stages with different degrees, several tensors, boundaries between stages that are no
//     neighbours, and stages of the same ranks
//   * a slot belongs to one activation, and there are no more than the peak
//   * schedules given as actions, with transfers and without, forward only
//   * several pipelines side by side, and memory of devices
//   * an evaluation performs the forward steps only, and gathers weights around them
//   * a late step holds up no step that does not need it
//   * facts and traces
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "pipeline/plan/plan_json.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/named.h"
#include "pipeline/schedule/text.h"
#include "tests/conformance/capi/pipeline/model.h"
#include "tests/conformance/capi/pipeline/own_pipeline.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::activations;
using hetcomm::test::on_ranks;
using hetcomm::test::plan_of;
using hetcomm::test::StageWish;
using pipeline::PipelinePlan;

class Pipelines : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, Pipelines, ::testing::ValuesIn(pipeline_cases()), capi_case_name);

uint64_t peak_of(const PipelinePlan& plan, uint32_t rank) {
  auto views = pipeline::check_plan(plan);
  for (const pipeline::PipelineView& view : views.value()) {
    for (size_t group = 0; group < view.groups.size(); ++group) {
      const auto& ranks = view.groups[group];
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return view.peaks[group];
    }
  }
  return 0;
}

void train(Member& me, const PipelinePlan& plan, int runs = 2) {
  Trained own(me, plan);
  for (int i = 0; i < runs; ++i) {
    const Ran ran = own.run(static_cast<uint64_t>(i));
    ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    EXPECT_EQ(own.model.done, steps_of(plan, static_cast<uint32_t>(me.rank())));
  }
  EXPECT_EQ(own.model.most_slots,
            static_cast<uint32_t>(peak_of(plan, static_cast<uint32_t>(me.rank()))));
}

// The named schedules, on |ranks| ranks.
std::vector<PipelinePlan> plans_of_all_schedules(uint32_t ranks) {
  std::vector<PipelinePlan> plans;
  for (const std::string& name : pipeline::schedule_names()) {
    pipeline::ScheduleParameters parameters;
    parameters.ranks = ranks;
    parameters.micro_batches = 3 * ranks;
    if (name == "virtual-1f1b") parameters.slow_boundaries = {0};
    if (name == "four-phase") parameters.recomputed_stages = {ranks - 1};
    if (name == "h-1f1b") {
      parameters.stage_ns.assign(ranks, 100);
      parameters.boundaries.assign(ranks - 1, {.busy_ns = 20, .latency_ns = 60});
    }
    auto made = pipeline::make_schedule(name, parameters);
    EXPECT_TRUE(made.ok()) << name << ": " << made.status().text();
    PipelinePlan plan = plan_of(on_ranks(made->schedule.rank_of), name, parameters.micro_batches);
    plan.pipelines.front().schedule.parameters = parameters;
    plans.push_back(std::move(plan));
  }
  return plans;
}

TEST_P(Pipelines, EveryScheduleDeliversAllElementsCorrectly) {
  for (const int32_t ranks : {2, 4}) {
    const std::vector<PipelinePlan> plans = plans_of_all_schedules(static_cast<uint32_t>(ranks));
    run(ranks, [&](Member& me) {
      for (const PipelinePlan& plan : plans) {
        SCOPED_TRACE(plan.pipelines.front().schedule.name);
        train(me, plan);
        if (::testing::Test::HasFailure()) return;
      }
    });
  }
}

TEST_P(Pipelines, EvaluationRunsOnlyTheForwardStepsOfEverySchedule) {
  const std::vector<PipelinePlan> plans = plans_of_all_schedules(4);
  run(4, [&](Member& me) {
    const auto rank = static_cast<uint32_t>(me.rank());
    for (const PipelinePlan& plan : plans) {
      SCOPED_TRACE(plan.pipelines.front().schedule.name);
      Trained own(me, plan);
      // Both kinds of runs in turn, so that each begins where the other has ended.
      for (uint64_t i = 0; i < 4; ++i) {
        hetcomm_pipeline_run_options_t options = options_of(i);
        if (i % 3 != 1) options.flags = HETCOMM_PIPELINE_EVALUATE;
        const Ran ran = own.run(options);
        ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
        EXPECT_EQ(own.model.done, steps_of(plan, rank, options.flags != 0));
      }
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(Pipelines, StagesCanHaveDifferentDegrees) {
  const std::vector<StageWish> stages = {
      {.ranks = {3, 1}, .degrees = {.data = 2}},
      {.ranks = {0}},
      {.ranks = {4, 2, 5, 6},
       .degrees = {.context = 2, .tensor = 2, .order = "tcd", .zigzag = true}}};
  PipelinePlan plan = plan_of(stages, "1f1b", 5);
  auto& boundaries = plan.pipelines.front().boundaries;
  boundaries[0].tensors.push_back(activations("mask", 4, 8, 1));
  boundaries[0].tensors.back().has_gradient = false;
  boundaries[0].tensors.back().tensor.reset();
  boundaries[1].tensors.push_back(activations("residual", 8, 16, 3));
  boundaries[1].strategy = HETCOMM_STRATEGY_DIRECT;
  run(7, [&](Member& me) { train(me, plan); });
}

TEST_P(Pipelines, DataCanSkipStages) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 2, 3}), "1f1b", 9);
  auto& boundaries = plan.pipelines.front().boundaries;
  pipeline::PlanBoundary skip = boundaries[0];
  skip.to = 3;
  skip.tensors[0].name = "skip";
  boundaries.insert(boundaries.begin(), skip);
  skip.to = 2;
  boundaries.push_back(skip);
  run(4, [&](Member& me) { train(me, plan); });
}

TEST_P(Pipelines, RankGroupsCanHoldTwoStagesEach) {
  // Stages 1 and 2 are on the same ranks, and a boundary skips from stage 0 to 3 there.
  std::vector<StageWish> stages = {{.ranks = {0, 2}, .degrees = {.data = 2}},
                                   {.ranks = {1, 3}, .degrees = {.tensor = 2}},
                                   {.ranks = {1, 3}, .degrees = {.tensor = 2}},
                                   {.ranks = {0, 2}, .degrees = {.data = 2}}};
  PipelinePlan plan = plan_of(stages, "zb-v", 6);
  pipeline::PlanBoundary skip = plan.pipelines.front().boundaries[0];
  skip.to = 3;
  plan.pipelines.front().boundaries.push_back(skip);
  run(4, [&](Member& me) { train(me, plan); });
}

TEST_P(Pipelines, ScheduleCanBeGivenAsActions) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 1, 0}), "", 4);
  auto made = pipeline::zero_bubble_v(2, 4);
  ASSERT_TRUE(made.ok());
  plan.pipelines.front().schedule.actions = made->actions;
  PipelinePlan lowered = plan;
  lowered.pipelines.front().schedule.actions =
      pipeline::add_waits(pipeline::add_transfers(pipeline::add_reductions(made.value()), 1),
                          pipeline::SendWaits::kAtOnce, 1)
          .actions;
  run(2, [&](Member& me) {
    train(me, plan);
    train(me, lowered);
  });
}

// Rank 2 stays in its first backward step until rank 1 has performed a forward step that does not
// need it. Receives that stand in one order would hold that step up.
TEST_P(Pipelines, LateStepDoesNotDelayIndependentSteps) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "", 2);
  plan.pipelines.front().schedule.actions =
      pipeline::read_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n")->actions;
  run(3, [&](Member& me) {
    Trained own(me, plan);
    own.model.before = [&](const hetcomm_pipeline_action_t& action) -> hetcomm_status_t {
      const bool is_late = action.kind == HETCOMM_PIPELINE_BACKWARD && action.stage == 2;
      const bool is_free = action.kind == HETCOMM_PIPELINE_FORWARD && action.stage == 1;
      const bool is_it = action.micro_batch == (is_late ? 0u : 1u) && (is_late || is_free);
      if (!is_it) return HETCOMM_OK;
      std::byte byte{};
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(&byte, 1);
      hetcomm_request_t* request = nullptr;
      hetcomm_completion_t completion{};
      const hetcomm_status_t posted =
          is_free ? hetcomm_send(me.communicator(), 2, 77, buffer, nullptr, &request)
                  : hetcomm_recv(me.communicator(), 1, 77, HETCOMM_EXACT_TAG, buffer, nullptr,
                                 &request);
      if (posted != HETCOMM_OK) return posted;
      return hetcomm_request_wait(request, kPatienceNs, &completion);
    };
    for (uint64_t step = 0; step < 2; ++step) {
      const Ran ran = own.run(step);
      ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    }
  });
}

// UNSHARD and RESHARD are called where the schedule has them, in evaluations too.
TEST_P(Pipelines, UnshardAndReshardRunWhereScheduled) {
  PipelinePlan plan = plan_of(on_ranks({0, 1}), "", 2);
  plan.pipelines.front().schedule.actions =
      pipeline::read_csv(
          "0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0RESHARD\n"
          "1UNSHARD,1F0,1B0,1RESHARD,1F1,1B1\n")
          ->actions;
  run(2, [&](Member& me) {
    Trained own(me, plan);
    std::vector<std::string> called;
    own.model.before = [&](const hetcomm_pipeline_action_t& action) {
      static const std::map<int32_t, std::string> kNames = {{HETCOMM_PIPELINE_FORWARD, "F"},
                                                            {HETCOMM_PIPELINE_BACKWARD, "B"},
                                                            {HETCOMM_PIPELINE_UNSHARD, "U"},
                                                            {HETCOMM_PIPELINE_RESHARD, "R"}};
      called.push_back(kNames.at(action.kind));
      return HETCOMM_OK;
    };
    const auto words = [&] {
      std::string all;
      for (const std::string& each : called) all += each;
      called.clear();
      return all;
    };
    ASSERT_EQ(own.run(0).status, HETCOMM_OK) << hetcomm_pipeline_last_error();
    EXPECT_EQ(words(), me.rank() == 0 ? "UFFRUBBR" : "UFBRFB");
    hetcomm_pipeline_run_options_t evaluation = options_of(1);
    evaluation.flags = HETCOMM_PIPELINE_EVALUATE;
    ASSERT_EQ(own.run(evaluation).status, HETCOMM_OK) << hetcomm_pipeline_last_error();
    EXPECT_EQ(words(), me.rank() == 0 ? "UFFR" : "UFRF");
  });
}

// Each rank belongs to one of them.
TEST_P(Pipelines, PipelinesOfDifferentDepthRunSideBySide) {
  PipelinePlan plan = plan_of(on_ranks({0, 4, 2}), "1f1b", 7);
  const PipelinePlan other = plan_of(on_ranks({3, 1}), "zb-h1", 5);
  plan.pipelines.push_back(other.pipelines.front());
  plan.pipelines.back().stages.back().items_end = plan.items;
  plan.training.global_batch += other.training.global_batch;
  run(5, [&](Member& me) { train(me, plan); });
}

// The callback of pairs gets both steps, and may perform them in any order.
TEST_P(Pipelines, PairsOfStepsArePassedToThePairCallback) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 1, 0}), "dualpipe-v", 6);
  run(2, [&](Member& me) {
    struct Pairs {
      Model model;
      int calls = 0;
    } own{.model = Model(plan, static_cast<uint32_t>(me.rank()))};
    hetcomm_pipeline_options_t options{};
    options.struct_size = sizeof(options);
    options.pair_user_data = &own;
    options.pair = [](void* user_data, const hetcomm_pipeline_action_t* first,
                      const hetcomm_pipeline_action_t* second) {
      Pairs& pairs = *static_cast<Pairs*>(user_data);
      ++pairs.calls;
      EXPECT_NE(first->slot, second->slot);
      for (const hetcomm_pipeline_action_t* each : {second, first}) {
        const auto& callback = each->kind == HETCOMM_PIPELINE_FORWARD
                                   ? pairs.model.chunks()[each->chunk].forward
                                   : pairs.model.chunks()[each->chunk].backward;
        const hetcomm_status_t status = callback.function(callback.user_data, each);
        if (status != HETCOMM_OK) return status;
      }
      return hetcomm_status_t{HETCOMM_OK};
    };
    hetcomm_pipeline_t* handle = nullptr;
    ASSERT_EQ(hetcomm_pipeline_create(me.communicator(), pipeline::to_json(plan).c_str(),
                                      own.model.chunks().data(), own.model.chunks().size(),
                                      &options, &handle),
              HETCOMM_OK)
        << hetcomm_pipeline_last_error();
    EXPECT_EQ(hetcomm_pipeline_run(handle, nullptr), HETCOMM_OK) << hetcomm_pipeline_last_error();
    EXPECT_GT(own.calls, 0);
    EXPECT_EQ(own.model.done.size(), steps_of(plan, static_cast<uint32_t>(me.rank())).size());
    EXPECT_EQ(hetcomm_pipeline_destroy(handle), HETCOMM_OK);
  });
}

TEST_P(Pipelines, SingleRankPlanRunsWithoutBoundaries) {
  const PipelinePlan plan = plan_of(on_ranks({0}), "1f1b", 3);
  run(1, [&](Member& me) { train(me, plan); });
}

class PipelinesOnDevices : public CapiTest {};

std::vector<CapiCase> device_cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({.name = transport,
                   .transports = transport,
                   .settings = "DEVICES=sim-handle:memory=4M,sim-address:memory=4M;",
                   .thread_progress = true});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, PipelinesOnDevices, ::testing::ValuesIn(device_cases()),
                         capi_case_name);

// Each rank has its stages on another device, one of them on the host.
TEST_P(PipelinesOnDevices, DataMovesBetweenDevices) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), schedule, 6);
    for (uint32_t rank = 0; rank < 3; ++rank) plan.ranks[rank].device = (rank + 1) % 3;
    run(3, [&](Member& me) { train(me, plan); });
  }
}

class PipelineMemory : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineMemory,
                         ::testing::Values(CapiCase{
                             .name = "shm", .transports = "shm", .settings = ""}),
                         capi_case_name);

// Three bytes of each request would be seen.
TEST_P(PipelineMemory, TenThousandRunsLeakNoMemory) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 2);
  run(2, [&](Member& me) {
    Trained own(me, plan);
    uint64_t before = 0;
    constexpr uint64_t kRuns = kSanitized ? 1500 : 10'000;
    for (uint64_t i = 0; i < kRuns; ++i) {
      const Ran ran = own.run(i);
      ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
      if (i == 1000) before = resident_bytes();
    }
    // Sanitizers keep a part of each handle.
    if (!kSanitized) {
      EXPECT_LT(resident_bytes(), before + (uint64_t{128} << 10));
    }
  });
}

TEST_P(Pipelines, FactsAndTraceDescribeTheRun) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 4);
  run(2, [&](Member& me) {
    Trained own(me, plan);
    size_t size = 0;
    EXPECT_EQ(hetcomm_pipeline_trace(own.handle, HETCOMM_PIPELINE_TRACE_JSON, 0, nullptr, &size),
              HETCOMM_NOT_FOUND);
    const Ran ran = own.run(7);
    ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    hetcomm_pipeline_facts_t facts{};
    facts.struct_size = sizeof(facts);
    ASSERT_EQ(hetcomm_pipeline_facts(own.handle, &facts), HETCOMM_OK);
    EXPECT_EQ(facts.runs, 1u);
    EXPECT_EQ(facts.callbacks, 8u);
    EXPECT_EQ(facts.chunks, 1u);
    EXPECT_EQ(facts.slots, me.rank() == 0 ? 2u : 1u);
    EXPECT_GT(facts.callback_ns, 0u);
    EXPECT_GT(facts.buffer_bytes, 0u);
    for (const int32_t format : {HETCOMM_PIPELINE_TRACE_JSON, HETCOMM_PIPELINE_TRACE_CHROME}) {
      ASSERT_EQ(hetcomm_pipeline_trace(own.handle, format, 0, nullptr, &size), HETCOMM_OK);
      std::string text(size, '\0');
      ASSERT_EQ(hetcomm_pipeline_trace(own.handle, format, size, text.data(), &size), HETCOMM_OK);
      text.resize(std::strlen(text.c_str()));
      const nlohmann::json json = nlohmann::json::parse(text);
      if (format == HETCOMM_PIPELINE_TRACE_CHROME) {
        EXPECT_GE(json["traceEvents"].size(), 9u);
        continue;
      }
      EXPECT_EQ(json["training_step"], 7);
      EXPECT_EQ(json["evaluation"], false);
      EXPECT_EQ(json["rank"], me.rank());
      ASSERT_EQ(json["steps"].size(), own.model.done.size());
      uint64_t last = 0;
      for (size_t i = 0; i < json["steps"].size(); ++i) {
        const auto& step = json["steps"][i];
        EXPECT_EQ(step["action"], own.model.done[i]);
        EXPECT_GE(step["start_ns"].get<uint64_t>(), last);
        last = step["end_ns"].get<uint64_t>();
        EXPECT_GE(last, step["start_ns"].get<uint64_t>());
      }
      EXPECT_GE(json["total_ns"].get<uint64_t>(), last);
    }
  });
}

nlohmann::json trace_of(hetcomm_pipeline_t* handle) {
  size_t size = 0;
  EXPECT_EQ(hetcomm_pipeline_trace(handle, HETCOMM_PIPELINE_TRACE_JSON, 0, nullptr, &size),
            HETCOMM_OK);
  std::string text(size, '\0');
  EXPECT_EQ(hetcomm_pipeline_trace(handle, HETCOMM_PIPELINE_TRACE_JSON, size, text.data(), &size),
            HETCOMM_OK);
  return nlohmann::json::parse(text.c_str());
}

class PipelineWarmUps : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineWarmUps, ::testing::Values(moving_by_itself()),
                         capi_case_name);

// Rank 1 ends its first step only when the first stage has sent a second item. Where a receive for
// the third stage stood in its way (ordered_test.cc), neither would go on.
TEST_P(PipelineWarmUps, ItemsAreSentWhileAwaitingOthers) {
  constexpr uint64_t kHidden = 4096;  // the items are far longer than all other messages
  PipelinePlan plan = plan_of(on_ranks({0, 1, 0, 1}), "looped-bfs", 4, 1, 1, kHidden);
  for (pipeline::PlanBoundary& each : plan.pipelines.front().boundaries) each.in_flight = 4;
  run(2, [&](Member& me) {
    Trained own(me, plan);
    const uint64_t before = traffic_with(me, 1 - me.rank());
    EXPECT_TRUE(me.meet());
    own.model.before = [&](const hetcomm_pipeline_action_t& action) -> hetcomm_status_t {
      const bool is_first =
          action.stage == 1 && action.kind == HETCOMM_PIPELINE_FORWARD && action.micro_batch == 0;
      return is_first ? wait_for_traffic(me, 0, before + 2 * kHidden * sizeof(uint64_t))
                      : HETCOMM_OK;
    };
    const Ran ran = own.run(0);
    EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
  });
}

// The first stage is slow in its first step, and the second one in its own: then the other items
// are there before it asks for them.
TEST_P(Pipelines, TraceCountsWaitsOnlyForDataNotYetArrived) {
  PipelinePlan plan = plan_of(on_ranks({0, 1}), "gpipe", 4);
  plan.pipelines.front().boundaries.front().in_flight = 4;
  run(2, [&](Member& me) {
    Trained own(me, plan);
    own.model.before = [&](const hetcomm_pipeline_action_t& action) {
      const bool is_slow = action.kind == HETCOMM_PIPELINE_FORWARD && action.micro_batch == 0;
      if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(20 + 30 * me.rank()));
      return HETCOMM_OK;
    };
    bool was_there = false;
    uint64_t longest_ns = 0;
    // A busy machine may stall the first stage. All ranks run alike.
    for (uint64_t step = 0; step < 5; ++step) {
      ASSERT_EQ(own.run(step).status, HETCOMM_OK);
      const nlohmann::json trace = trace_of(own.handle);
      if (me.rank() == 0) continue;
      longest_ns = std::max(longest_ns, trace["steps"][0]["data_wait_ns"].get<uint64_t>());
      for (size_t i = 1; i < 4; ++i) was_there |= trace["steps"][i]["data_wait_ns"] == 0;
    }
    EXPECT_TRUE(was_there || me.rank() == 0);
    EXPECT_TRUE(longest_ns > 10 * kMs || me.rank() == 0) << longest_ns;
  });
}

}  // namespace
}  // namespace hetcomm_test
