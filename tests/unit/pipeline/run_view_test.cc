// Runs, from the traces of their ranks:
//   - what a run took comes back from its traces, whatever the clocks of its ranks are apart: the
//     times of steps, of transfers that a step waited for, and the moments of all steps;
//   - times that moved by more than a tenth are named, and others are not;
//   - a proposed schedule fits the stages, keeps the limits, splits backward steps only if it may,
//     and takes as long as is said;
//   - traces of another run, of some ranks only, and malformed ones are refused.
#include "pipeline/outlook/run_view.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/live.h"
#include "pipeline/schedule/named.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"
#include "pipeline/simulate/longest_path.h"

namespace hetcomm::pipeline {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

Schedule named(const std::string& name, uint32_t ranks, uint32_t micro_batches) {
  Result<NamedSchedule> made =
      make_schedule(name, {.ranks = ranks, .micro_batches = micro_batches});
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.ok() ? std::move(made)->schedule : Schedule();
}

Outlook outlook_of(Schedule schedule, const PipelineTimes& times) {
  ScheduleQuestion question;
  question.schedule = std::move(schedule);
  question.times = times;
  Result<Outlook> outlook = look_at(std::move(question));
  EXPECT_TRUE(outlook.ok()) << outlook.status().text();
  return outlook.ok() ? std::move(outlook).value() : Outlook();
}

// The traces of a run that goes as |outlook| says. The clock of rank r is |apart_ns| * r behind.
json traces_of(const Outlook& outlook, uint64_t apart_ns = 0) {
  json traces = json::array();
  for (uint32_t rank = 0; rank < outlook.schedule.ranks(); ++rank) {
    // A rank's clock starts with its run, so that later clocks see everything earlier.
    const uint64_t earlier = apart_ns * rank;
    json steps = json::array();
    for (size_t i = 0; i < outlook.schedule.actions[rank].size(); ++i) {
      const Span& span = outlook.forecast.actions[rank][i];
      Action action = outlook.schedule.actions[rank][i];
      action.overlaps_next = false;
      steps.push_back({{"action", to_text(action)},
                       {"start_ns", span.start_ns + apart_ns * outlook.schedule.ranks() - earlier},
                       {"end_ns", span.end_ns + apart_ns * outlook.schedule.ranks() - earlier},
                       {"data_wait_ns", outlook.forecast.bounds[rank][i] == Bound::kData ? 1 : 0},
                       {"room_wait_ns", 0}});
    }
    traces.push_back({{"format", "hetcomm pipeline trace"},
                      {"version", 1},
                      {"rank", rank},
                      {"pipeline", 0},
                      {"group", rank},
                      {"training_step", 7},
                      {"evaluation", false},
                      {"total_ns", outlook.forecast.total_ns},
                      {"steps", std::move(steps)}});
  }
  return traces;
}

// Better schedules may keep whatever they need, unless |more| has other limits.
std::string question(const json& traces, const json& more = json::object()) {
  json document = {{"format", "hetcomm schedule question"},
                   {"version", 1},
                   {"traces", traces},
                   {"limits", {1000}}};
  document.update(more);
  if (document["limits"].is_null()) document.erase("limits");
  return document.dump();
}

RunView view_of(const std::string& text) {
  Result<ScheduleQuestion> parsed = parse_question(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  if (!parsed.ok()) return {};
  Result<RunView> view = look_at_run(std::move(parsed).value());
  EXPECT_TRUE(view.ok()) << view.status().text();
  return view.ok() ? std::move(view).value() : RunView();
}

std::string refusal(const std::string& text) {
  Result<ScheduleQuestion> parsed = parse_question(text);
  if (!parsed.ok()) return std::string(parsed.status().text());
  const Result<RunView> view = look_at_run(std::move(parsed).value());
  return view.ok() ? "none" : std::string(view.status().text());
}

// Four stages that differ, and a slow boundary in the middle.
PipelineTimes slow_middle() {
  PipelineTimes times;
  for (uint64_t i = 0; i < 4; ++i) {
    times.stages.push_back({.forward_ns = 1000 + 100 * i,
                            .backward_ns = 2000 + 200 * i,
                            .input_grad_ns = 1000 + 100 * i,
                            .weight_grad_ns = 1000 + 100 * i,
                            .recompute_ns = 1000 + 100 * i});
  }
  times.forward = {{.busy_ns = 0, .latency_ns = 100},
                   {.busy_ns = 200, .latency_ns = 2500},
                   {.busy_ns = 0, .latency_ns = 100}};
  times.backward = times.forward;
  return times;
}

json known(const PipelineTimes& times) {
  json stages = json::array();
  for (const StageTime& each : times.stages) {
    stages.push_back({{"forward_ns", each.forward_ns},
                      {"input_grad_ns", each.input_grad_ns},
                      {"weight_grad_ns", each.weight_grad_ns},
                      {"recompute_ns", each.recompute_ns}});
  }
  json boundaries = json::array();
  for (const BoundaryTime& each : times.forward) {
    boundaries.push_back({{"busy_ns", each.busy_ns}, {"latency_ns", each.latency_ns}});
  }
  return {{"times", {{"stages", stages}, {"forward", boundaries}}}};
}

std::vector<std::string> moved_of(const RunView& view) {
  std::vector<std::string> names;
  for (const MovedTime& each : view.moved) names.push_back(each.what);
  return names;
}

// |ran| with steps of lengths that differ, which follow from |seed|.
Outlook uneven(Outlook ran, uint32_t seed) {
  std::mt19937 random(seed);
  StepLengths lengths;
  for (const std::vector<Action>& actions : ran.schedule.actions) {
    std::vector<uint64_t>& own = lengths.emplace_back();
    for (size_t i = 0; i < actions.size(); ++i) own.push_back(500 + random() % 2000);
  }
  Result<Forecast> forecast =
      simulate(ran.schedule, ran.times, {.lengths = lengths, .keeps_spans = true});
  EXPECT_TRUE(forecast.ok()) << forecast.status().text();
  if (forecast.ok()) ran.forecast = std::move(forecast).value();
  return ran;
}

Schedule schedule_of(const Candidate& candidate, const Schedule& ran) {
  if (!candidate.actions.empty()) {
    return {
        .micro_batches = ran.micro_batches, .rank_of = ran.rank_of, .actions = candidate.actions};
  }
  ScheduleParameters parameters = candidate.parameters;
  parameters.ranks = ran.ranks();
  parameters.chunks = ran.stages() / ran.ranks();
  parameters.micro_batches = ran.micro_batches;
  Result<NamedSchedule> made = make_schedule(candidate.name, parameters);
  EXPECT_TRUE(made.ok()) << candidate.name << made.status().text();
  return made.ok() ? std::move(made)->schedule : Schedule();
}

class Runs : public ::testing::TestWithParam<const char*> {};

TEST_P(Runs, TimesAndSpansAreRecoveredFromTraces) {
  const PipelineTimes times = slow_middle();
  const Outlook ran = outlook_of(named(GetParam(), 4, 12), times);
  for (const uint64_t apart_ns : {uint64_t{0}, uint64_t{123'456}}) {
    const RunView view = view_of(question(traces_of(ran, apart_ns)));
    EXPECT_EQ(view.outlook.schedule, ran.schedule);
    EXPECT_EQ(view.run.total_ns, ran.forecast.total_ns);
    for (size_t stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(view.run.stages[stage].forward_ns, times.stages[stage].forward_ns);
      EXPECT_EQ(view.run.stages[stage].backward_ns, times.stages[stage].backward_ns);
    }
    for (size_t stage = 0; stage < 3; ++stage) {
      const BoundaryTime& boundary = times.forward[stage];
      if (!view.run.transfer_ns[stage]) continue;
      EXPECT_EQ(*view.run.transfer_ns[stage], boundary.busy_ns + boundary.latency_ns) << stage;
    }
    ASSERT_TRUE(view.run.transfer_ns[1].has_value());
    // Hidden boundaries leave the clocks of their ranks unknown.
    if (!view.run.transfer_ns[0] || !view.run.transfer_ns[2]) continue;
    const uint64_t begin_ns = view.run.spans[0][0].start_ns;
    for (size_t rank = 0; rank < 4; ++rank) {
      for (size_t i = 0; i < ran.forecast.actions[rank].size(); ++i) {
        const Span& span = ran.forecast.actions[rank][i];
        const Span later{span.start_ns + begin_ns, span.end_ns + begin_ns};
        ASSERT_EQ(view.run.spans[rank][i], later) << "rank " << rank << ", step " << i;
      }
    }
  }
}

// By its own steps' lengths a run takes as long as it took; by their medians it does not.
TEST_P(Runs, RunWithUnevenStepsIsReplayedExactly) {
  PipelineTimes times = slow_middle();
  for (BoundaryTime& each : times.forward) each.busy_ns = 0;
  times.backward = times.forward;
  const Outlook ran = uneven(outlook_of(named(GetParam(), 4, 12), times), 7);
  const RunView view = view_of(question(traces_of(ran), known(times)));
  EXPECT_EQ(view.replayed_ns, ran.forecast.total_ns);
  EXPECT_NE(view.outlook.forecast.total_ns, ran.forecast.total_ns);
  EXPECT_EQ(json::parse(to_json(view))["run"]["replayed_ns"], view.replayed_ns);
  EXPECT_THAT(to_text(view), HasSubstr(fmt::format("each step as long as it was {:.3f} ms (+0.0 %)",
                                                   static_cast<double>(view.replayed_ns) / 1e6)));
}

INSTANTIATE_TEST_SUITE_P(Named, Runs, ::testing::Values("1f1b", "gpipe", "zb-h1"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(RunView, StageGetsTheTimesOfItsSlowestRank) {
  PipelineTimes times = slow_middle();
  const Schedule schedule = named("1f1b", 4, 6);
  json traces = traces_of(outlook_of(schedule, times));
  times.stages[2].forward_ns += 500;
  traces.push_back(traces_of(outlook_of(schedule, times))[2]);
  const RunView view = view_of(question(traces));
  EXPECT_GT(view.replayed_ns,
            view_of(question(traces_of(outlook_of(schedule, slow_middle())))).replayed_ns);
  EXPECT_EQ(view.run.stages[2].forward_ns, times.stages[2].forward_ns);
}

TEST(RunView, OnlyChangedTimesAreReported) {
  const PipelineTimes times = slow_middle();
  const Schedule schedule = named("1f1b", 4, 12);
  const json traces = traces_of(outlook_of(schedule, times));
  const RunView same = view_of(question(traces, known(times)));
  EXPECT_THAT(moved_of(same), IsEmpty());
  EXPECT_FALSE(same.proposes);
  EXPECT_THAT(to_text(same), HasSubstr("keep the schedule"));

  PipelineTimes then = times;
  then.stages[1].forward_ns = then.stages[1].forward_ns * 100 / 109;
  then.stages[2].forward_ns = then.stages[2].forward_ns * 100 / 111;
  then.forward[1].latency_ns = 1000;
  const RunView moved = view_of(question(traces, known(then)));
  EXPECT_THAT(moved_of(moved),
              ElementsAre("forward of stage 2", "transfer between stages 1 and 2"));
  EXPECT_TRUE(moved.proposes);
  // The link is as busy in the transfer as was known.
  EXPECT_EQ(moved.outlook.times.forward[1], (BoundaryTime{.busy_ns = 200, .latency_ns = 2500}));
}

TEST(RunView, HiddenBoundaryKeepsItsKnownTime) {
  PipelineTimes times = slow_middle();
  times.forward[1] = times.backward[1] = {.busy_ns = 0, .latency_ns = 100};
  const Outlook ran = outlook_of(named("gpipe", 4, 12), times);
  json traces = traces_of(ran);
  for (json& each : traces) {
    for (json& step : each["steps"]) step["data_wait_ns"] = 0;
  }
  const RunView view = view_of(question(traces, known(times)));
  EXPECT_THAT(view.run.transfer_ns, Each(std::nullopt));
  EXPECT_EQ(view.outlook.times.forward, times.forward);
  EXPECT_THAT(to_text(view), HasSubstr("hidden"));
}

TEST(RunView, ProposedScheduleTakesItsStatedTime) {
  const PipelineTimes times = slow_middle();
  const json traces = traces_of(outlook_of(named("1f1b", 4, 12), times));
  const RunView view = view_of(question(traces));
  ASSERT_TRUE(view.proposes);
  uint64_t before_ns = 0;
  for (const Candidate& each : view.candidates) {
    const Schedule made = schedule_of(each, view.outlook.schedule);
    EXPECT_EQ(outlook_of(made, view.outlook.times).forecast.total_ns, each.total_ns) << each.name;
    EXPECT_GE(each.total_ns, before_ns);
    before_ns = each.total_ns;
    for (const std::vector<Action>& actions : made.actions) {
      for (const Action& action : actions) EXPECT_NE(action.kind, ActionKind::kWeightGrad);
    }
  }
  const json answer = json::parse(to_json(view));
  EXPECT_EQ(answer["proposal"]["schedule"]["name"], view.candidates.front().name);
  EXPECT_EQ(answer["run"]["total_ns"], view.run.total_ns);
  EXPECT_THAT(to_text(view), HasSubstr("proposed: " + view.candidates.front().name));
}

// With the memory of 1F1B and a slow link, an order of its own is far better than any known one. It
// is proposed as a list of actions.
TEST(RunView, ArrangedOrderIsProposedIfFasterThanKnownSchedules) {
  PipelineTimes times;
  times.stages.assign(8, {.forward_ns = 3800,
                          .backward_ns = 6700,
                          .input_grad_ns = 4640,
                          .weight_grad_ns = 2060,
                          .recompute_ns = 3800});
  times.forward.resize(7);
  times.forward[3] = {.busy_ns = 0, .latency_ns = 15'200};
  times.backward = times.forward;
  const json traces = traces_of(outlook_of(named("1f1b", 8, 16), times));
  const RunView view = view_of(question(traces, {{"limits", nullptr}, {"may_split", true}}));
  ASSERT_FALSE(view.candidates.empty());
  const Candidate& best = view.candidates.front();
  EXPECT_EQ(best.name, "arranged");
  EXPECT_TRUE(view.proposes);
  EXPECT_THAT(best.peaks, Each(Le(8)));
  EXPECT_LT(static_cast<double>(best.total_ns),
            0.95 * static_cast<double>(view.candidates[1].total_ns));
  const json answer = json::parse(to_json(view));
  json plan = {{"actions", answer["proposal"]["schedule"]["actions"]},
               {"rank_of", view.outlook.schedule.rank_of}};
  const std::string again = question(traces, {{"schedule", plan}});
  json document = json::parse(again);
  document.erase("traces");
  document["in_flight"] = answer["proposal"]["in_flight"];
  document["times"] = known(view.outlook.times)["times"];
  Result<ScheduleQuestion> parsed = parse_question(document.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status().text();
  const Result<Outlook> outlook = look_at(std::move(parsed).value());
  ASSERT_TRUE(outlook.ok()) << outlook.status().text();
  EXPECT_EQ(outlook.value().forecast.total_ns, best.total_ns);
  // Limits of stages are those of the known schedules only.
  const RunView limited =
      view_of(question(traces, {{"may_split", true}, {"stage_limits", std::vector<int>(8, 8)}}));
  for (const Candidate& each : limited.candidates) EXPECT_NE(each.name, "arranged");
}

TEST(RunView, BackwardStepsAreSplitOnlyIfAllowedWithinLimits) {
  const PipelineTimes times = slow_middle();
  const json traces = traces_of(outlook_of(named("1f1b", 4, 12), times));
  const auto has = [](const RunView& view, const std::string& name) {
    return std::any_of(view.candidates.begin(), view.candidates.end(),
                       [&](const Candidate& each) { return each.name == name; });
  };
  EXPECT_FALSE(has(view_of(question(traces)), "zb-h1"));
  EXPECT_TRUE(has(view_of(question(traces, {{"may_split", true}})), "zb-h1"));
  const RunView limited = view_of(question(traces, {{"limits", {5}}}));
  EXPECT_TRUE(has(limited, "1f1b"));
  EXPECT_FALSE(has(limited, "gpipe"));
  for (const Candidate& each : limited.candidates) EXPECT_THAT(each.peaks, Each(Le(5)));
  // Without limits nothing may keep more than the rank that keeps most now.
  const RunView as_now = view_of(question(traces, {{"limits", nullptr}}));
  EXPECT_EQ(as_now.limit, 4);
  EXPECT_TRUE(has(as_now, "1f1b"));
  for (const Candidate& each : as_now.candidates) EXPECT_THAT(each.peaks, Each(Le(4)));
  // The schedule that ran may have kept more.
  for (const Candidate& each : view_of(question(traces, {{"limits", {2}}})).candidates) {
    EXPECT_THAT(each.peaks, Each(Le(2)));
  }
}

TEST(RunView, ProposalsRespectTheLimitOfAStage) {
  const json traces = traces_of(outlook_of(named("1f1b", 4, 12), slow_middle()));
  const RunView free = view_of(question(traces));
  ASSERT_GT(count_live(named("eager-1f1b", 4, 12)).stages[1], 3u);
  const RunView limited = view_of(question(traces, {{"stage_limits", {0, 3, 0, 0}}}));
  EXPECT_LT(limited.candidates.size(), free.candidates.size());
  for (const Candidate& each : limited.candidates) {
    EXPECT_LE(count_live(schedule_of(each, limited.outlook.schedule)).stages[1], 3u) << each.name;
  }
  EXPECT_THAT(refusal(question(traces, {{"stage_limits", {1, 2}}})),
              HasSubstr("stage_limits of 2 stages for a schedule of 4"));
}

// A pair that one callback performed has the same moments for both steps.
TEST(RunView, PairPerformedAsOneCountsOnce) {
  PipelineTimes times = slow_middle();
  times.overlap_ppm = 400'000;
  const Schedule schedule = named("dualpipe-v", 2, 8);
  ASSERT_TRUE(std::any_of(schedule.actions[0].begin(), schedule.actions[0].end(),
                          [](const Action& each) { return each.overlaps_next; }));
  const Outlook ran = outlook_of(schedule, times);
  const RunView view = view_of(
      question(traces_of(ran),
               {{"schedule", {{"name", "dualpipe-v"}, {"ranks", 2}, {"micro_batches", 8}}}}));
  ASSERT_TRUE(view.run.overlap_ppm.has_value());
  EXPECT_NEAR(*view.run.overlap_ppm, times.overlap_ppm, 100'000);
  const auto forecast = static_cast<double>(view.outlook.forecast.total_ns);
  EXPECT_NEAR(forecast / static_cast<double>(ran.forecast.total_ns), 1, 0.1);
  EXPECT_EQ(view.replayed_ns, ran.forecast.total_ns);
}

// The parts of a pair that no callback performed as one follow each other.
TEST(RunView, PartsOfAPairAreReplayedOneAfterTheOther) {
  const Schedule schedule = named("dualpipe-v", 2, 8);
  const Outlook ran = outlook_of(schedule, slow_middle());  // nothing is hidden
  json traces = traces_of(ran);
  uint64_t pairs = 0;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const std::vector<Action>& actions = schedule.actions[rank];
    for (size_t i = 0; i + 1 < actions.size(); ++i) {
      if (!actions[i].overlaps_next) continue;
      ++pairs;
      json& steps = traces[rank]["steps"];
      const auto middle_ns = steps[i]["start_ns"].get<uint64_t>() + 1000;
      steps[i]["end_ns"] = middle_ns;
      steps[i + 1]["start_ns"] = middle_ns;
    }
  }
  ASSERT_GT(pairs, 0u);
  const RunView view = view_of(question(
      traces, {{"schedule", {{"name", "dualpipe-v"}, {"ranks", 2}, {"micro_batches", 8}}}}));
  EXPECT_EQ(view.replayed_ns, ran.forecast.total_ns);
}

TEST(RunView, ProposalsForAVScheduleKeepItsRanks) {
  PipelineTimes times = slow_middle();
  const Schedule schedule = named("zb-v", 2, 8);
  const json traces = traces_of(outlook_of(schedule, times));
  const RunView view = view_of(question(traces));
  ASSERT_FALSE(view.candidates.empty());
  for (const Candidate& each : view.candidates) {
    EXPECT_EQ(schedule_of(each, view.outlook.schedule).rank_of, schedule.rank_of);
  }
}

TEST(RunView, PictureShowsAStepAsRunAndAsForecast) {
  const Outlook ran = outlook_of(named("1f1b", 4, 12), slow_middle());
  Result<std::string> picture = to_svg(view_of(question(traces_of(ran))));
  ASSERT_TRUE(picture.ok());
  size_t steps = 0;
  for (size_t at = picture->find("2B7 on rank 2"); at != std::string::npos;
       at = picture->find("2B7 on rank 2", at + 1)) {
    ++steps;
  }
  EXPECT_EQ(steps, 2u);
  EXPECT_THAT(picture.value(), HasSubstr("as run"));
}

TEST(RunView, TracesThatDoNotFitTheScheduleAreRefused) {
  const Outlook ran =
      outlook_of(named("1f1b", 2, 3), {.stages = {{1, 2, 1, 1, 1}, {1, 2, 1, 1, 1}}});
  const json good = traces_of(ran);
  EXPECT_EQ(refusal(question(good)), "none");
  json some = good;
  some.erase(1);
  EXPECT_THAT(refusal(question(
                  some, {{"schedule", {{"name", "1f1b"}, {"ranks", 2}, {"micro_batches", 3}}}})),
              HasSubstr("there is none of the schedule's rank 1"));
  EXPECT_THAT(refusal(question(
                  good, {{"schedule", {{"name", "gpipe"}, {"ranks", 2}, {"micro_batches", 3}}}})),
              HasSubstr("rank 0 performed 0B0 where the schedule has 0F2"));
  EXPECT_THAT(refusal(question(
                  good, {{"schedule", {{"name", "1f1b"}, {"ranks", 2}, {"micro_batches", 4}}}})),
              HasSubstr("where the schedule has"));
  EXPECT_THAT(refusal(question(
                  good, {{"schedule", {{"name", "1f1b"}, {"ranks", 1}, {"micro_batches", 3}}}})),
              HasSubstr("rank 1 is of group 1, and the schedule has 1 ranks"));
  const auto with = [&](const char* path, const json& value) {
    json changed = good;
    changed[json::json_pointer(path)] = value;
    return refusal(question(changed));
  };
  EXPECT_THAT(with("/0/evaluation", true), HasSubstr("traces[0].evaluation is true"));
  EXPECT_THAT(with("/1/format", "plan"), HasSubstr("traces[1].format is of no trace"));
  EXPECT_THAT(with("/1/version", 2), HasSubstr("traces[1].version is not 1"));
  EXPECT_THAT(with("/0/steps/0/action", "0X0"), HasSubstr("traces[0].steps[0].action"));
  EXPECT_THAT(with("/0/steps/0/action", "(0F0;0B0)OVERLAP_F_B"), HasSubstr("is no action"));
  EXPECT_THAT(with("/0/steps/1/end_ns", 0),
              HasSubstr("traces[0].steps[1].end_ns is before start_ns"));
  EXPECT_THAT(with("/0/steps/1/start_ns", -1), HasSubstr("traces[0].steps[1].start_ns"));
  EXPECT_THAT(with("/0/group", 9), HasSubstr("there is none of the schedule's rank 0"));
  EXPECT_THAT(with("/0/steps", json::array()), HasSubstr("traces: "));
  EXPECT_THAT(with("/0/steps/3/action", "0B2"), HasSubstr("rank 0"));  // there twice
  EXPECT_THAT(with("/0/steps/0/action", "9000F1000000"), HasSubstr("traces"));
  EXPECT_THAT(with("/1/pipeline", 1), HasSubstr("rank 1 is of pipeline 1, and rank 0 of 0"));
  EXPECT_THAT(with("/1/training_step", 8), HasSubstr("rank 1 tells of step 8 of the training"));
  json empty = json::array({good[0]});
  empty[0]["steps"] = json::array();
  EXPECT_THAT(refusal(question(empty)), HasSubstr("no stage"));
  const json stage = {{"forward_ns", 1}, {"backward_ns", 2}};
  EXPECT_THAT(refusal(question(good, {{"times", {{"stages", {stage, stage, stage}}}}})),
              HasSubstr("times of 3 stages for a schedule of 2"));
  EXPECT_THAT(refusal(question(json::array())), HasSubstr("traces has no trace"));
  EXPECT_THAT(refusal(question(json(3))), HasSubstr("traces is no list"));
}

}  // namespace
}  // namespace hetcomm::pipeline
