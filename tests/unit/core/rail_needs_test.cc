// Which connections data may use, given the network interfaces near its memory:
//  * a transport whose number is too large for a bit belongs to every mask;
//  * a transport not bound to an interface serves every device; if no transport of a kind is near
//    a device, all transports of that kind serve that device;
//  * needs are recorded once and limited in number, and data waits for each no longer than stated.
#include "src/core/peer/rails/rail_needs.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/core/memory/near_transports.h"

namespace hetcomm {
namespace {

TEST(RailMasks, AdmitOnlyConnectionsBetweenTheirTransports) {
  const RailMasks masks{.own = 0b01, .peer = 0b10};
  EXPECT_TRUE(masks.admit({0, 1}));
  EXPECT_FALSE(masks.admit({1, 1}));
  EXPECT_FALSE(masks.admit({0, 0}));
  EXPECT_TRUE(masks.admit({64, 1})) << "it has no bit";
  EXPECT_TRUE(masks.admit({0, 1000}));
  EXPECT_TRUE(RailMasks{}.admit({63, 0}));
}

TEST(RailMasks, CoverOnlySubsetsOfTheirTransports) {
  const RailMasks kin{.own = 0b0110, .peer = 0b0011};
  EXPECT_TRUE(RailMasks{}.cover(kin));
  EXPECT_TRUE((RailMasks{.own = 0b1110, .peer = 0b0011}.cover(kin)));
  EXPECT_FALSE((RailMasks{.own = 0b0100, .peer = 0b0011}.cover(kin)));
  EXPECT_FALSE((RailMasks{.own = 0b0110, .peer = 0b0001}.cover(kin)));
}

TEST(NearTransports, NearestTransportsOfEachKindServeADevice) {
  NearTransports near;
  // self is bound to no interface. The first rdma is near devices 0 and 1, the second near 2, both
  // tcp near 1.
  near.set(
      {{"self", ~uint64_t{0}}, {"rdma", 0b011}, {"rdma", 0b100}, {"tcp", 0b010}, {"tcp", 0b010}});
  const auto of = [&](size_t device) { return near.of_device(device) & 0b11111; };
  EXPECT_EQ(of(0), 0b11011u) << "no tcp is near the host: all serve it";
  EXPECT_EQ(of(1), 0b11011u);
  EXPECT_EQ(of(2), 0b11101u);
  EXPECT_EQ(of(3), 0b11111u);
  EXPECT_EQ(of(100), 0b11111u);
}

TEST(NearTransports, ServeEveryDeviceBeforeTheyAreSet) {
  EXPECT_EQ(NearTransports().of_device(0), ~uint64_t{0});
  EXPECT_EQ(NearTransports().of_device(63), ~uint64_t{0});
}

TEST(RailNeeds, EachNeedIsRecordedOnce) {
  RailNeeds needs;
  EXPECT_FALSE(needs.knows({1, 2}));
  EXPECT_TRUE(needs.note({1, 2}));
  EXPECT_TRUE(needs.note({2, 1}));
  EXPECT_FALSE(needs.note({1, 2}));
  EXPECT_TRUE(needs.knows({1, 2}));
  EXPECT_TRUE(needs.knows({2, 1}));
  EXPECT_THAT(std::vector(needs.all().begin(), needs.all().end()),
              testing::ElementsAre(RailMasks{1, 2}, RailMasks{2, 1}));
}

TEST(RailNeeds, NumberOfNeedsIsBounded) {
  RailNeeds needs;
  for (uint64_t i = 1; i <= RailNeeds::kMaxNeeds; ++i) EXPECT_TRUE(needs.note({i, 1}));
  EXPECT_FALSE(needs.note({1, 2}));
  EXPECT_FALSE(needs.knows({1, 2}));
  EXPECT_EQ(needs.all().size(), RailNeeds::kMaxNeeds);
}

TEST(RailNeeds, DataWaitsUntilItsDeadlineOrUntilNoRailCanOpen) {
  RailNeeds needs;
  const auto hope = [](const RailMasks&) { return false; };
  EXPECT_EQ(needs.next_timer_ns(), kForever);
  needs.wait({1, 1}, 100);
  needs.wait({2, 2}, 50);
  EXPECT_EQ(needs.next_timer_ns(), 50u);
  EXPECT_TRUE(needs.is_waited_for({1, 1}));
  EXPECT_FALSE(needs.is_waited_for({1, 2}));
  EXPECT_FALSE(needs.settle(49, hope));
  EXPECT_TRUE(needs.settle(50, hope));
  EXPECT_FALSE(needs.is_waited_for({2, 2}));
  EXPECT_TRUE(needs.is_waited_for({1, 1}));
  EXPECT_TRUE(needs.settle(51, [](const RailMasks& masks) { return masks.own == 1; }));
  EXPECT_EQ(needs.next_timer_ns(), kForever);
}

}  // namespace
}  // namespace hetcomm
