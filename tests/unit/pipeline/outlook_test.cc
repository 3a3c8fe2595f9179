// Questions about schedules, and their answers:
//    - a question by name, by PyTorch's text and by actions gives the same schedule;
//    - every wrong entry is refused with its path, and what no schedule can do with its reason;
//    - the critical path is without gaps: its steps and transfers take the whole time;
//    - steps never wait for room unless items in flight are given;
//    - routes: without sharing they change nothing, staging adds up, shared links serve one at a
//      time, and steps and the end wait for gathers and reductions;
//    - answers are the same bytes each time, and JSON and traces are JSON.
#include "pipeline/outlook/outlook.h"

#include <string>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/named.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns a question with |schedule| and further members.
std::string question(const std::string& schedule, const std::string& more = "") {
  return fmt::format(
      R"({{"format": "hetcomm schedule question", "version": 1, "schedule": {}{}{}}})", schedule,
      more.empty() ? "" : ", ", more);
}

std::string refusal(const std::string& text) {
  Result<ScheduleQuestion> parsed = parse_question(text);
  if (!parsed.ok()) return std::string(parsed.status().text());
  const Result<Outlook> outlook = look_at(std::move(parsed).value());
  return outlook.ok() ? "none" : std::string(outlook.status().text());
}

Outlook outlook_of(const std::string& text) {
  Result<ScheduleQuestion> parsed = parse_question(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  if (!parsed.ok()) return {};
  Result<Outlook> outlook = look_at(std::move(parsed).value());
  EXPECT_TRUE(outlook.ok()) << outlook.status().text();
  return outlook.ok() ? std::move(outlook).value() : Outlook();
}

constexpr const char* kTimes = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
    "forward": [{}, {"busy_ns": 5, "latency_ns": 20}, {}]})";

TEST(Question, NameCsvAndActionsGiveTheSameSchedule) {
  const Schedule named =
      outlook_of(question(R"({"name": "1F1B", "ranks": 2, "micro_batches": 2})")).schedule;
  EXPECT_EQ(named, one_f_one_b(plain_warmups(2), 2).value());
  EXPECT_EQ(outlook_of(question(R"({"csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"})")).schedule,
            named);
  EXPECT_EQ(outlook_of(question(R"({"actions": [["0F0", "0F1", "0B0", "0B1"],
      ["1F0", "1B0", "1F1", "1B1"]]})"))
                .schedule,
            named);
  // A document that was written is understood again.
  const json written = json::parse(
      to_json(outlook_of(question(R"({"name": "dualpipe-v", "ranks": 2, "micro_batches": 5})"))));
  EXPECT_EQ(outlook_of(question(json({{"actions", written["schedule"]["actions"]},
                                      {"rank_of", written["schedule"]["rank_of"]}})
                                    .dump()))
                .schedule,
            dual_pipe_v(2, 5).value());
}

TEST(Question, EveryScheduleNameIsAccepted) {
  for (const std::string& name : schedule_names()) {
    const Outlook outlook = outlook_of(
        question(fmt::format(R"({{"name": "{}", "ranks": 4, "micro_batches": 8}})", name),
                 name == "h-1f1b" ? kTimes : ""));
    EXPECT_EQ(outlook.schedule.ranks(), 4u) << name;
    EXPECT_EQ(outlook.schedule.micro_batches, 8u) << name;
  }
  EXPECT_THAT(refusal(question(R"({"name": "zbvzerobubble", "ranks": 2, "micro_batches": 4})")),
              "none");
}

TEST(Question, SchedulesAreLoweredToTheRequestedLevel) {
  const std::string schedule = R"({"name": "1f1b", "ranks": 2, "micro_batches": 2})";
  EXPECT_EQ(
      write_csv(
          outlook_of(question(schedule, R"("level": "transfers", "receives_ahead": 0)")).schedule),
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const std::string waits = write_csv(
      outlook_of(
          question(schedule, R"("level": "waits", "send_waits": "at_once", "reductions": true,
                                       "receives_ahead": 2)"))
          .schedule);
  EXPECT_THAT(waits, HasSubstr("0SEND_F0,0WAIT_SEND_F0"));
  EXPECT_THAT(waits, HasSubstr("1REDUCE_GRAD"));
}

TEST(Question, ErrorNamesTheInvalidEntry) {
  const std::string schedule = R"({"name": "1f1b", "ranks": 2, "micro_batches": 2})";
  EXPECT_THAT(refusal("{"), HasSubstr("line 1"));
  EXPECT_THAT(refusal(R"({"format": "hetcomm schedule question", "version": 1})"),
              HasSubstr("schedule is missing"));
  EXPECT_THAT(refusal(R"({"format": "hetcomm schedule question", "version": 2})"),
              HasSubstr("version"));
  EXPECT_THAT(refusal(question(schedule, R"("time": 1)")), HasSubstr("time is no field"));
  EXPECT_THAT(refusal(question(R"({"name": "1f1c", "ranks": 2, "micro_batches": 2})")),
              HasSubstr("did you mean '1f1b'?"));
  EXPECT_THAT(refusal(question(R"({"name": "1f1b", "micro_batches": 2})")),
              HasSubstr("schedule.ranks is missing or 0"));
  EXPECT_THAT(refusal(question(R"({"name": "1f1b", "ranks": 2})")),
              HasSubstr("micro-batches, not 0"));
  EXPECT_THAT(refusal(question(R"({"name": "1f1b", "ranks": 99999, "micro_batches": 2})")),
              HasSubstr("schedule.ranks is no whole number up to 16384"));
  EXPECT_THAT(
      refusal(question(R"({"name": "zb-h1", "ranks": 2, "micro_batches": 2, "warmups": [1, 1]})")),
      HasSubstr("zb-h1 takes no warm-up counts"));
  EXPECT_THAT(
      refusal(question(R"({"name": "1f1b", "ranks": 2, "micro_batches": 2, "warmups": [1]})")),
      HasSubstr("1 warm-up counts for 2 ranks"));
  EXPECT_THAT(refusal(question(R"({"name": "1f1b", "ranks": 2, "micro_batches": 2, "chunks": 2})")),
              HasSubstr("1f1b has 1 stages on each rank, not 2"));
  EXPECT_THAT(
      refusal(question(
          R"({"name": "virtual-1f1b", "ranks": 2, "micro_batches": 2, "slow_boundaries": [1]})")),
      HasSubstr("there is no boundary behind stage 1"));
  EXPECT_THAT(refusal(question(R"({"name": "h-1f1b", "ranks": 2, "micro_batches": 2})")),
              HasSubstr("needs the times of 2 stages and 1 boundaries"));
  EXPECT_THAT(refusal(question(R"({"csv": "0F0,0Q0"})")),
              HasSubstr("schedule.csv is wrong: line 1, cell 2"));
  EXPECT_THAT(refusal(question(R"({"actions": [["0F0", 3]]})")),
              HasSubstr("schedule.actions[0][1] is no action"));
  EXPECT_THAT(refusal(question(R"({"actions": [["0F0"], ["0B0"]]})")),
              HasSubstr("ranks 0 and 1 compute"));
  EXPECT_THAT(refusal(question(R"({})")), HasSubstr("schedule has no name, csv or actions"));
  EXPECT_THAT(refusal(question(schedule, R"("level": "all")")),
              HasSubstr("level is 'all' and none of"));
  EXPECT_THAT(refusal(question(R"({"csv": "0F0,0SEND_F0\n1RECV_F0,1F0"})", R"("level": "waits")")),
              HasSubstr("the schedule has transfers of its own"));
  EXPECT_THAT(refusal(question(R"({"csv": "0B0,0F0"})", R"("level": "waits")")),
              HasSubstr("can't go on"));
  EXPECT_THAT(refusal(question(schedule, R"("times": {"stages": []})")),
              HasSubstr("times.stages has no element"));
  EXPECT_THAT(refusal(question(schedule, R"("times": {"stages": [{"forward_ns": -1}]})")),
              HasSubstr("times.stages[0].forward_ns is no whole number"));
  EXPECT_THAT(refusal(question(schedule, R"("times": {"stages": [{}, {}, {}]})")),
              HasSubstr("times of 3 stages for a schedule of 2"));
  EXPECT_THAT(refusal(question(schedule, R"("in_flight": [0])")),
              HasSubstr("one item in flight at least"));
  EXPECT_THAT(refusal(question(schedule, R"("limits": [1, 1])")),
              HasSubstr("rank 0 holds up to 2 in 0F1, and 1 is its limit"));
  EXPECT_THAT(refusal(question(schedule, R"("send_buffers": 0, "level": "waits")")),
              HasSubstr("send_buffers is 0"));
}

TEST(Question, SchedulesAreArrangedUnderTheLimit) {
  const std::string schedule =
      R"({"name": "arranged", "ranks": 4, "micro_batches": 8, "effort": 100000})";
  const std::string limits = std::string(kTimes) + R"(, "limits": [3])";
  const Outlook outlook = outlook_of(question(schedule, limits));
  EXPECT_THAT(outlook.peaks, testing::Each(testing::Le(3)));
  EXPECT_EQ(to_json(outlook_of(question(schedule, limits))), to_json(outlook));
  EXPECT_THAT(refusal(question(schedule, kTimes)), HasSubstr("times or limits are missing"));
  EXPECT_THAT(refusal(question(schedule, std::string(kTimes) + R"(, "limits": [0])")),
              HasSubstr("rank 0 needs 1 for one micro-batch, and 0 is its limit"));
  EXPECT_THAT(refusal(question(R"({"name": "arranged", "ranks": 4, "chunks": 5000})", limits)),
              HasSubstr("has 4 ranks with 5000 stages each"));
}

// The forecast is that of enough items in flight, and tells how many these are.
TEST(Outlook, DerivedItemsInFlightCostNoTime) {
  const std::string schedule = R"({"name": "h-1f1b", "ranks": 2, "micro_batches": 40})";
  const std::string times = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
                                         "forward": [{"latency_ns": 45}]})";
  const Outlook enough = outlook_of(question(schedule, times));
  // The way there and back takes as long as three micro-batches.
  EXPECT_THAT(enough.in_flight, ElementsAre(3));
  const Outlook many = outlook_of(question(schedule, times + R"(, "in_flight": [40])"));
  EXPECT_EQ(enough.forecast.total_ns, many.forecast.total_ns);
  const Outlook few = outlook_of(question(schedule, times + R"(, "in_flight": [1])"));
  EXPECT_GT(few.forecast.total_ns, many.forecast.total_ns);
}

TEST(Outlook, BubblesAreExactForSmallAndLongTimes) {
  const Outlook small =
      outlook_of(question(R"({"name": "1f1b", "ranks": 64, "micro_batches": 63})"));
  EXPECT_EQ(small.forecast.bubble_ppm(), 500'000u);
  const Outlook long_times = outlook_of(question(
      R"({"name": "1f1b", "ranks": 2, "micro_batches": 1})",
      R"("times": {"stages": [{"forward_ns": 3000000000000000, "backward_ns": 6000000000000000}]})"));
  EXPECT_EQ(long_times.forecast.bubble_ppm(), 500'000u);
  EXPECT_THAT(refusal(question(R"({"name": "1f1b", "ranks": 2, "micro_batches": 1000})",
                               R"("times": {"stages": [{"forward_ns": 9007199254740992}]})")),
              HasSubstr("more than 2^62 ns"));
}

TEST(Question, OversizedOrInconsistentSchedulesAreRefused) {
  EXPECT_THAT(
      refusal(question(R"({"name": "1f1b", "micro_batches": 2})", R"("times": {"stages": [{}]})")),
      HasSubstr("schedule.ranks is missing or 0"));
  EXPECT_THAT(refusal(question(R"({"name": "zb-h1", "ranks": 16384, "micro_batches": 1024})",
                               R"("level": "waits")")),
              HasSubstr("4194304 steps are the most"));
  EXPECT_THAT(refusal(question(R"({"name": "gpipe", "ranks": 1, "micro_batches": 16384})",
                               R"("memory": [{"forward_adds": 1125899906842624}])")),
              HasSubstr("memory[0].forward_adds is no whole number"));
  EXPECT_THAT(refusal(question(R"({"name": "arranged", "ranks": 4, "micro_batches": 3})",
                               std::string(kTimes) + R"(, "limits": [3, 3, 3, 3, 3])")),
              HasSubstr("limits of 5 ranks for 4"));
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += "\\n";
  EXPECT_THAT(refusal(question(fmt::format(R"({{"csv": "{}"}})", lines))),
              HasSubstr("more than 16384 lines"));
  const Outlook wide = outlook_of(
      question(R"({"name": "1f1b", "ranks": 4096, "micro_batches": 1})", R"("level": "waits")"));
  EXPECT_EQ(wide.schedule.ranks(), 4096u);
  const Outlook arranged = outlook_of(
      question(R"({"name": "arranged", "ranks": 1024, "micro_batches": 16, "effort": 0})",
               R"("times": {"stages": [{"forward_ns": 1, "backward_ns": 2}]}, "limits": [1000])"));
  EXPECT_EQ(arranged.schedule.ranks(), 1024u);
}

TEST(Question, MissingPartsOfABackwardStepAreDerived) {
  const auto stage = [](const std::string& times) {
    return outlook_of(question(R"({"name": "zb-h1", "ranks": 1, "micro_batches": 1})",
                               R"("times": {"stages": [)" + times + "]}"))
        .times.stages[0];
  };
  EXPECT_EQ(stage(R"({"backward_ns": 20, "weight_grad_ns": 8})").input_grad_ns, 12u);
  EXPECT_EQ(stage(R"({"backward_ns": 20, "input_grad_ns": 9})").weight_grad_ns, 11u);
  EXPECT_EQ(stage(R"({"input_grad_ns": 9, "weight_grad_ns": 8})").backward_ns, 17u);
  EXPECT_EQ(stage(R"({"backward_ns": 21})").input_grad_ns, 11u);
  EXPECT_THAT(refusal(question(R"({"name": "zb-h1", "ranks": 1, "micro_batches": 1})",
                               R"("times": {"stages": [{"backward_ns": 3, "input_grad_ns": 4}]})")),
              HasSubstr("backward_ns is shorter than a part of it"));
}

TEST(Outlook, CriticalPathsHaveNoGaps) {
  for (const std::string& name : schedule_names()) {
    for (const char* more : {"", R"(, "level": "waits", "receives_ahead": 3, "send_buffers": 4)"}) {
      const std::string times =
          name.find("-v") != std::string::npos || name == "looped-bfs" ||
                  name.find("interleaved") != std::string::npos
              ? R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
                                         "forward": [{"busy_ns": 7, "latency_ns": 4}], "overlap_ppm": 300000})"
              : kTimes;
      const Outlook outlook = outlook_of(question(
          fmt::format(R"({{"name": "{}", "ranks": 4, "micro_batches": 8}})", name), times + more));
      uint64_t at = 0;
      for (const CriticalStep& step : critical_path(outlook)) {
        const Span& span = outlook.forecast.actions[step.rank][step.action];
        EXPECT_EQ(span.start_ns, at + step.transfer_ns) << name;
        at = span.end_ns;
      }
      EXPECT_EQ(at, outlook.forecast.total_ns) << name;
    }
  }
}

// H-1F1B hides the boundary but for the first and the last transfer.
TEST(Outlook, TextStatesWhatEachBoundaryCosts) {
  const std::string hidden = to_text(
      outlook_of(question(R"({"name": "h-1f1b", "ranks": 4, "micro_batches": 16})", kTimes)));
  EXPECT_THAT(hidden, HasSubstr("8.1 % between stages 1 and 2"));
  const std::string shown =
      to_text(outlook_of(question(R"({"name": "1f1b", "ranks": 4, "micro_batches": 16})", kTimes)));
  EXPECT_THAT(shown, HasSubstr("41.2 % between stages 1 and 2"));
  EXPECT_THAT(to_text(outlook_of(question(
                  R"({"name": "h-1f1b", "ranks": 2, "micro_batches": 4})",
                  R"("times": {"stages": [{"forward_ns": 10}], "forward": [{"busy_ns": 11}]})"))),
              HasSubstr("between stages 0 and 1 is busy for longer than a stage computes"));
  EXPECT_THAT(
      to_text(outlook_of(question(R"({"name": "looped-bfs", "ranks": 2, "micro_batches": 5})"))),
      HasSubstr("items in flight, by boundary: 2 2 2"));
}

TEST(Outlook, PeaksUseTheMemoryUnitsOfTheQuestion) {
  const Outlook outlook = outlook_of(question(
      R"({"name": "zb-h1", "ranks": 2, "micro_batches": 6})",
      R"("memory": [{"forward_adds": 1000, "input_grad_frees": 400, "weight_grad_frees": 600}])"));
  EXPECT_THAT(outlook.peaks, ElementsAre(2000, 1600));
}

TEST(Outlook, MemoryIsReportedOverTime) {
  const Outlook outlook =
      outlook_of(question(R"({"name": "1f1b", "ranks": 2, "micro_batches": 2})",
                          R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}]},
         "memory": [{"forward_adds": 4, "input_grad_frees": 1, "weight_grad_frees": 3}])"));
  const json told = json::parse(to_json(outlook))["forecast"]["memory"];
  EXPECT_EQ(told[0], json::parse(R"([{"at_ns": 0, "held": 4}, {"at_ns": 10, "held": 8},
                                     {"at_ns": 60, "held": 4}, {"at_ns": 90, "held": 0}])"));
  std::vector<std::pair<double, int64_t>> counted;
  const json trace = json::parse(to_chrome_trace(outlook));
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "C" || event["name"] != "memory of rank 0") continue;
    counted.emplace_back(event["ts"].get<double>(), event["args"]["held"].get<int64_t>());
  }
  EXPECT_THAT(counted, ElementsAre(testing::Pair(0.0, 4), testing::Pair(0.01, 8),
                                   testing::Pair(0.06, 4), testing::Pair(0.09, 0)));
}

TEST(Outlook, ForwardOnlyScheduleHoldsOneActivation) {
  const Outlook outlook = outlook_of(
      question(R"({"name": "forward-only", "ranks": 2, "micro_batches": 64})", R"("limits": [1])"));
  EXPECT_THAT(outlook.peaks, ElementsAre(1, 1));
}

// The first stage needs all its items in flight at once.
TEST(Outlook, NoStepWaitsForBufferSpaceByDefault) {
  for (const uint32_t micro_batches : {3u, 16u, 17u}) {
    const std::string schedule =
        fmt::format(R"({{"name": "gpipe", "ranks": 2, "micro_batches": {}}})", micro_batches);
    const std::string times = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
        "forward": [{"latency_ns": 1000}]})";
    const Outlook found = outlook_of(question(schedule, times));
    EXPECT_EQ(found.forecast.total_ns,
              outlook_of(question(schedule, times + R"(, "in_flight": [64])")).forecast.total_ns);
    EXPECT_EQ(found.forecast.total_ns, micro_batches * 30u + 2 * 1000u + 30u);
  }
}

// --- routes --------------------------------------------------------------------------------------

TEST(Routes, RouteOverItsOwnResourceMatchesThePlainForecast) {
  for (const std::string& name : schedule_names()) {
    const std::string schedule =
        fmt::format(R"({{"name": "{}", "ranks": 4, "micro_batches": 8}})", name);
    const std::string times = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
        "forward": [{"busy_ns": 7, "latency_ns": 4}]})";
    const Outlook plain = outlook_of(question(schedule, times));
    const Outlook routed = outlook_of(question(schedule, times + R"(, "routes": [
            {"after": 1, "hops": [{"busy_ns": 7, "latency_ns": 4, "resources": ["a"]}]}])"));
    EXPECT_EQ(routed.forecast.total_ns, plain.forecast.total_ns) << name;
    EXPECT_EQ(routed.forecast.actions, plain.forecast.actions) << name;
    EXPECT_EQ(routed.in_flight, plain.in_flight) << name;
    // Two halves of a pair may get what they lack at the same time: then one is named.
    if (name == "dualpipe-v") continue;
    EXPECT_EQ(routed.forecast.bounds, plain.forecast.bounds) << name;
  }
}

// Each half of a pair waits for what it lacks itself: the first one has an input and the room of
// four items, and the second one the room of one.
TEST(Routes, HalvesOfAPairWaitForTheirOwnInputs) {
  const std::string schedule = R"({"csv": "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1B0,)"
                               R"((1F2;1B1)OVERLAP_F_B,(1F3;1B2)OVERLAP_F_B,1B3\n)"
                               R"(2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n"})";
  const std::string times = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
      "forward": [{"busy_ns": 1}, {"busy_ns": 1}], "backward": [{"busy_ns": 100}, {"busy_ns": 1}]},
      "in_flight": [1, 4])";
  const Outlook plain = outlook_of(question(schedule, times));
  const Outlook routed = outlook_of(question(schedule, times + R"(, "routes": [
          {"after": 0, "direction": "backward", "hops": [{"busy_ns": 100, "resources": ["a"]}]}])"));
  EXPECT_EQ(routed.forecast.total_ns, plain.forecast.total_ns);
  EXPECT_EQ(routed.forecast.bounds, plain.forecast.bounds);
  EXPECT_EQ(to_text(routed).substr(0, 200), to_text(plain).substr(0, 200));
  EXPECT_EQ(json::parse(to_json(routed))["forecast"]["critical_path"],
            json::parse(to_json(plain))["forecast"]["critical_path"]);
}

TEST(Routes, TimesOfTheHopsOfARouteAreSummed) {
  const std::string schedule = R"({"name": "forward-only", "ranks": 2, "micro_batches": 1})";
  const std::string hops = R"("hops": [{"busy_ns": 1, "resources": ["out"]},
      {"busy_ns": 2, "latency_ns": 20, "resources": ["wire", "nic"]}, {"busy_ns": 3}])";
  const std::string times = R"("times": {"stages": [{"forward_ns": 10}]}, "routes": )";
  const Outlook outlook = outlook_of(question(schedule, times + R"([{"after": 0, )" + hops + "}]"));
  EXPECT_EQ(outlook.forecast.total_ns, 10u + 26 + 10);
  const json told = json::parse(to_json(outlook))["forecast"];
  EXPECT_EQ(told["resources"][1], json::parse(R"({"name": "wire forward", "busy_ns": 2})"));
  EXPECT_THAT(to_text(outlook), HasSubstr("wire forward: busy 0.000 ms, 4.3 %"));
}

// Two boundaries over one wire, and both directions of a boundary.
TEST(Routes, SharedLinksServeOneTransferAtATime) {
  const std::string schedule = R"({"name": "forward-only", "ranks": 3, "micro_batches": 8})";
  const std::string times = R"("times": {"stages": [{"forward_ns": 10}]}, "routes": )";
  const auto wire = [](int after, const char* name, const char* more) {
    return fmt::format(R"({{"after": {}, "hops": [{{"busy_ns": 10, "resources": ["{}"]}}]{}}})",
                       after, name, more);
  };
  const auto total = [&](const std::string& routes) {
    return outlook_of(question(schedule, times + "[" + routes + "]")).forecast.total_ns;
  };
  EXPECT_EQ(total(wire(0, "a", "") + "," + wire(1, "b", "")), 80u + 4 * 10);
  // 16 transfers over one wire, behind the first step and before the last one.
  EXPECT_EQ(total(wire(0, "a", "") + "," + wire(1, "a", "")), 160u + 2 * 10);
  const std::string training = R"({"name": "1f1b", "ranks": 2, "micro_batches": 8})";
  const std::string one_way = R"(, "direction": "forward")";
  const std::string other_way = R"(, "direction": "backward")";
  const Outlook half =
      outlook_of(question(training, times + "[" + wire(0, "a", one_way.c_str()) + "," +
                                        wire(0, "a", other_way.c_str()) + "]"));
  const Outlook full = outlook_of(question(training, times + "[" + wire(0, "a", "") + "]"));
  EXPECT_EQ(half.resources.size(), 1u);
  EXPECT_EQ(half.resources[0].busy_ns, 160u);
  EXPECT_EQ(full.resources.size(), 2u);
  EXPECT_GE(half.forecast.total_ns, full.forecast.total_ns);
}

TEST(Routes, StepsWaitForGathersAndTheForecastEndsAfterReductions) {
  const std::string schedule = R"({"csv": "0UNSHARD,0F0,0B0,0RESHARD\n1F0,1B0\n"})";
  const std::string times = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}]})";
  const uint64_t plain = outlook_of(question(schedule, times)).forecast.total_ns;
  EXPECT_EQ(plain, 60u);
  const Outlook gathers = outlook_of(
      question(schedule, times + R"(, "routes": [{"gather": 0, "hops": [{"busy_ns": 50}]}])"));
  EXPECT_EQ(gathers.forecast.total_ns, plain + 50);
  EXPECT_THAT(to_text(gathers), HasSubstr("45.5 % for weights"));
  const Outlook reduces = outlook_of(question(schedule, times + R"(, "reductions": true,
                  "routes": [{"reduce": [0, 1], "hops": [{"busy_ns": 7, "resources": ["wire"]}]}])"));
  EXPECT_EQ(reduces.forecast.total_ns, plain + 7);
  const json told = json::parse(to_json(reduces))["forecast"]["reductions"];
  EXPECT_EQ(told,
            json::parse(R"([{"stages": [0, 1], "start_ns": 60, "end_ns": 67, "alone_ns": 7}])"));
  EXPECT_THAT(to_text(reduces), HasSubstr("reduction of stages 0 1"));
  EXPECT_THAT(to_chrome_trace(reduces), HasSubstr("reduction of stages 0 1"));
  EXPECT_THAT(to_svg(reduces).value(),
              HasSubstr("reduction of stages 0 1: 6e-05 ms to 6.7e-05 ms"));
  EXPECT_THAT(to_svg(gathers).value(), Not(HasSubstr("reduction")));
}

TEST(Routes, CriticalPathsHaveNoGaps) {
  for (const char* name : {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v",
                           "interleaved-1f1b", "four-phase", "forward-only"}) {
    for (const char* more : {"", R"(, "in_flight": [4])",
                             R"(, "level": "waits", "receives_ahead": 3, "send_buffers": 4)"}) {
      const Outlook outlook = outlook_of(
          question(fmt::format(R"({{"name": "{}", "ranks": 3, "micro_batches": 8}})", name),
                   std::string(R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
              "forward": [{"busy_ns": 3, "latency_ns": 1}]}, "routes": [
              {"after": 0, "slices": 2, "hops": [{"busy_ns": 4, "resources": ["a"]},
                                    {"busy_ns": 9, "latency_ns": 30, "resources": ["wire"]}]},
              {"after": 1, "hops": [{"busy_ns": 9, "latency_ns": 30, "resources": ["wire"]}]}])") +
                       more));
      uint64_t at = 0;
      for (const CriticalStep& step : critical_path(outlook)) {
        const Span& span = outlook.forecast.actions[step.rank][step.action];
        EXPECT_EQ(span.start_ns, at + step.transfer_ns) << name << more;
        at = span.end_ns;
      }
      EXPECT_EQ(at, outlook.forecast.total_ns) << name << more;
    }
  }
}

// A reduction takes turns with the transfers of both directions.
TEST(Routes, ReductionsShareLinksWithTransfers) {
  const std::string schedule = R"({"name": "1f1b", "ranks": 3, "micro_batches": 2})";
  const auto total = [&](const std::string& name) {
    return outlook_of(
               question(schedule, R"("times": {"stages": [{"forward_ns": 10}]}, "reductions": true,
                   "routes": [{"after": 0, "hops": [{"busy_ns": 1, "resources": ["wan"]}]},
                              {"reduce": [2], "hops": [{"busy_ns": 500, "resources": [")" +
                                      name + R"("]}]}])"))
        .forecast.total_ns;
  };
  EXPECT_GT(total("wan"), 500u);
  EXPECT_GT(total("wan"), total("other"));
}

// Two boundaries that share a link of 4 ns each occupy it for 8 ns for a micro-batch.
TEST(Routes, WarmUpCountsFollowRouteTimes) {
  const std::string schedule = R"({"name": "h-1f1b", "ranks": 4, "micro_batches": 16})";
  const std::string times = R"("times": {"stages": [{"forward_ns": 10, "backward_ns": 20}])";
  const std::string plain = times + R"(, "forward": [{"busy_ns": 8, "latency_ns": 20}, {},
                                                     {"busy_ns": 8, "latency_ns": 20}]})";
  const std::string routes = times + R"(}, "routes": [
      {"after": 0, "hops": [{"busy_ns": 4, "latency_ns": 18, "resources": ["wan"]},
                            {"busy_ns": 2, "resources": ["in"]}]},
      {"after": 2, "hops": [{"busy_ns": 4, "latency_ns": 20, "resources": ["wan"]}]}])";
  EXPECT_EQ(outlook_of(question(schedule, routes)).schedule,
            outlook_of(question(schedule, plain)).schedule);
  EXPECT_NE(outlook_of(question(schedule, routes)).schedule,
            outlook_of(question(schedule, times + "}")).schedule);
}

TEST(Routes, ErrorNamesTheInvalidRoute) {
  const std::string schedule = R"({"name": "1f1b", "ranks": 2, "micro_batches": 2})";
  const auto told = [&](const std::string& route) {
    return refusal(question(
        schedule, R"("times": {"stages": [{"forward_ns": 10}]}, "routes": [)" + route + "]"));
  };
  EXPECT_EQ(told(R"({"after": 0, "hops": [{}]})"), "none");
  EXPECT_THAT(told(R"({"hops": [{}]})"), HasSubstr("routes[0] needs one of after, gather and"));
  EXPECT_THAT(told(R"({"after": 0, "gather": 0, "hops": [{}]})"), HasSubstr("needs one of"));
  EXPECT_THAT(told(R"({"after": 0})"), HasSubstr("routes[0].hops is missing or empty"));
  EXPECT_THAT(told(R"({"after": 1, "hops": [{}]})"),
              HasSubstr("routes[0]: there is no boundary after stage 1"));
  EXPECT_THAT(told(R"({"gather": 2, "hops": [{}]})"), HasSubstr("there is no stage 2"));
  EXPECT_THAT(told(R"({"reduce": [], "hops": [{}]})"), HasSubstr("reduce has no stage"));
  EXPECT_THAT(refusal(question(schedule, R"("times": {"stages": [{"forward_ns": 10}]},
                  "reductions": true, "routes": [{"reduce": [0, 0], "hops": [{}]}])")),
              HasSubstr("another route"));
  EXPECT_THAT(told(R"({"reduce": [0], "hops": [{}]})"),
              HasSubstr("stage 0 has no REDUCE_GRAD, which `reductions` adds"));
  EXPECT_THAT(told(R"({"gather": 0, "hops": [{}]})"), HasSubstr("stage 0 has no UNSHARD"));
  EXPECT_THAT(told(R"({"after": 0, "hops": [{}]}, {"after": 0, "hops": [{}]})"),
              HasSubstr("routes[1]: stage 0 has another route"));
  EXPECT_THAT(told(R"({"gather": 0, "direction": "both", "hops": [{}]})"),
              HasSubstr("direction is for a boundary"));
  EXPECT_THAT(told(R"({"after": 0, "slices": 0, "hops": [{}]})"), HasSubstr("slices is 0"));
  EXPECT_THAT(told(R"({"after": 0, "hops": [{"resources": [1]}]})"),
              HasSubstr("routes[0].hops[0].resources[0] is no text"));
  EXPECT_THAT(told(R"({"after": 0, "hops": [{"resources": ["a", "a"]}]})"), HasSubstr("twice"));
  EXPECT_THAT(refusal(question(schedule, R"("routes": [{"after": 0, "hops": [{}]}])")),
              HasSubstr("routes need times"));
  std::string many;
  for (int i = 0; i < 64; ++i) {
    many += fmt::format(R"({}{{"busy_ns": 9007199254740992}})", i == 0 ? "" : ",");
  }
  EXPECT_THAT(refusal(question(R"({"name": "1f1b", "ranks": 2, "micro_batches": 100})",
                               R"("times": {"stages": [{"forward_ns": 10}]}, "routes": [
                                   {"after": 0, "hops": [)" +
                                   many + "]}]")),
              HasSubstr("longer than 2^62 ns"));
}

TEST(Outlook, SameQuestionGivesIdenticalAndValidDocuments) {
  const std::string text = question(
      R"({"name": "zb-v", "ranks": 3, "micro_batches": 7})",
      R"("times": {"stages": [{"forward_ns": 1500, "input_grad_ns": 1000, "weight_grad_ns": 700}]})");
  const Outlook one = outlook_of(text);
  const Outlook other = outlook_of(text);
  EXPECT_EQ(to_json(one), to_json(other));
  EXPECT_EQ(to_text(one), to_text(other));
  EXPECT_EQ(to_svg(one).value(), to_svg(other).value());
  const json answer = json::parse(to_json(one));
  EXPECT_EQ(answer["format"], "hetcomm schedule outlook");
  EXPECT_EQ(answer["forecast"]["total_ns"], one.forecast.total_ns);
  const json trace = json::parse(to_chrome_trace(one));
  size_t steps = 0;
  for (const json& event : trace["traceEvents"]) steps += event["ph"] == "X" ? 1u : 0u;
  EXPECT_EQ(steps, 3u * 2 * 7 * 3);
  EXPECT_THAT(to_svg(one).value(), HasSubstr("3F6 on rank 2"));
}

TEST(Outlook, PictureOfTooManyRanksIsUnsupported) {
  const Outlook large =
      outlook_of(question(R"({"name": "1f1b", "ranks": 129, "micro_batches": 1})"));
  EXPECT_EQ(to_svg(large).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace hetcomm::pipeline
