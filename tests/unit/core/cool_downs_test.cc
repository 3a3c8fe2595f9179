// When connections that have failed are tried again:
//    - the pause doubles with each failure, up to a limit, and a long connection resets it;
//    - recently failed ends come after all others for a second after their pause;
//    - ends in different subnets have a pause of ten minutes after four failures, unless a
//      connection between them has opened once.
#include "src/core/peer/rails/cool_downs.h"

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

constexpr uint64_t kPauseNs = 1000;
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr RailEnds kEnds{.own = 1, .peer = 2};

class CoolDownsTest : public ::testing::Test {
 protected:
  // Lets a connection between kEnds fail |times| times, and returns the pause after the last one.
  uint64_t pause_after_failures(int times, bool are_apart) {
    for (int i = 0; i < times; ++i) cool_downs_.failed(kEnds, kNowNs, are_apart);
    return cool_downs_.not_before_ns(kEnds) - kNowNs;
  }

  static constexpr uint64_t kNowNs = 5 * kSecondNs;
  CoolDowns cool_downs_{kPauseNs};
};

TEST_F(CoolDownsTest, PauseDoublesUpToALimit) {
  for (const uint64_t factor : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 64U, 64U}) {
    EXPECT_EQ(pause_after_failures(1, false), factor * kPauseNs);
  }
  EXPECT_FALSE(cool_downs_.is_hopeless(kEnds));
}

TEST_F(CoolDownsTest, LongConnectionResetsThePause) {
  EXPECT_EQ(pause_after_failures(3, false), 4 * kPauseNs);
  cool_downs_.came_up(kEnds, kNowNs - kSecondNs);
  EXPECT_EQ(pause_after_failures(1, false), kPauseNs);
}

TEST_F(CoolDownsTest, PauseStaysBoundedAfterManyFailures) {
  EXPECT_EQ(pause_after_failures(80, false), 64 * kPauseNs);
  cool_downs_.came_up(kEnds, kNowNs - 64 * kPauseNs * 10);
  EXPECT_EQ(pause_after_failures(1, false), 64 * kPauseNs) << "not longer than ten pauses";
  cool_downs_.came_up(kEnds, kNowNs - 64 * kPauseNs * 10 - 1);
  EXPECT_EQ(pause_after_failures(1, false), kPauseNs);
}

TEST_F(CoolDownsTest, RecentFailureIsCooling) {
  EXPECT_FALSE(cool_downs_.is_cooling(kEnds, kNowNs));
  pause_after_failures(1, false);
  EXPECT_TRUE(cool_downs_.is_cooling(kEnds, kNowNs));
  EXPECT_TRUE(cool_downs_.is_cooling(kEnds, kNowNs + kPauseNs + kSecondNs - 1));
  EXPECT_FALSE(cool_downs_.is_cooling(kEnds, kNowNs + kPauseNs + kSecondNs));
  cool_downs_.came_up(kEnds, kNowNs);
  EXPECT_FALSE(cool_downs_.is_cooling(kEnds, kNowNs));
}

TEST_F(CoolDownsTest, EndsInDifferentSubnetsAreHopelessAfterFourFailures) {
  EXPECT_EQ(pause_after_failures(3, true), 4 * kPauseNs);
  EXPECT_FALSE(cool_downs_.is_hopeless(kEnds));
  EXPECT_EQ(pause_after_failures(1, true), 600 * kSecondNs);
  EXPECT_TRUE(cool_downs_.is_hopeless(kEnds));
  EXPECT_TRUE(cool_downs_.is_cooling(kEnds, kNowNs + 600 * kSecondNs));
  EXPECT_FALSE(cool_downs_.is_hopeless({.own = 1, .peer = 3}));
}

TEST_F(CoolDownsTest, ConnectionGivesHopeAgain) {
  pause_after_failures(4, true);
  cool_downs_.came_up(kEnds, kNowNs);
  EXPECT_FALSE(cool_downs_.is_hopeless(kEnds));
  EXPECT_FALSE(cool_downs_.is_cooling(kEnds, kNowNs));
  EXPECT_LE(cool_downs_.not_before_ns(kEnds), kNowNs);
  EXPECT_LT(pause_after_failures(9, true), kSecondNs);
  EXPECT_FALSE(cool_downs_.is_hopeless(kEnds));
}

}  // namespace
}  // namespace hetcomm
