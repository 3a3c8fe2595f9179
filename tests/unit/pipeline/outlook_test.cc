// Questions about schedules, and their answers:
//    - a question by name, by PyTorch's text and by actions gives the same schedule;
//    - every wrong entry is refused with its path, and what no schedule can do with its reason;
//    - the critical path is without gaps: its steps and transfers take the whole time;
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

TEST(Question, NameTextAndActionsGiveTheSameSchedule) {
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

TEST(Question, EveryNameMakesASoundSchedule) {
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

TEST(Question, SchedulesAreLoweredAsIsAskedFor) {
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

TEST(Question, WrongEntriesAreNamed) {
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
              HasSubstr("rank 0 holds up to 2, and 1 is its limit"));
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
TEST(Outlook, ItemsInFlightAreFoundThatCostNoTime) {
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

TEST(Question, HostileDocumentsTakeLittleTimeAndMemory) {
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

TEST(Question, PartsOfAStepFollowFromTheWhole) {
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
TEST(Outlook, TextsSayWhatTheBoundaryCosts) {
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

TEST(Outlook, MemoryHasTheUnitOfTheQuestion) {
  const Outlook outlook = outlook_of(question(
      R"({"name": "zb-h1", "ranks": 2, "micro_batches": 6})",
      R"("memory": [{"forward_adds": 1000, "input_grad_frees": 400, "weight_grad_frees": 600}])"));
  EXPECT_THAT(outlook.peaks, ElementsAre(2000, 1600));
}

TEST(Outlook, AnswersAreTheSameBytesAndSoundDocuments) {
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

TEST(Outlook, PicturesHaveALimit) {
  const Outlook large =
      outlook_of(question(R"({"name": "1f1b", "ranks": 129, "micro_batches": 1})"));
  EXPECT_EQ(to_svg(large).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace hetcomm::pipeline
