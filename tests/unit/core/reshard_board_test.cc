// Two ranks agree on their reshard plans (reshard_board.h). In these tests two boards exchange
// notes:
//  * plans with the same tag and hash match, whichever rank made more of them
//  * plans with the same tag and number but different hashes are a mismatch, and both ranks are
//    told
//  * a rank that lacks a plan reports what it has instead, and reports when it has made the plan
//  * notes about executions wait for a plan that is made later, and are deleted with their plan
//  * a rank holds no more notes than necessary, and no notes about a plan that both ranks have
//    deleted
#include "src/core/peer/matching/reshard_board.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

struct Plan final : BoardedReshard {
  explicit Plan(ReshardBoard::Terms own) : terms(std::move(own)) {}
  void peer_differs(int /*rank*/, uint64_t content) override { differs.push_back(content); }
  void peer_lacks(int /*rank*/, std::string_view others) override { lacks = others; }
  void peer_says(int /*rank*/, const ReshardNote& note) override {
    heard.push_back(note.body.execution);
  }
  ReshardBoard::Terms terms;
  std::vector<uint64_t> differs;
  std::string lacks;
  std::vector<uint64_t> heard;
};

// Ranks 0 and 1.
class ReshardBoardTest : public ::testing::Test {
 protected:
  Plan& make(int rank, uint64_t content, uint64_t tag = 0) {
    plans_.push_back(std::make_unique<Plan>(
        ReshardBoard::Terms{.tag = tag, .content = content, .ranks = {1 - rank}}));
    Plan& made = *plans_.back();
    boards_[rank].add(made, made.terms);
    for (const ReshardBoard::Answer& answer : boards_[rank].catch_up(made)) {
      EXPECT_EQ(answer.rank, 1 - rank);
      send(rank, answer.note);
    }
    return made;
  }
  // Sends |rank|'s note about an |execution| of |plan|.
  void say(int rank, Plan& plan, ReshardAction action, uint64_t execution = 0) {
    ReshardNote note{.action = action, .tag = plan.terms.tag, .body = {}, .text = {}};
    note.body.number = boards_[rank].number_of(plan, 1 - rank);
    note.body.older = boards_[rank].note_told(plan, 1 - rank);
    note.body.content = plan.terms.content;
    note.body.execution = execution;
    send(rank, note);
  }
  void start(int rank, Plan& plan) { say(rank, plan, ReshardAction::kStarted); }
  void send(int from, const ReshardNote& note) {
    std::vector<ReshardBoard::Answer> answers;
    EXPECT_TRUE(boards_[1 - from].receive(from, note, &answers));
    for (const ReshardBoard::Answer& answer : answers) {
      EXPECT_EQ(answer.rank, from);
      send(1 - from, answer.note);
    }
  }

  ReshardBoard boards_[2];
  std::vector<std::unique_ptr<Plan>> plans_;
};

TEST_F(ReshardBoardTest, EqualPlansReportNoDifference) {
  Plan& own = make(0, 7);
  Plan& other = make(1, 7);
  start(0, own);
  start(1, other);
  EXPECT_TRUE(own.differs.empty() && other.differs.empty());
  EXPECT_TRUE(own.lacks.empty() && other.lacks.empty());
  say(0, own, ReshardAction::kGivenUp, 3);
  EXPECT_EQ(other.heard, std::vector<uint64_t>{3});
}

TEST_F(ReshardBoardTest, BothRanksLearnOfDifferentPlans) {
  Plan& own = make(0, 7);
  Plan& other = make(1, 8);
  start(0, own);
  EXPECT_EQ(own.differs, std::vector<uint64_t>{8});
  EXPECT_EQ(other.differs, std::vector<uint64_t>{7});
}

TEST_F(ReshardBoardTest, DifferenceFromALaterPlanIsReported) {
  Plan& own = make(0, 7);
  start(0, own);
  EXPECT_EQ(own.lacks, "it has none of any tag");
  Plan& other = make(1, 8);
  EXPECT_TRUE(own.differs.empty() && other.differs.empty());
  start(1, other);
  EXPECT_EQ(own.differs, std::vector<uint64_t>{8});
  EXPECT_EQ(other.differs, std::vector<uint64_t>{7});
}

TEST_F(ReshardBoardTest, RankWithoutThePlanListsItsOwnTags) {
  Plan& own = make(0, 7, 3);
  plans_.push_back(
      std::make_unique<Plan>(ReshardBoard::Terms{.tag = 3, .content = 1, .ranks = {2}}));
  boards_[1].add(*plans_.back(), plans_.back()->terms);
  start(0, own);
  EXPECT_EQ(own.lacks, "it has tag 3 with other ranks");
  make(1, 7, 9);
  make(1, 7, 4);
  start(0, own);
  EXPECT_EQ(own.lacks, "it has tag 4, tag 9 and tag 3 with other ranks");
  make(1, 7, 3);
  EXPECT_EQ(own.lacks, "");
  Plan& second = make(0, 8, 3);
  start(0, second);
  EXPECT_EQ(second.lacks, "it has made 1 with tag 3 so far");
}

// Rank 0 has made a plan that rank 1 could not make.
TEST_F(ReshardBoardTest, EqualPlansMatchAfterNumbersDrift) {
  Plan& lost = make(0, 5);
  boards_[0].remove(lost);
  Plan& own = make(0, 7);
  Plan& other = make(1, 7);
  EXPECT_NE(boards_[0].number_of(own, 1), boards_[1].number_of(other, 0));
  start(0, own);
  start(1, other);
  EXPECT_TRUE(own.differs.empty() && other.differs.empty());
  EXPECT_TRUE(own.lacks.empty() && other.lacks.empty());
  say(1, other, ReshardAction::kLabelled, 4);
  EXPECT_EQ(own.heard, std::vector<uint64_t>{4});
}

// Several plans with one tag and hash stay separate.
TEST_F(ReshardBoardTest, SeveralEqualPlansMatchByNumber) {
  std::vector<Plan*> own;
  std::vector<Plan*> others;
  for (int i = 0; i < 3; ++i) own.push_back(&make(0, 7));
  for (int i = 0; i < 3; ++i) others.push_back(&make(1, 7));
  for (const size_t i : {size_t{2}, size_t{0}, size_t{1}}) {
    say(0, *own[i], ReshardAction::kGivenUp, 10 + i);
    say(1, *others[i], ReshardAction::kGivenUp, 20 + i);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(others[i]->heard, std::vector<uint64_t>{10 + i});
    EXPECT_EQ(own[i]->heard, std::vector<uint64_t>{20 + i});
  }
}

// The second of two equal plans sends a note first, while the other rank has made only one.
TEST_F(ReshardBoardTest, LaterPlanDoesNotMatchAnEarlierOne) {
  Plan& first = make(0, 7);
  Plan& second = make(0, 7);
  Plan& their_first = make(1, 7);
  say(0, second, ReshardAction::kLabelled, 2);
  EXPECT_TRUE(their_first.heard.empty());
  Plan& their_second = make(1, 7);
  say(0, first, ReshardAction::kLabelled, 1);
  EXPECT_EQ(their_first.heard, std::vector<uint64_t>{1});
  EXPECT_EQ(their_second.heard, std::vector<uint64_t>{2});
}

// Numbers have drifted so far that no plan on the other rank has them.
TEST_F(ReshardBoardTest, EqualPlansMatchInOrderIfNumbersDiffer) {
  for (const bool first_speaks_first : {true, false}) {
    for (int i = 0; i < 2; ++i) boards_[0].remove(make(0, 5));
    Plan& first = make(0, 7);
    Plan& second = make(0, 7);
    Plan& their_first = make(1, 7);
    Plan& their_second = make(1, 7);
    if (first_speaks_first) say(0, first, ReshardAction::kLabelled, 1);
    say(0, second, ReshardAction::kLabelled, 2);
    say(1, their_second, ReshardAction::kLabelled, 4);
    say(1, their_first, ReshardAction::kLabelled, 3);
    if (!first_speaks_first) say(0, first, ReshardAction::kLabelled, 1);
    EXPECT_EQ(their_first.heard, std::vector<uint64_t>{1});
    EXPECT_EQ(their_second.heard, std::vector<uint64_t>{2});
    EXPECT_EQ(first.heard, std::vector<uint64_t>{3});
    EXPECT_EQ(second.heard, std::vector<uint64_t>{4});
    for (Plan* const each : {&first, &second}) {
      say(0, *each, ReshardAction::kGone);
      boards_[0].remove(*each);
    }
    for (Plan* const each : {&their_first, &their_second}) {
      say(1, *each, ReshardAction::kGone);
      boards_[1].remove(*each);
    }
  }
}

TEST_F(ReshardBoardTest, NotesWaitForThePlanAndAreDeletedWithIt) {
  Plan& own = make(0, 7);
  start(0, own);
  say(0, own, ReshardAction::kGivenUp, 1);
  say(0, own, ReshardAction::kGivenUp, 2);
  Plan& other = make(1, 7);
  EXPECT_EQ(other.heard, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(own.lacks, "");

  // Notes that wait for a deleted plan do not affect other plans.
  Plan& gone = make(0, 9, 2);
  start(0, gone);
  boards_[0].remove(gone);
  EXPECT_TRUE(make(1, 8, 2).differs.empty());

  Plan& short_lived = make(0, 9, 1);
  start(0, short_lived);
  say(0, short_lived, ReshardAction::kGivenUp, 3);
  say(0, short_lived, ReshardAction::kGone);
  boards_[0].remove(short_lived);
  // A later plan in its place receives no notes, and is not reported as different.
  Plan& later = make(1, 8, 1);
  EXPECT_TRUE(later.heard.empty());
  EXPECT_TRUE(later.differs.empty());
}

// Rank 0 has deleted its plan; notes about the plan arrive after rank 1 has made others.
TEST_F(ReshardBoardTest, NotesAboutADeletedPlanDoNotEndOtherPlans) {
  Plan& gone = make(0, 9);
  ReshardNote late{.action = ReshardAction::kStarted, .tag = 0, .body = {}, .text = {}};
  late.body.number = boards_[0].number_of(gone, 1);
  late.body.content = 9;
  boards_[0].remove(gone);
  Plan& other = make(1, 7);
  send(0, late);
  EXPECT_TRUE(other.differs.empty());
  // Both ranks make the same plan again: notes for the first plan do not apply to the second.
  Plan& own = make(0, 7);
  start(0, own);
  ReshardNote old{.action = ReshardAction::kGivenUp, .tag = 0, .body = {}, .text = {}};
  old.body.number = boards_[0].number_of(own, 1);
  old.body.content = 7;
  old.body.execution = 5;
  boards_[1].remove(other);
  Plan& again = make(1, 7);
  send(0, old);
  EXPECT_TRUE(again.heard.empty());
  // Rank 0 completes a plan before rank 1 does, and makes it again.
  Plan& first = make(0, 7, 5);
  Plan& partner = make(1, 7, 5);
  start(0, first);
  say(0, first, ReshardAction::kGone);
  boards_[0].remove(first);
  Plan& second = make(0, 7, 5);
  start(0, second);
  boards_[1].remove(partner);
  Plan& last = make(1, 7, 5);
  say(0, second, ReshardAction::kGivenUp, 6);
  EXPECT_EQ(last.heard, std::vector<uint64_t>{6});
}

TEST_F(ReshardBoardTest, PlansDeletedOnBothRanksLeaveNothingBehind) {
  const auto let_go = [&](int rank, Plan& plan) {
    say(rank, plan, ReshardAction::kGone);
    boards_[rank].remove(plan);
  };
  for (const int first : {0, 1}) {
    for (int round = 0; round < 3; ++round) {
      Plan* const plans[] = {&make(0, 7), &make(1, 7)};
      start(first, *plans[first]);
      start(1 - first, *plans[1 - first]);
      let_go(first, *plans[first]);
      EXPECT_EQ(boards_[first].remembered(), 1u);  // the other plan may still send notes
      let_go(1 - first, *plans[1 - first]);
      EXPECT_EQ(boards_[0].remembered(), 0u);
      EXPECT_EQ(boards_[1].remembered(), 0u);
    }
  }
  // The numbers have drifted apart.
  make(0, 8);
  Plan& own = make(0, 7);
  Plan& other = make(1, 7);
  start(0, own);
  start(1, other);
  let_go(0, own);
  let_go(1, other);
  EXPECT_EQ(boards_[0].remembered(), 0u);
  EXPECT_EQ(boards_[1].remembered(), 0u);
}

TEST_F(ReshardBoardTest, StoredNotesAreBounded) {
  ReshardBoard board;
  ReshardNote note{.action = ReshardAction::kGivenUp, .tag = 0, .body = {}, .text = {}};
  std::vector<ReshardBoard::Answer> answers;
  size_t held = 0;
  while (held < 1'000'000 && board.receive(1, note, &answers)) ++held;
  EXPECT_GT(held, 1000u);
  EXPECT_LT(held, 100'000u);
}

}  // namespace
}  // namespace hetcomm
