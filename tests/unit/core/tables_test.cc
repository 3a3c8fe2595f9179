// Core's small containers:
//  * SlotTable: an id finds its object until it is erased and never again, even if the slot has
//    another object; made-up ids find nothing; a detached id stays in use; for_each() may erase;
//  * IdChains: an object is found by its id until it is removed, however many objects there are;
//    several objects may share an id;
//  * BlockPool: a returned block is reused for its own size but not for a larger one; no block is
//    handed out twice;
//  * FewPooled: order is kept when an element is removed;
//  * OperationQueue: first in, first out, with insertion at the front and removal anywhere;
//  * RecentCompletions: shows the latest completions, the oldest first, even after wrapping around;
//    reported completions are not shown again;
//  * OverlapGuard: two receives into overlapping bytes are refused, adjacent receives are not, and
//    a refused receive leaves no state behind;
//  * WireHeader: a channel number and a 48-bit length share a header.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "devices/registry.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/id_chains.h"
#include "src/core/progress/operation_queue.h"
#include "src/core/progress/recent_completions.h"
#include "src/core/progress/slot_table.h"

namespace hetcomm {
namespace {

// --- IdChains ---------------------------------------------------------------

struct Chained {
  IdLink<Chained> id_link;
};

TEST(IdChains, FindsObjectsByIdUntilTheyAreErased) {
  IdChains<Chained> table;
  EXPECT_EQ(table.find(7), nullptr);
  std::deque<Chained> objects(5000);
  std::multimap<uint64_t, Chained*> known;
  std::mt19937_64 random(3);
  for (Chained& each : objects) {
    const uint64_t id = random() % 4000 << (random() % 2 * 32);
    table.make_room();
    table.insert(each, id);
    known.emplace(id, &each);
  }
  while (!known.empty()) {
    const auto one = known.lower_bound(random() % 8000 << (random() % 2 * 32));
    if (one == known.end()) {
      known.erase(known.begin(), known.end());
      break;
    }
    Chained* const found = table.find(one->first);
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->id_link.id, one->first);
    table.erase(*one->second);
    known.erase(one);
    ASSERT_EQ(table.count(), known.size());
  }
}

// --- SlotTable --------------------------------------------------------------

TEST(SlotTable, FindsAnObjectByIdUntilItIsErased) {
  SlotTable<int> table;
  int a = 0;
  int b = 0;
  EXPECT_TRUE(table.empty());
  const uint64_t first = table.insert(&a);
  EXPECT_NE(first, 0U) << "0 names nothing";
  EXPECT_EQ(table.find(first), &a);
  EXPECT_FALSE(table.empty());
  EXPECT_TRUE(table.erase(first));
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_FALSE(table.erase(first));
  // The slot is reused under another id.
  const uint64_t second = table.insert(&b);
  EXPECT_EQ(static_cast<uint32_t>(second), static_cast<uint32_t>(first));
  EXPECT_NE(second, first);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_FALSE(table.erase(first));
  EXPECT_EQ(table.find(second), &b);
}

TEST(SlotTable, UnknownIdsFindNothing) {
  SlotTable<int> table;
  int a = 0;
  EXPECT_EQ(table.find(0), nullptr);
  const uint64_t id = table.insert(&a);
  for (const uint64_t other : {id + 1, id + (uint64_t{1} << 32), id - (uint64_t{1} << 32),
                               id ^ (uint64_t{1} << 63), uint64_t{0}, UINT64_MAX}) {
    EXPECT_EQ(table.find(other), nullptr) << other;
    EXPECT_FALSE(table.erase(other)) << other;
    table.detach(other);
  }
  EXPECT_EQ(table.find(id), &a);
}

TEST(SlotTable, DetachedIdStaysInUse) {
  SlotTable<int> table;
  int a = 0;
  int b = 0;
  const uint64_t id = table.insert(&a);
  table.detach(id);
  EXPECT_EQ(table.find(id), nullptr);
  EXPECT_FALSE(table.empty());
  const uint64_t other = table.insert(&b);
  EXPECT_NE(static_cast<uint32_t>(other), static_cast<uint32_t>(id));
  int seen = 0;
  table.for_each([&](int& each) {
    EXPECT_EQ(&each, &b);
    ++seen;
  });
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(table.erase(id));
  EXPECT_FALSE(table.erase(id));
  EXPECT_TRUE(table.erase(other));
  EXPECT_TRUE(table.empty());
}

TEST(SlotTable, ForEachMayEraseAndIdsStayUnique) {
  SlotTable<int> table;
  std::vector<int> values(1000);
  std::vector<uint64_t> ids;
  for (int& value : values) ids.push_back(table.insert(&value));
  EXPECT_EQ(std::set<uint64_t>(ids.begin(), ids.end()).size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(table.find(ids[i]), &values[i]);
  size_t seen = 0;
  table.for_each([&](int& each) {
    ++seen;
    EXPECT_TRUE(table.erase(ids[static_cast<size_t>(&each - values.data())]));
  });
  EXPECT_EQ(seen, values.size());
  EXPECT_TRUE(table.empty());
  // No id is ever reused.
  std::set<uint64_t> used(ids.begin(), ids.end());
  for (int round = 0; round < 3; ++round) {
    std::vector<uint64_t> now;
    for (int& value : values) now.push_back(table.insert(&value));
    for (const uint64_t id : now) {
      EXPECT_TRUE(used.insert(id).second);
      EXPECT_TRUE(table.erase(id));
    }
  }
}

// --- BlockPool --------------------------------------------------------------

TEST(BlockPool, ReturnedBlockIsReusedForItsSizeClass) {
  BlockPool pool;
  for (const size_t size : {size_t{1}, size_t{64}, size_t{65}, size_t{4096}, size_t{1} << 20}) {
    void* const block = pool.take(size);
    ASSERT_NE(block, nullptr);
    std::memset(block, 1, size);
    pool.give(block, size);
    void* const again = pool.take(size);
    EXPECT_EQ(again, block) << size;
    // One byte more than the class holds belongs to another class.
    const size_t holds = std::max<size_t>(64, std::bit_ceil(size));
    pool.give(again, size);
    void* const larger = pool.take(holds + 1);
    EXPECT_NE(larger, block) << size;
    std::memset(larger, 2, holds + 1);
    pool.give(larger, holds + 1);
    void* const whole = pool.take(holds);
    EXPECT_EQ(whole, block) << size;
    std::memset(whole, 3, holds);
    pool.give(whole, holds);
  }
  pool.give(nullptr, 64);
}

TEST(BlockPool, BlocksInUseDoNotOverlap) {
  BlockPool pool;
  std::mt19937_64 random(1);
  struct Taken {
    size_t size;
    std::byte mark;
  };
  std::map<std::byte*, Taken> taken;
  for (int step = 0; step < 20'000; ++step) {
    if (taken.empty() || random() % 2 == 0) {
      const size_t size = random() % (random() % 10 == 0 ? 100'000 : 300);
      auto* const block = static_cast<std::byte*>(pool.take(size));
      const auto mark = static_cast<std::byte>(step);
      std::fill_n(block, size, mark);
      ASSERT_TRUE(taken.emplace(block, Taken{size, mark}).second);
      continue;
    }
    const auto some = std::next(taken.begin(), static_cast<ptrdiff_t>(random() % taken.size()));
    const auto& [block, kept] = *some;
    ASSERT_EQ(std::count(block, block + kept.size, kept.mark), static_cast<ptrdiff_t>(kept.size));
    pool.give(block, kept.size);
    taken.erase(some);
  }
  for (const auto& [block, kept] : taken) pool.give(block, kept.size);
}

struct Counted {
  explicit Counted(int* count, int value) : value_(value), count_(count) { ++*count_; }
  ~Counted() { --*count_; }
  int value_;
  int* count_;
};

TEST(FewPooled, KeepsOrderWhenAnElementIsRemoved) {
  BlockPool pool;
  int count = 0;
  {
    FewPooled<Counted, 4> few;
    for (int i = 0; i < 4; ++i) few.push(make_pooled<Counted>(pool, &count, i));
    EXPECT_TRUE(few.full());
    EXPECT_EQ(few.take(1)->value_, 1);
    EXPECT_FALSE(few.full());
    EXPECT_EQ(few.take(few[1])->value_, 2);
    ASSERT_EQ(few.size(), 2U);
    EXPECT_EQ(few[0].value_, 0);
    EXPECT_EQ(few.back().value_, 3);
    EXPECT_EQ(count, 2);
  }
  EXPECT_EQ(count, 0);
}

// --- OperationQueue ---------------------------------------------------------

TEST(OperationQueue, TakesAndRemovesOperationsInListOrder) {
  OperationPool pool(nullptr);
  std::vector<Operation*> all;
  for (int i = 0; i < 6; ++i) all.push_back(pool.allocate());
  OperationQueue queue;
  const auto expect = [&](const std::vector<size_t>& order) {
    for (const size_t index : order) {
      ASSERT_FALSE(queue.empty());
      EXPECT_EQ(&queue.front(), all[index]);
      queue.remove(queue.front());
    }
    EXPECT_TRUE(queue.empty());
  };
  const auto fill = [&] {
    queue.push_front(*all[2]);
    queue.push_back(*all[3]);
    queue.push_front(*all[1]);
    queue.push_back(*all[4]);
    queue.push_front(*all[0]);
  };
  fill();
  expect({0, 1, 2, 3, 4});
  for (size_t gone = 0; gone < 5; ++gone) {
    fill();
    queue.remove(*all[gone]);
    EXPECT_EQ(all[gone]->links.next, nullptr);
    EXPECT_EQ(all[gone]->links.previous, nullptr);
    queue.push_back(*all[5]);
    std::vector<size_t> left;
    for (size_t i = 0; i < 6; ++i) {
      if (i != gone) left.push_back(i);
    }
    expect(left);
  }
}

// --- RecentCompletions ------------------------------------------------------

class RecentCompletionsTest : public ::testing::Test {
 protected:
  Operation* complete() {
    Operation* operation = pool_.allocate();
    operation->set_state(OperationState::kComplete);
    recent_->keep(*operation);
    return operation;
  }
  void report(Operation* operation) {
    ASSERT_TRUE(operation->claim(operation->generation()));
    pool_.recycle_locked(operation);
  }
  std::vector<Operation*> shown() {
    std::vector<Operation*> result;
    recent_->find([&](Operation& operation) {
      result.push_back(&operation);
      return false;
    });
    return result;
  }

  OperationPool pool_{nullptr};
  std::unique_ptr<RecentCompletions> recent_ = std::make_unique<RecentCompletions>();
};

TEST_F(RecentCompletionsTest, ShowsUnreportedCompletionsOldestFirst) {
  EXPECT_TRUE(shown().empty());
  Operation* const a = complete();
  Operation* const b = complete();
  Operation* const c = complete();
  EXPECT_EQ(shown(), (std::vector<Operation*>{a, b, c}));
  EXPECT_EQ(shown(), (std::vector<Operation*>{a, b, c})) << "nobody has taken one";
  int looked = 0;
  recent_->find([&](Operation& operation) {
    ++looked;
    return &operation == b;
  });
  EXPECT_EQ(looked, 2);
  report(b);
  EXPECT_EQ(shown(), (std::vector<Operation*>{a, c}));
  report(a);
  EXPECT_EQ(shown(), (std::vector<Operation*>{c}));
  report(c);
  EXPECT_TRUE(shown().empty());
  Operation* const d = complete();
  EXPECT_EQ(shown(), (std::vector<Operation*>{d}));
}

TEST_F(RecentCompletionsTest, KeepsTheLast256Completions) {
  std::vector<Operation*> all;
  for (int i = 0; i < 600; ++i) {
    all.push_back(complete());
    if (i % 100 == 50) report(all.back());
  }
  std::vector<Operation*> expected(all.end() - 256, all.end());
  std::erase_if(expected,
                [](const Operation* each) { return each->state() != OperationState::kComplete; });
  EXPECT_EQ(shown(), expected);
}

// --- OverlapGuard -----------------------------------------------------------

class OverlapGuardTest : public ::testing::Test {
 protected:
  OverlapGuardTest() : bytes_(1000) {
    EXPECT_TRUE(devices_.add(create_host_device().value()).ok());
  }
  // Makes a receive whose pieces are the ranges [begin, end) of |bytes_|.
  Operation* receive(std::vector<std::pair<size_t, size_t>> pieces) {
    Operation* operation = pool_.allocate();
    operation->kind = OperationKind::kReceive;
    operation->clear_pieces();
    operation->length = 0;
    if (pieces.size() == 1) {
      const auto [begin, end] = pieces[0];
      operation->buffers.extent = {bytes_.data() + begin, end - begin};
      operation->length = end - begin;
      return operation;
    }
    Memory& memory = memories_.emplace_back(devices_, 0, bytes_.data(), bytes_.size(), false);
    for (const auto& [begin, end] : pieces) {
      operation->buffers.pieces.push_back({&memory, begin, end - begin});
      operation->length += end - begin;
    }
    return operation;
  }
  bool add(const std::vector<std::pair<size_t, size_t>>& pieces) {
    return guard_.add(*receive(pieces));
  }

  std::vector<std::byte> bytes_;
  DeviceSet devices_;
  std::deque<Memory> memories_;
  OperationPool pool_{nullptr};
  OverlapGuard guard_;
};

TEST_F(OverlapGuardTest, AdjacentReceivesAreAccepted) {
  EXPECT_TRUE(add({{100, 200}}));
  EXPECT_TRUE(add({{200, 300}}));
  EXPECT_TRUE(add({{0, 100}}));
  EXPECT_TRUE(add({{150, 150}}));
}

TEST_F(OverlapGuardTest, OverlapOfOneByteIsRefused) {
  Operation* const middle = receive({{100, 200}});
  ASSERT_TRUE(guard_.add(*middle));
  EXPECT_FALSE(add({{199, 300}}));
  EXPECT_FALSE(add({{0, 101}}));
  EXPECT_FALSE(add({{100, 200}}));
  EXPECT_FALSE(add({{120, 130}}));
  EXPECT_FALSE(add({{0, 1000}}));
  guard_.remove(*middle);
  EXPECT_TRUE(add({{0, 1000}}));
}

TEST_F(OverlapGuardTest, RefusedReceiveLeavesNoState) {
  ASSERT_TRUE(add({{100, 200}}));
  EXPECT_FALSE(add({{300, 400}, {150, 160}}));
  EXPECT_TRUE(add({{300, 400}})) << "left by the refused one";
  EXPECT_FALSE(add({{500, 600}, {599, 700}})) << "overlaps itself";
  EXPECT_TRUE(add({{500, 700}}));
  EXPECT_FALSE(add({{150, 160}})) << "the first one is still there";
}

// --- headers ----------------------------------------------------------------

TEST(WireHeader, ChannelAndLengthRoundTripThroughTheHeader) {
  for (const uint32_t channel : {0u, 1u, 0xffffu, 0x10000u, 0xfffffu, UINT32_MAX}) {
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 47, kMaxMessageBytes}) {
      const WireHeader header =
          decode_header(encode_header({.kind = MessageKind::kEager,
                                       .flags = 0xa5,
                                       .channel = static_cast<uint16_t>(channel),
                                       .sequence = 0x89abcdef,
                                       .tag = 0x0123456789abcdef,
                                       .acknowledged = 0xfedcba98,
                                       .credit = 0x87654321,
                                       .value = addressee_value(channel, length)}));
      EXPECT_EQ(channel_of(header), channel);
      EXPECT_EQ(length_of(header), length);
      EXPECT_EQ(header.kind, MessageKind::kEager);
      EXPECT_EQ(header.flags, 0xa5);
      EXPECT_EQ(header.sequence, 0x89abcdefU);
      EXPECT_EQ(header.tag, 0x0123456789abcdefU);
      EXPECT_EQ(header.acknowledged, 0xfedcba98U);
      EXPECT_EQ(header.credit, 0x87654321U);
    }
  }
}

}  // namespace
}  // namespace hetcomm
