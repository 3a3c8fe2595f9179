// Growing tables when out of memory:
//  * MatchTable: the first receive is refused without leaving any state; later ones enter the
//    existing lists, and match as usual, even with wildcards; a search finds messages without an
//    index;
//  * IdChains: the first object is refused, later ones enter the existing chains;
//  * TrackEnds: an end that could not be added is absent;
//  * ReshardBoard: a plan that could not be added is absent, and the next plan gets its number;
//    notes wait until they have a reader.
#include <array>
#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/p2p.h>

#include "src/core/peer/matching/match.h"
#include "src/core/peer/matching/reshard_board.h"
#include "src/core/peer/transfer/track_ends.h"
#include "src/core/progress/id_chains.h"
#include "tests/support/counting_allocator.h"

namespace hetcomm {
namespace {

TEST(MatchTable, OutOfMemoryRefusesOnlyTheFirstReceive) {
  OperationPool pool(nullptr);
  std::deque<Incoming> messages;
  MatchTable table;
  const auto receive = [&](int32_t source, uint64_t tag) {
    Operation* const operation = pool.allocate();
    operation->kind = OperationKind::kReceive;
    operation->peer = source;
    operation->tag = tag;
    return operation;
  };

  constexpr uint64_t kTags = 600;  // more than one growth step
  Operation* const refused = receive(1, 7);
  test::fail_all_allocations(true);
  EXPECT_THROW(table.post(refused), std::bad_alloc);
  test::fail_all_allocations(false);
  EXPECT_EQ(table.posted_count(), 0U);
  EXPECT_EQ(table.match_message(1, 7), nullptr);
  table.post(receive(1, 7));
  table.post(receive(HETCOMM_ANY_SOURCE, 7));
  messages.emplace_back().source = 9;
  table.add_unexpected(&messages.back());
  std::vector<Operation*> more;
  std::vector<Operation*> wild;
  for (uint64_t tag = 0; tag < kTags; ++tag) {
    more.push_back(receive(1, 1000 + tag));
    wild.push_back(receive(HETCOMM_ANY_SOURCE, 1000 + tag));
    messages.emplace_back().source = 2;
    messages.back().tag = tag;
  }
  test::fail_all_allocations(true);
  for (Operation* const each : more) table.post(each);
  for (Operation* const each : wild) table.post(each);
  for (size_t i = 1; i < messages.size(); ++i) table.add_unexpected(&messages[i]);
  EXPECT_NE(table.find_unexpected(HETCOMM_ANY_SOURCE, kTags - 1, 0), nullptr);
  for (uint64_t tag = 0; tag < kTags; ++tag) {
    EXPECT_EQ(table.match_message(1, 1000 + tag), more[tag]);
    EXPECT_EQ(table.match_message(1, 1000 + tag), wild[tag]);
  }
  test::fail_all_allocations(false);
  EXPECT_EQ(table.posted_count(), 2U);
}

TEST(MatchTable, SearchesFindMessagesWithoutMemoryForAnIndex) {
  constexpr uint64_t kTags = 200;
  const auto find_all = [](MatchTable& table, const std::deque<Incoming>& messages) {
    for (uint64_t tag = 0; tag < kTags; ++tag) {
      ASSERT_EQ(table.find_unexpected(HETCOMM_ANY_SOURCE, tag, 0), &messages[tag]);
      ASSERT_EQ(table.find_unexpected(2, tag << 8, 0xff00), &messages[0]);
    }
  };
  for (int64_t allowed = 0; allowed < 20; ++allowed) {
    std::deque<Incoming> messages;
    MatchTable table;
    for (uint64_t tag = 0; tag < kTags; ++tag) {
      messages.emplace_back().source = 2;
      messages.back().tag = tag;
      if (tag < kTags / 2) table.add_unexpected(&messages.back());
    }
    test::fail_allocation_after(allowed);
    // The search may or may not build an index.
    EXPECT_EQ(table.find_unexpected(HETCOMM_ANY_SOURCE, kTags / 2 - 1, 0),
              &messages[kTags / 2 - 1]);
    test::fail_allocation_after(-1);
    test::fail_all_allocations(true);
    for (uint64_t tag = kTags / 2; tag < kTags; ++tag) table.add_unexpected(&messages[tag]);
    find_all(table, messages);
    test::fail_all_allocations(false);
    find_all(table, messages);
    for (Incoming& each : messages) table.remove_unexpected(&each);
    EXPECT_EQ(table.first_unexpected(), nullptr);
  }
}

struct Chained {
  IdLink<Chained> id_link;
};

TEST(IdChains, OutOfMemoryRefusesOnlyTheFirstObject) {
  IdChains<Chained> table;
  test::fail_all_allocations(true);
  EXPECT_THROW(table.make_room(), std::bad_alloc);
  test::fail_all_allocations(false);
  table.make_room();
  std::array<Chained, 200> objects;
  test::fail_all_allocations(true);
  for (size_t i = 0; i < objects.size(); ++i) {
    table.make_room();
    table.insert(objects[i], i);
  }
  for (size_t i = 0; i < objects.size(); ++i) EXPECT_EQ(table.find(i), &objects[i]);
  test::fail_all_allocations(false);
}

struct End {
  TrackKey where;
  uint64_t what = 0;
  uint64_t plan = 0;
  uint64_t number = 0;

  TrackKey key() const { return where; }
  uint64_t content() const { return what; }
  bool is_gone() const { return false; }
  uint64_t name() const { return number; }
};

TEST(TrackEnds, EndIsAbsentIfAddingItFailed) {
  TrackEnds<End> ends;
  for (int64_t allowed = 0;; ++allowed) {
    test::fail_allocation_after(allowed);
    try {
      ends.add({{1, 1, 1}, 2, 3, 4});
      test::fail_allocation_after(-1);
      break;
    } catch (const std::bad_alloc&) {
      test::fail_allocation_after(-1);
    }
    EXPECT_EQ(ends.size(), 0U);
    EXPECT_FALSE(ends.take({1, 1, 1}, 2, 3));
    ends.change(4, [](End&) { ADD_FAILURE(); });
  }
  EXPECT_TRUE(ends.take({1, 1, 1}, 2, 3));
}

struct Plan final : BoardedReshard {
  void peer_differs(int /*rank*/, uint64_t /*content*/) override { ++differs; }
  void peer_lacks(int /*rank*/, std::string_view others) override { lacks = others; }
  void peer_says(int /*rank*/, const ReshardNote& note) override {
    heard.push_back(note.body.execution);
  }
  int differs = 0;
  std::string lacks;
  std::vector<uint64_t> heard;
};

ReshardNote note_of(ReshardAction action, uint64_t content, uint32_t number,
                    uint64_t execution = 0) {
  ReshardNote note{.action = action, .tag = 3, .body = {}, .text = {}};
  note.body.number = number;
  note.body.content = content;
  note.body.execution = execution;
  return note;
}

// Calls act() with one more allocation allowed each time, until none fails. Returns the number of
// failures.
template <typename Act, typename Check>
int until_it_works(Act&& act, Check&& check_after_failure) {
  for (int allowed = 0;; ++allowed) {
    test::fail_allocation_after(allowed);
    try {
      act();
      test::fail_allocation_after(-1);
      return allowed;
    } catch (const std::bad_alloc&) {
      test::fail_allocation_after(-1);
      check_after_failure();
    }
  }
}

TEST(ReshardBoard, PlanIsAbsentIfAddingItFailed) {
  ReshardBoard board;
  Plan plan;
  const ReshardBoard::Terms terms{.tag = 3, .content = 7, .ranks = {1, 2, 4}};
  const int failures = until_it_works(
      [&] { board.add(plan, terms); },
      [&] {
        EXPECT_EQ(board.number_of(plan, 1), ~uint32_t{0});
        std::vector<ReshardBoard::Answer> answers;
        EXPECT_TRUE(board.receive(1, note_of(ReshardAction::kStarted, 7, 9), &answers));
        ASSERT_EQ(answers.size(), 1U);
        EXPECT_EQ(answers[0].note.action, ReshardAction::kLacks);
        EXPECT_EQ(answers[0].note.text, "it has none of any tag");
        EXPECT_TRUE(board.receive(1, note_of(ReshardAction::kGone, 7, 9), &answers));
        board.remove(plan);  // the plan was not added
      });
  EXPECT_GT(failures, 10);
  for (const int rank : terms.ranks) EXPECT_EQ(board.number_of(plan, rank), 0U);
  board.remove(plan);
  board.remove(plan);
}

TEST(ReshardBoard, NotesSurviveAllocationFailuresUntilRead) {
  ReshardBoard board;
  const ReshardBoard::Terms terms{.tag = 3, .content = 7, .ranks = {1, 2}};
  std::vector<ReshardBoard::Answer> answers;
  for (const int rank : terms.ranks) {
    for (const ReshardAction action : {ReshardAction::kStarted, ReshardAction::kGivenUp}) {
      answers.clear();
      const int failures = until_it_works(
          [&] { EXPECT_TRUE(board.receive(rank, note_of(action, 7, 0, 5), &answers)); },
          [&] { EXPECT_TRUE(answers.empty()); });
      const bool is_first = action == ReshardAction::kStarted;
      EXPECT_GE(failures, is_first ? 2 : 0);
      EXPECT_EQ(answers.size(), is_first ? 1U : 0U);
    }
  }
  int failures = 0;
  for (bool is_told = false; !is_told; ++failures) {
    Plan plan;
    board.add(plan, terms);
    test::fail_allocation_after(failures);
    try {
      answers = board.catch_up(plan);
      is_told = true;
    } catch (const std::bad_alloc&) {
    }
    test::fail_allocation_after(-1);
    if (is_told) {
      EXPECT_EQ(plan.heard, (std::vector<uint64_t>{5, 5}));
      ASSERT_EQ(answers.size(), 2U);
      for (const ReshardBoard::Answer& each : answers)
        EXPECT_EQ(each.note.action, ReshardAction::kHas);
    }
    board.remove(plan);
  }
  EXPECT_GT(failures, 3);
  // No note waits any longer.
  Plan later;
  board.add(later, terms);
  EXPECT_TRUE(board.catch_up(later).empty());
  EXPECT_TRUE(later.heard.empty());
}

}  // namespace
}  // namespace hetcomm
