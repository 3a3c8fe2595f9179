// Matching receives with messages:
//  * a message matches the earliest posted receive that accepts it, exact or with wildcards;
//  * an ignore mask accepts exactly the tags that differ only in the mask's bits;
//  * a removed receive matches nothing, and its neighbours still match in order;
//  * order survives growth of the table, for receives and for messages;
//  * the oldest matching unexpected message is found by source and tag, by any source, and by mask,
//    and messages may be removed from the middle;
//  * the cost of a receive or a message does not grow with their number, even with wildcards and
//    with several alternating masks;
//  * many masks from earlier receives do not make messages more expensive;
//  * under a random mix of all these operations a table behaves like a plain list.
#include "src/core/peer/matching/match.h"

#include <algorithm>
#include <deque>
#include <list>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

constexpr int32_t kAny = -1;
constexpr uint64_t kAllBits = ~uint64_t{0};

class MatchTableTest : public ::testing::Test {
 protected:
  Operation* receive(int32_t source, uint64_t tag, uint64_t ignore = 0) {
    Operation* operation = pool_.allocate();
    operation->kind = OperationKind::kReceive;
    operation->peer = source;
    operation->tag = tag;
    operation->ignore = ignore;
    return operation;
  }
  Operation* post(int32_t source, uint64_t tag, uint64_t ignore = 0) {
    Operation* operation = receive(source, tag, ignore);
    table_.post(operation);
    return operation;
  }
  Incoming* arrive(int32_t source, uint64_t tag) {
    Incoming& message = messages_.emplace_back();
    message.source = source;
    message.tag = tag;
    table_.add_unexpected(&message);
    return &message;
  }

  OperationPool pool_{nullptr};
  std::deque<Incoming> messages_;
  MatchTable table_;
};

TEST_F(MatchTableTest, EqualReceivesMatchInOrder) {
  Operation* const first = post(1, 7);
  Operation* const second = post(1, 7);
  EXPECT_EQ(table_.posted_count(), 2U);
  EXPECT_EQ(table_.match_message(1, 8), nullptr);
  EXPECT_EQ(table_.match_message(2, 7), nullptr);
  EXPECT_EQ(table_.match_message(1, 7), first);
  EXPECT_EQ(table_.match_message(1, 7), second);
  EXPECT_EQ(table_.match_message(1, 7), nullptr);
  EXPECT_EQ(table_.posted_count(), 0U);
}

TEST_F(MatchTableTest, FirstPostedReceiveWinsWhetherExactOrWildcard) {
  Operation* const exact_first = post(1, 7);
  Operation* const any_source = post(kAny, 7);
  Operation* const any_tag = post(1, 0, kAllBits);
  Operation* const exact_last = post(1, 7);
  EXPECT_EQ(table_.match_message(1, 7), exact_first);
  EXPECT_EQ(table_.match_message(1, 7), any_source);
  EXPECT_EQ(table_.match_message(1, 7), any_tag);
  EXPECT_EQ(table_.match_message(1, 7), exact_last);
}

TEST_F(MatchTableTest, WildcardThatDoesNotMatchIsSkipped) {
  Operation* const other_source = post(2, 0, kAllBits);
  Operation* const other_tag = post(kAny, 8);
  Operation* const exact = post(1, 7);
  Operation* const fits = post(kAny, 7);
  EXPECT_EQ(table_.match_message(1, 7), exact);
  EXPECT_EQ(table_.match_message(1, 7), fits);
  EXPECT_EQ(table_.match_message(1, 7), nullptr);
  EXPECT_EQ(table_.match_message(5, 8), other_tag);
  EXPECT_EQ(table_.match_message(2, 99), other_source);
}

TEST_F(MatchTableTest, MaskIgnoresOnlyItsBits) {
  Operation* const low_ignored = post(3, 0x1200, 0x00ff);
  EXPECT_EQ(table_.match_message(3, 0x1300), nullptr);
  EXPECT_EQ(table_.match_message(3, uint64_t{1} << 63 | 0x1234), nullptr);
  EXPECT_EQ(table_.match_message(4, 0x1234), nullptr);
  EXPECT_EQ(table_.match_message(3, 0x12ff), low_ignored);
  Operation* const high_ignored = post(kAny, 5, uint64_t{1} << 63);
  EXPECT_EQ(table_.match_message(9, uint64_t{1} << 62 | 5), nullptr);
  EXPECT_EQ(table_.match_message(9, uint64_t{1} << 63 | 5), high_ignored);
}

TEST_F(MatchTableTest, RemovedReceiveLeavesItsNeighboursInOrder) {
  for (const int32_t source : {int32_t{1}, kAny}) {
    std::vector<Operation*> posted;
    for (int i = 0; i < 5; ++i) posted.push_back(post(source, 7));
    for (const size_t gone : {2U, 0U, 4U}) table_.remove(posted[gone]);
    EXPECT_EQ(table_.posted_count(), 2U);
    EXPECT_EQ(table_.match_message(1, 7), posted[1]);
    Operation* const later = post(source, 7);
    EXPECT_EQ(table_.match_message(1, 7), posted[3]);
    EXPECT_EQ(table_.match_message(1, 7), later);
    EXPECT_EQ(table_.match_message(1, 7), nullptr);
  }
}

TEST_F(MatchTableTest, GrowthKeepsOrder) {
  constexpr uint64_t kTags = 1500;  // two per tag: more than two growth steps
  std::vector<Operation*> first;
  std::vector<Operation*> second;
  std::vector<Incoming*> early;
  // Messages from other ranks are in the table while it grows.
  for (uint64_t tag = 0; tag < kTags; ++tag) {
    early.push_back(arrive(9, tag / 2));
    first.push_back(post(1, tag));
  }
  for (uint64_t tag = 0; tag < kTags; ++tag) second.push_back(post(1, tag));
  Operation* const wild = post(kAny, 0, kAllBits);
  EXPECT_EQ(table_.posted_count(), 2 * kTags + 1);
  for (uint64_t tag = 0; tag < kTags; ++tag) {
    ASSERT_EQ(table_.match_message(1, tag), first[tag]) << tag;
    ASSERT_EQ(table_.match_message(1, tag), second[tag]) << tag;
  }
  EXPECT_EQ(table_.match_message(1, 3), wild);
  for (uint64_t tag = 0; tag < kTags; ++tag) {
    ASSERT_EQ(table_.find_unexpected(9, tag / 2, 0), early[tag]) << tag;
    table_.remove_unexpected(early[tag]);
  }
  EXPECT_EQ(table_.first_unexpected(), nullptr);
}

TEST_F(MatchTableTest, FindsTheOldestUnexpectedMessage) {
  EXPECT_EQ(table_.find_unexpected(kAny, 0, kAllBits), nullptr);
  Incoming* const a = arrive(1, 7);
  Incoming* const b = arrive(2, 7);
  Incoming* const c = arrive(1, 7);
  Incoming* const d = arrive(1, 0x107);
  EXPECT_EQ(table_.first_unexpected(), a);
  EXPECT_EQ(table_.find_unexpected(1, 7, 0), a);
  EXPECT_EQ(table_.find_unexpected(2, 7, 0), b);
  EXPECT_EQ(table_.find_unexpected(kAny, 7, 0), a);
  EXPECT_EQ(table_.find_unexpected(1, 0x107, 0), d);
  EXPECT_EQ(table_.find_unexpected(kAny, 0x107, 0), d);
  EXPECT_EQ(table_.find_unexpected(2, 0x107, 0), nullptr);
  EXPECT_EQ(table_.find_unexpected(2, 0x107, 0x100), b);
  EXPECT_EQ(table_.find_unexpected(2, 0x107, 0x200), nullptr);
  EXPECT_EQ(table_.find_unexpected(3, 0, kAllBits), nullptr);
  EXPECT_TRUE(a->queued);
  table_.remove_unexpected(a);
  EXPECT_FALSE(a->queued);
  EXPECT_EQ(table_.find_unexpected(kAny, 7, 0), b);
  EXPECT_EQ(table_.find_unexpected(1, 7, 0), c);
}

TEST_F(MatchTableTest, MessagesRemovedAnywhereLeaveTheOthersInOrder) {
  std::vector<Incoming*> all;
  for (int i = 0; i < 6; ++i) all.push_back(arrive(1, 7));
  for (const size_t gone : {3U, 0U, 5U}) table_.remove_unexpected(all[gone]);
  Incoming* const later = arrive(1, 7);
  std::vector<Incoming*> left;
  for (Incoming* each = table_.first_unexpected(); each != nullptr; each = each->next_arrived) {
    left.push_back(each);
  }
  EXPECT_EQ(left, (std::vector<Incoming*>{all[1], all[2], all[4], later}));
  for (Incoming* each : left) {
    EXPECT_EQ(table_.find_unexpected(1, 7, 0), each);
    EXPECT_EQ(table_.find_unexpected(kAny, 7, 0), each);
    table_.remove_unexpected(each);
  }
  EXPECT_EQ(table_.find_unexpected(1, 7, 0), nullptr);
}

TEST_F(MatchTableTest, MatchingStaysCheapWithManyWildcards) {
  constexpr uint64_t kCount = 20'000;
  struct Kind {
    int32_t source;
    uint64_t ignore;
  };
  for (const Kind& kind : {Kind{kAny, 0}, Kind{3, 0xff}, Kind{kAny, 0xff}}) {
    const auto tag_of = [](uint64_t i) { return i << 8; };
    uint64_t before = table_.steps();
    for (uint64_t i = 0; i < kCount; ++i) post(kind.source, tag_of(i), kind.ignore);
    for (uint64_t i = kCount; i-- > 0;) {
      Operation* const found = table_.match_message(3, tag_of(i));
      ASSERT_NE(found, nullptr);
      ASSERT_EQ(found->tag, tag_of(i));
      pool_.recycle_locked(found);
    }
    EXPECT_LE(table_.steps() - before, 8 * kCount);
    before = table_.steps();
    for (uint64_t i = 0; i < kCount; ++i) arrive(3, tag_of(i));
    for (uint64_t i = kCount; i-- > 0;) {
      Incoming* const found = table_.find_unexpected(kind.source, tag_of(i), kind.ignore);
      ASSERT_NE(found, nullptr);
      ASSERT_EQ(found->tag, tag_of(i));
      table_.remove_unexpected(found);
    }
    EXPECT_LE(table_.steps() - before, 8 * kCount);
  }
}

// Searches alternate between as many masks as there can be indexes.
TEST_F(MatchTableTest, SearchesStayCheapWithAlternatingMasks) {
  constexpr uint64_t kCount = 20'000;
  const std::vector<MatchMask> masks{{true, 0}, {false, 0xff}, {true, 0xff}, {false, 0xf}};
  ASSERT_LE(masks.size(), MatchTable::kMaxIndexes);
  for (int round = 0; round < 2; ++round) {
    const uint64_t before = table_.steps();
    for (uint64_t i = 0; i < kCount; ++i) arrive(3, i << 8);
    for (uint64_t i = kCount; i-- > 0;) {
      const MatchMask& mask = masks[i % masks.size()];
      Incoming* const found =
          table_.find_unexpected(mask.any_source ? kAny : 3, i << 8, mask.ignore);
      ASSERT_NE(found, nullptr);
      ASSERT_EQ(found->tag, i << 8);
      table_.remove_unexpected(found);
    }
    EXPECT_LE(table_.steps() - before, 8 * masks.size() * kCount);
  }
}

TEST_F(MatchTableTest, EarlierMasksDoNotSlowMatching) {
  std::vector<Operation*> posted;
  for (uint64_t mask = 1; mask <= 1000; ++mask) posted.push_back(post(1, 0, mask));
  for (Operation* const each : posted) table_.remove(each);
  post(kAny, 7);
  const uint64_t before = table_.steps();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(table_.match_message(1, 8), nullptr);
  EXPECT_EQ(table_.steps() - before, 100U);
}

// The messages are indexed although no receive was posted when they arrived.
TEST_F(MatchTableTest, SearchesStayCheapWithManyUnexpectedMessages) {
  constexpr uint64_t kCount = 100'000;
  for (uint64_t tag = 0; tag < kCount; ++tag) arrive(1, tag);
  for (uint64_t tag = kCount; tag-- > 0;) {
    Incoming* const found = table_.find_unexpected(1, tag, 0);
    ASSERT_NE(found, nullptr);
    table_.remove_unexpected(found);
  }
  EXPECT_LE(table_.steps(), 8 * kCount);
}

// Checks random operations against lists that are searched from the front.
TEST_F(MatchTableTest, RandomOperationsMatchAPlainList) {
  std::mt19937_64 random(18);
  std::list<Operation*> posted;
  std::list<Incoming*> unexpected;
  const auto accepts = [](int32_t source, uint64_t tag, uint64_t ignore, int32_t from,
                          uint64_t with) {
    return (source < 0 || source == from) && (tag & ~ignore) == (with & ~ignore);
  };
  for (int step = 0; step < 60'000; ++step) {
    const auto source = static_cast<int32_t>(random() % 4);
    const uint64_t tag = (random() % 6) << (random() % 2 * 40);
    // Sometimes many are added, so that the table grows.
    const bool fill = step / 3000 % 4 == 0;
    switch (random() % (fill ? 6 : 8)) {
      case 0:
      case 1:
      case 2: {
        const bool wild = random() % 4 == 0;
        const uint64_t ignore = wild && random() % 2 == 0 ? random() % 8 : 0;
        posted.push_back(post(wild && ignore == 0 ? kAny : source, tag, ignore));
        break;
      }
      case 3:
        unexpected.push_back(arrive(source, tag));
        break;
      case 4: {
        const uint64_t ignore = random() % 3 == 0 ? random() % 8 : 0;
        const int32_t from = random() % 3 == 0 ? kAny : source;
        const auto found = std::find_if(unexpected.begin(), unexpected.end(), [&](Incoming* each) {
          return accepts(from, tag, ignore, each->source, each->tag);
        });
        Incoming* const expected = found == unexpected.end() ? nullptr : *found;
        ASSERT_EQ(table_.find_unexpected(from, tag, ignore), expected) << "step " << step;
        if (expected == nullptr) break;
        table_.remove_unexpected(expected);
        unexpected.erase(found);
        break;
      }
      case 5: {
        if (posted.empty() || random() % 8 != 0) break;
        const auto gone =
            std::next(posted.begin(), static_cast<ptrdiff_t>(random() % posted.size()));
        table_.remove(*gone);
        pool_.recycle_locked(*gone);
        posted.erase(gone);
        break;
      }
      default: {
        const auto found = std::find_if(posted.begin(), posted.end(), [&](Operation* each) {
          return accepts(each->peer, each->tag, each->ignore, source, tag);
        });
        Operation* const expected = found == posted.end() ? nullptr : *found;
        ASSERT_EQ(table_.match_message(source, tag), expected) << "step " << step;
        if (expected == nullptr) break;
        pool_.recycle_locked(expected);
        posted.erase(found);
      }
    }
    ASSERT_EQ(table_.posted_count(), posted.size());
  }
}

}  // namespace
}  // namespace hetcomm
