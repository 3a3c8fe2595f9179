// Tables that grow, where memory is exhausted:
//  * MatchTable: the first receive is refused and leaves nothing behind; later ones go into the lists
//    that there are, and match as ever, with wildcards too;
//  * IdChains: the first object is refused, later ones go into the chains that there are;
//  * LaneEnds: an end that could not be added is not there.
#include <array>
#include <cstdint>
#include <deque>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/p2p.h>

#include "src/core/peer/lane_ends.h"
#include "src/core/peer/match.h"
#include "src/core/progress/id_chains.h"
#include "tests/support/counting_allocator.h"

namespace hetcomm {
namespace {

TEST(MatchTable, GoesOnWithoutMemory) {
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

  constexpr uint64_t kTags = 600;  // beyond one step of growth
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

struct Chained {
  IdLink<Chained> id_link;
};

TEST(IdChains, GoesOnWithoutMemory) {
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
  LaneKey where;
  uint64_t what = 0;
  uint64_t plan = 0;
  uint64_t number = 0;

  LaneKey key() const { return where; }
  uint64_t content() const { return what; }
  bool is_gone() const { return false; }
  uint64_t name() const { return number; }
};

TEST(LaneEnds, AnEndThatCouldNotBeAddedIsNotThere) {
  LaneEnds<End> ends;
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

}  // namespace
}  // namespace hetcomm
