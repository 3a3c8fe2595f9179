// The sweep of pending operations:
//  * examines the slots around a new operation once, and later if one of them requests it;
//  * returns the earliest time at which any operation requested the next sweep;
//  * misses no operation that begins during the sweep.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "src/core/progress/operation.h"

namespace hetcomm {
namespace {

constexpr uint64_t kNever = ~uint64_t{0};

class OperationPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < 1000; ++i) all_.push_back(pool_.allocate());
  }
  void begin(Operation* operation, uint64_t look_at_ns) {
    look_at_[operation] = look_at_ns;
    operation->slot.block->has_new = true;
  }
  // Sweeps and returns how many slots were examined.
  size_t sweep(uint64_t now_ns, uint64_t* next = nullptr) {
    size_t looked = 0;
    const uint64_t at = pool_.sweep(now_ns, [&](Operation& operation) {
      ++looked;
      const auto found = look_at_.find(&operation);
      if (found == look_at_.end()) return kNever;
      if (found->second > now_ns) return found->second;
      ended_.insert(&operation);
      look_at_.erase(found);
      return kNever;
    });
    if (next != nullptr) *next = at;
    return looked;
  }

  OperationPool pool_{nullptr};
  std::vector<Operation*> all_;
  std::map<Operation*, uint64_t> look_at_;
  std::set<Operation*> ended_;
};

TEST_F(OperationPoolTest, SweepExaminesOnlyNewAndDueOperations) {
  uint64_t next = 0;
  EXPECT_EQ(sweep(1, &next), 0U);
  EXPECT_EQ(next, kNever);
  begin(all_[10], 500);
  begin(all_[700], 300);
  EXPECT_EQ(sweep(2, &next), 2 * SlotBlock::kSlots);
  EXPECT_EQ(next, 300U);
  EXPECT_EQ(sweep(3, &next), 0U);
  EXPECT_EQ(next, 300U);
  EXPECT_EQ(sweep(300, &next), SlotBlock::kSlots);
  EXPECT_EQ(ended_, std::set<Operation*>{all_[700]});
  EXPECT_EQ(next, 500U);
  EXPECT_EQ(sweep(501, &next), SlotBlock::kSlots);
  EXPECT_EQ(ended_.size(), 2U);
  EXPECT_EQ(next, kNever);
}

TEST_F(OperationPoolTest, SweepSkipsWaitingOperations) {
  for (Operation* operation : all_) begin(operation, 1'000'000);
  EXPECT_GE(sweep(1), all_.size());
  for (uint64_t now = 2; now < 1000; ++now) EXPECT_EQ(sweep(now), 0U);
  // An operation that begins and ends causes its whole block to be examined.
  begin(all_[0], 2000);
  EXPECT_EQ(sweep(1000), SlotBlock::kSlots);
  EXPECT_EQ(sweep(2000), SlotBlock::kSlots);
  EXPECT_GE(sweep(1'000'000), all_.size() - 1);
  EXPECT_EQ(ended_.size(), all_.size());
}

TEST_F(OperationPoolTest, OperationBegunDuringASweepIsExaminedNext) {
  begin(all_[0], 10);
  Operation* const neighbour = all_[1];
  ASSERT_EQ(neighbour->slot.block, all_[0]->slot.block);
  bool begun = false;
  EXPECT_EQ(pool_.sweep(10,
                        [&](Operation& operation) {
                          if (&operation == all_[0] && !std::exchange(begun, true)) {
                            begin(neighbour, 20);
                          }
                          return kNever;
                        }),
            kNever);
  EXPECT_TRUE(begun);
  uint64_t next = 0;
  EXPECT_EQ(sweep(11, &next), SlotBlock::kSlots);
  EXPECT_EQ(next, 20U);
}

}  // namespace
}  // namespace hetcomm
