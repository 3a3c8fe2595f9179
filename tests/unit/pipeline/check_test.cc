// The check of schedules:
//    - a missing, doubled or misplaced action is named with its rank;
//    - a schedule that cannot go on is refused with the ranks and what they wait for; whether it
//      can is decided as by trying all orders;
//    - the peak is that of the rank's order, with any memory of the steps, and a limit is held.
#include "pipeline/schedule/check.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schedule parsed(std::string_view text, std::vector<uint32_t> rank_of = {}) {
  Result<Schedule> schedule = read_csv(text, std::move(rank_of));
  EXPECT_TRUE(schedule.ok()) << schedule.status().text();
  return schedule.ok() ? std::move(schedule).value() : Schedule();
}

std::string verdict(const Schedule& schedule, const CheckOptions& options = {}) {
  const Result<CheckResult> result = check(schedule, options);
  return result.ok() ? "sound" : std::string(result.status().text());
}
std::string verdict(std::string_view text) { return verdict(parsed(text)); }

TEST(Check, SoundSchedulesOfEveryLevelPass) {
  const Schedule compute = add_reductions(one_f_one_b(plain_warmups(3), 5).value());
  EXPECT_EQ(verdict(compute), "sound");
  for (const uint32_t ahead : {0u, 1u, 9u}) {
    const Schedule transfers = add_transfers(compute, ahead);
    EXPECT_EQ(verdict(transfers), "sound");
    EXPECT_EQ(verdict(add_waits(transfers, SendWaits::kBeforeReuse, 2)), "sound");
  }
}

TEST(Check, ErrorNamesTheMissingAction) {
  EXPECT_EQ(verdict("0F0,0F1,0B0\n"), "rank 0 has no 0B1");
  EXPECT_EQ(verdict("0F0,0B0\n1F0\n"), "rank 1 has no 1B0");
  EXPECT_EQ(verdict("0F0,0I0\n"), "rank 0 has no 0W0");
  EXPECT_EQ(verdict("0F0,0W0,0F1,0B1\n"), "rank 0 has no 0I0");
}

TEST(Check, ErrorNamesMisplacedOrInvalidActions) {
  EXPECT_EQ(verdict(parsed("0F0\n1F0\n", {0, 0})), "rank 1, action 0: 1F0 belongs to rank 0");
  EXPECT_EQ(verdict(parsed("0F0,1F0\n", {0})),
            "rank 0, action 1: 1F0 is for a stage that does not exist");
  EXPECT_EQ(verdict(parsed("0F0\n", {3})), "stage 0 is on rank 3, and there are 1 ranks");
  EXPECT_EQ(verdict("0F0,0F0\n"), "rank 0, action 1: 0F0 is there twice");
  EXPECT_EQ(verdict("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"),
            "rank 0, action 3: 0REDUCE_GRAD is there twice");
  EXPECT_EQ(verdict("0F0,0B0,0I0,0W0\n"), "rank 0 has 0B0 whole and in parts");
  EXPECT_EQ(verdict("0F0,0R0\n"), "rank 0 has no 0B0");
  Schedule pair = parsed("0F0,0B0\n");
  pair.actions[0][1].overlaps_next = true;
  EXPECT_EQ(verdict(pair), "rank 0, action 1: 0B0 can't overlap with what follows");
  EXPECT_EQ(verdict("0F0,(0F1;0F2)OVERLAP_F_B\n1F0,1F1,1F2\n"),
            "rank 0, action 1: 0F1 overlaps with a step of the same stage and direction");
  Schedule outside = parsed("0F0\n");
  outside.micro_batches = 0;
  EXPECT_EQ(verdict(outside), "the schedule has no micro-batch");
  EXPECT_EQ(verdict(Schedule()), "the schedule has no stage");
}

TEST(Check, ErrorNamesTheUnmatchedTransfer) {
  EXPECT_EQ(verdict("0F0,0SEND_F0\n1RECV_F0,1F0\n"), "sound");
  EXPECT_EQ(verdict("0F0,0SEND_F0\n1F0\n"), "rank 1 has no 1RECV_F0");
  EXPECT_EQ(verdict("0F0\n1RECV_F0,1F0\n"), "rank 0 has no 0SEND_F0");
  EXPECT_EQ(verdict("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n"), "rank 1 has no 1SEND_B0");
  EXPECT_EQ(verdict("0RECV_F0,0F0\n"), "rank 0, action 0: 0RECV_F0 has no stage before it");
  EXPECT_EQ(verdict("0F0,0SEND_F0\n"), "rank 0, action 1: 0SEND_F0 has no stage behind it");
  EXPECT_EQ(verdict("0F0,0SEND_F0,1F0\n"),
            "rank 0, action 1: 0SEND_F0 goes to a stage of the same rank");
}

TEST(Check, DeadlockedOrdersAreExplained) {
  EXPECT_EQ(verdict("0B0,0F0\n"),
            "the schedule can't go on: rank 0 waits at 0B0 for 0F0 of rank 0");
  EXPECT_EQ(
      verdict("0F0,0B0\n1B0,1F0\n"),
      "the schedule can't go on: rank 0 waits at 0B0 for 1B0 of rank 1; rank 1 waits at 1B0 for "
      "1F0 of rank 1");
  EXPECT_THAT(verdict("0F0,0R0,0I0,0W0\n1F0,1W0,1I0\n"), HasSubstr("rank 1 waits at 1W0 for 1I0"));
  EXPECT_THAT(verdict("0F0,0B0,0R0\n"), HasSubstr("rank 0 waits at 0B0 for 0R0 of rank 0"));
  EXPECT_THAT(verdict("0F0,0REDUCE_GRAD,0B0\n"),
              HasSubstr("rank 0 waits at 0REDUCE_GRAD for the weight gradients of stage 0"));
  EXPECT_THAT(verdict("0F0,0SEND_F0\n1F0,1RECV_F0\n"),
              HasSubstr("rank 1 waits at 1F0 for 1RECV_F0 of rank 1"));
  // A pair starts when both of its steps can.
  EXPECT_THAT(verdict("(0F0;0B0)OVERLAP_F_B\n"),
              HasSubstr("rank 0 waits at 0B0 for 0F0 of rank 0"));
}

TEST(Check, LongListOfWaitingRanksIsAbbreviated) {
  std::string text;
  for (int stage = 0; stage < 9; ++stage)
    text += std::to_string(stage) + "B0," + std::to_string(stage) + "F0\n";
  EXPECT_THAT(verdict(text), AllOf(HasSubstr("rank 3 waits"), HasSubstr("; and 5 more")));
}

// The receiver takes the second item first: it has to hold the first one meanwhile.
TEST(Check, ItemsInFlightAreLimited) {
  const Schedule reversed = parsed("0F0,0F1\n1F1,1F0\n");
  EXPECT_EQ(verdict(reversed),
            "the schedule can't go on: rank 1 waits at 1F1 for the result of 0F1 of rank 0, which "
            "stands behind others that are not taken");
  EXPECT_EQ(verdict(reversed, {.in_flight = {2}, .memory = {}, .limits = {}}), "sound");
  EXPECT_THAT(needed_in_flight(reversed).value(), ElementsAre(2));
  // The first rank starts its second stage after all F of its first one. Of its four F ahead two
  // wait on either side of each boundary.
  EXPECT_EQ(verdict(looped_breadth_first(2, 2, 4).value()), "sound");
  const Schedule looped = looped_breadth_first(2, 2, 5).value();
  EXPECT_EQ(
      verdict(looped),
      "the schedule can't go on: rank 0 waits at 0F4 for room: stage 1 has not taken what was "
      "sent before; rank 1 waits at 1F2 for room: stage 2 has not taken what was sent before");
  EXPECT_THAT(needed_in_flight(looped).value(), ElementsAre(2, 1, 2));
  // Given values stay, whether they are enough or not.
  EXPECT_THAT(needed_in_flight(looped, {5, 0, 0}).value(), ElementsAre(5, 1, 2));
  EXPECT_FALSE(needed_in_flight(reversed, {1}).ok());
  EXPECT_EQ(verdict(looped, {.in_flight = {2, 1, 2}, .memory = {}, .limits = {}}), "sound");
  EXPECT_NE(verdict(looped, {.in_flight = {2, 1, 1}, .memory = {}, .limits = {}}), "sound");
}

TEST(Check, InvalidOptionsAreRefused) {
  const Schedule schedule = one_f_one_b(plain_warmups(3), 2).value();
  EXPECT_EQ(verdict(schedule, {.in_flight = {1}, .memory = {}, .limits = {}}),
            "items in flight are given for 1 boundaries of 3 stages");
  EXPECT_EQ(verdict(schedule, {.in_flight = {1, 0}, .memory = {}, .limits = {}}),
            "a boundary needs one item in flight at least");
  EXPECT_EQ(verdict(schedule, {.in_flight = {}, .memory = {{}}, .limits = {}}),
            "the memory of 1 stages is given for 3");
  const StepMemory large{
      .forward = kMaxStepMemory + 1, .recompute = 0, .input_grad = 0, .weight_grad = -1};
  EXPECT_EQ(verdict(schedule, {.in_flight = {}, .memory = {large, large, large}, .limits = {}}),
            "the memory of a step is above 2^38");
  EXPECT_EQ(verdict(schedule, {.in_flight = {}, .memory = {}, .limits = {1}}),
            "the limits of 1 ranks are given for 3");
}

TEST(Check, PeaksFollowTheMemoryOfTheSteps) {
  const Schedule split = zero_bubble_h1(3, 9).value();
  EXPECT_THAT(check(split).value().peaks, ElementsAre(3, 3, 3));
  // I frees half of what F adds.
  const StepMemory halves{.forward = 2, .recompute = 0, .input_grad = -1, .weight_grad = -1};
  CheckOptions options{.in_flight = {}, .memory = {halves, halves, halves}, .limits = {}};
  EXPECT_THAT(check(split, options).value().peaks, ElementsAre(6, 5, 4));
  options.limits = {6, 5, 4};
  EXPECT_EQ(verdict(split, options), "sound");
  options.limits = {6, 4, 4};
  EXPECT_EQ(verdict(split, options), "rank 1 holds up to 5 in 1F2, and 4 is its limit");
  EXPECT_EQ(check(split, options).status().code(), Code::kOutOfRange);
  // Recomputation: F keeps a tenth, and R brings the rest.
  const StepMemory again{.forward = 1, .recompute = 9, .input_grad = 0, .weight_grad = -10};
  const Schedule phases = four_phase(plain_warmups(2), {true, true}, 4).value();
  EXPECT_THAT(
      check(phases, {.in_flight = {}, .memory = {again, again}, .limits = {}}).value().peaks,
      ElementsAre(11, 10));
}

// In a pair the forward step takes memory before the backward step has freed its own.
TEST(Check, PairsHoldBothActivations) {
  EXPECT_THAT(check(parsed("0F0,0B0,0F1,0B1\n")).value().peaks, ElementsAre(1));
  EXPECT_THAT(check(parsed("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")).value().peaks, ElementsAre(2));
  EXPECT_THAT(check(parsed("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n")).value().peaks, ElementsAre(2));
}

// Decides by trying all orders of steps whether all ranks come to their end, with one item in
// flight.
class EveryOrder {
 public:
  explicit EveryOrder(const Schedule& schedule) : schedule_(schedule) {}
  bool can_end() { return search(std::vector<size_t>(schedule_.ranks())); }

 private:
  bool search(const std::vector<size_t>& at) {
    if (!seen_.insert(at).second) return false;
    bool ended = true;
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      if (at[rank] == schedule_.actions[rank].size()) continue;
      ended = false;
      if (!may_run(schedule_.actions[rank][at[rank]], at)) continue;
      std::vector<size_t> next = at;
      ++next[rank];
      if (search(next)) return true;
    }
    return ended;
  }

  // Returns the position of a step among those done, or -1.
  bool is_done(ActionKind kind, uint32_t stage, uint32_t micro_batch,
               const std::vector<size_t>& at) const {
    const std::vector<Action>& actions = schedule_.actions[schedule_.rank_of[stage]];
    for (size_t i = 0; i < at[schedule_.rank_of[stage]]; ++i) {
      if (actions[i].kind == kind && actions[i].stage == stage &&
          actions[i].micro_batch == micro_batch) {
        return true;
      }
    }
    return false;
  }
  std::vector<uint32_t> done(ActionKind kind, uint32_t stage, const std::vector<size_t>& at) const {
    std::vector<uint32_t> list;
    const std::vector<Action>& actions = schedule_.actions[schedule_.rank_of[stage]];
    for (size_t i = 0; i < at[schedule_.rank_of[stage]]; ++i) {
      if (actions[i].kind == kind && actions[i].stage == stage)
        list.push_back(actions[i].micro_batch);
    }
    return list;
  }

  // Returns whether the item of |micro_batch| from |sender| to |receiver| has arrived.
  bool has_arrived(ActionKind kind, uint32_t sender, uint32_t receiver, uint32_t micro_batch,
                   const std::vector<size_t>& at) const {
    if (schedule_.rank_of[sender] == schedule_.rank_of[receiver]) {
      return is_done(kind, sender, micro_batch, at);
    }
    const std::vector<uint32_t> sent = done(kind, sender, at);
    const size_t arrived = std::min(sent.size(), done(kind, receiver, at).size() + 1);
    return std::find(sent.begin(), sent.begin() + static_cast<ptrdiff_t>(arrived), micro_batch) !=
           sent.begin() + static_cast<ptrdiff_t>(arrived);
  }
  bool has_room(ActionKind kind, uint32_t sender, uint32_t receiver,
                const std::vector<size_t>& at) const {
    if (schedule_.rank_of[sender] == schedule_.rank_of[receiver]) return true;
    return done(kind, sender, at).size() < done(kind, receiver, at).size() + 2;
  }

  bool may_run(const Action& action, const std::vector<size_t>& at) const {
    const uint32_t stage = action.stage;
    const uint32_t last = schedule_.stages() - 1;
    if (action.kind == ActionKind::kForward) {
      return (stage == 0 || has_arrived(action.kind, stage - 1, stage, action.micro_batch, at)) &&
             (stage == last || has_room(action.kind, stage, stage + 1, at));
    }
    return is_done(ActionKind::kForward, stage, action.micro_batch, at) &&
           (stage == last || has_arrived(action.kind, stage + 1, stage, action.micro_batch, at)) &&
           (stage == 0 || has_room(action.kind, stage, stage - 1, at));
  }

  const Schedule& schedule_;
  std::set<std::vector<size_t>> seen_;
};

TEST(Check, ResultMatchesAnExhaustiveSearch) {
  std::mt19937 random(11);
  int sound = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t ranks = 2 + random() % 2;
    const uint32_t stages = ranks * (random() % 2 == 0 ? 1u : 2u);
    Schedule schedule{.micro_batches = 2,
                      .rank_of = deal_stages(
                          ranks, stages, random() % 2 == 0 ? StageOrder::kLoop : StageOrder::kV),
                      .actions = std::vector<std::vector<Action>>(ranks)};
    for (uint32_t stage = 0; stage < stages; ++stage) {
      for (uint32_t i = 0; i < schedule.micro_batches; ++i) {
        std::vector<Action>& actions = schedule.actions[schedule.rank_of[stage]];
        for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
          actions.push_back(
              {.micro_batch = i, .stage = static_cast<uint16_t>(stage), .kind = kind});
        }
      }
    }
    // Mostly in order: forward steps first, then stages, with some exchanges.
    for (std::vector<Action>& actions : schedule.actions) {
      std::stable_sort(actions.begin(), actions.end(), [](const Action& a, const Action& b) {
        if (a.kind != b.kind) return a.kind < b.kind;
        return a.kind == ActionKind::kForward ? a.stage < b.stage : a.stage > b.stage;
      });
      for (size_t i = random() % 3; i > 0; --i) {
        std::swap(actions[random() % actions.size()], actions[random() % actions.size()]);
      }
    }
    const bool ends = EveryOrder(schedule).can_end();
    sound += ends ? 1 : 0;
    ASSERT_EQ(verdict(schedule) == "sound", ends) << write_csv(schedule) << verdict(schedule);
  }
  EXPECT_GT(sound, kRounds / 10);
  EXPECT_LT(sound, kRounds * 9 / 10);
}

}  // namespace
}  // namespace hetcomm::pipeline
