// Ranks that sleep until a ticket arrives in their team's arena:
//   * a sleeping rank of any index is woken, once, and no other
//   * a rank does not wake itself, nor one that has stopped to wait
#include "src/core/collectives/arena_sleepers.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "src/base/baton_role.h"

namespace hetcomm::collectives {
namespace {

class ArenaSleepersTest : public ::testing::Test {
 protected:
  // Returns the ranks that rank |from| wakes after a ticket.
  static std::vector<uint32_t> woken_by(ArenaSleepers& from) {
    std::vector<uint32_t> woken;
    from.look();
    from.wake([&](uint32_t index) { woken.push_back(index); });
    return woken;
  }
};

TEST_F(ArenaSleepersTest, SleepingRankOfAnyIndexIsWokenOnce) {
  for (const uint32_t ranks : {2u, 63u, 64u, 65u, 66u, 128u, 129u, 512u}) {
    ArenaOffer offer;
    auto arena = SharedArena::create(ranks, &offer);
    ASSERT_TRUE(arena.ok()) << arena.status().text();
    ArenaSleepers first(arena.value(), 0, true);
    for (uint32_t index = 1; index < ranks; ++index) {
      ArenaSleepers sleeper(arena.value(), index, true);
      ASSERT_TRUE(sleeper.announce(false));
      EXPECT_EQ(woken_by(first), std::vector{index}) << ranks << " ranks";
      EXPECT_EQ(woken_by(first), std::vector<uint32_t>{}) << ranks << " ranks";
    }
  }
}

TEST_F(ArenaSleepersTest, AllSleepingRanksAreWokenInOrder) {
  constexpr uint32_t kRanks = 200;
  ArenaOffer offer;
  auto arena = SharedArena::create(kRanks, &offer);
  ASSERT_TRUE(arena.ok()) << arena.status().text();
  const std::vector<uint32_t> asleep = {0, 1, 63, 64, 127, 128, 199};
  for (const uint32_t index : asleep) {
    ASSERT_TRUE(ArenaSleepers(arena.value(), index, true).announce(false));
  }
  ArenaSleepers teller(arena.value(), 100, true);
  EXPECT_EQ(woken_by(teller), asleep);
}

TEST_F(ArenaSleepersTest, RankWakesNeitherItselfNorARankThatStoppedWaiting) {
  constexpr uint32_t kRanks = 130;
  ArenaOffer offer;
  auto arena = SharedArena::create(kRanks, &offer);
  ASSERT_TRUE(arena.ok()) << arena.status().text();
  for (const uint32_t own : {5u, 70u, 129u}) {
    ArenaSleepers self(arena.value(), own, true);
    ArenaSleepers other(arena.value(), (own + 64) % kRanks, true);
    ASSERT_TRUE(self.announce(false));
    ASSERT_TRUE(other.announce(false));
    other.end();
    EXPECT_EQ(woken_by(self), std::vector<uint32_t>{});
    EXPECT_EQ(woken_by(other), std::vector{own});
    self.end();
  }
}

}  // namespace
}  // namespace hetcomm::collectives
