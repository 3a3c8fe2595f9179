// The division of a host's NICs among the devices of the ranks on it:
//    - a device leaves the own NIC of another device, and keeps its own and those of nobody;
//    - devices with one own NIC in common leave it to nobody;
//    - host memory, devices at unknown locations, and ranks whose user has set HETCOMM_RAILS leave
//      nothing, but their located devices have own NICs.
#include "topology/machine/own_nics.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hetcomm::topology {
namespace {

using ::testing::ElementsAre;

// Returns the description by a rank with one device at a known location, which uses |nics|.
HostLinks rank_with(const std::vector<uint8_t>& nics) {
  HostLinks links;
  for (const char* name : {"eth0", "eth1", "eth2", "eth3"}) links.nics.push_back({.name = name});
  links.devices = {{0, 1, 2, 3}, nics};
  links.located_devices = 2;
  return links;
}

// Returns the NICs that the second device of each rank keeps, and expects that host memory keeps
// all.
std::vector<std::vector<uint8_t>> kept(std::vector<HostLinks> ranks) {
  OwnNics own;
  for (const HostLinks& each : ranks) own.add(each);
  std::vector<std::vector<uint8_t>> result;
  for (HostLinks& each : ranks) {
    own.remove_left(each);
    EXPECT_THAT(each.devices[0], ElementsAre(0, 1, 2, 3));
    result.push_back(each.devices[1]);
  }
  return result;
}

TEST(OwnNics, DeviceUsesItsOwnNicAndThoseOfNobody) {
  EXPECT_THAT(kept({rank_with({0, 1, 2, 3})}), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(kept({rank_with({0, 1, 2, 3}), rank_with({1, 0, 3, 2})}),
              ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1, 3, 2)));
  EXPECT_THAT(kept({rank_with({0, 1, 2, 3}), rank_with({1, 0, 2, 3}), rank_with({2, 3, 0, 1}),
                    rank_with({3, 2, 1, 0})}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
}

TEST(OwnNics, DevicesMayHaveOneOwnNicInCommon) {
  EXPECT_THAT(kept({rank_with({1, 0}), rank_with({1, 0})}),
              ElementsAre(ElementsAre(1, 0), ElementsAre(1, 0)));
}

TEST(OwnNics, TwoDevicesOfOneRankAreDividedToo) {
  HostLinks rank = rank_with({0, 1, 2});
  rank.devices.push_back({1, 0, 2});
  rank.located_devices = 6;
  OwnNics own;
  own.add(rank);
  own.remove_left(rank);
  EXPECT_THAT(rank.devices[1], ElementsAre(0, 2));
  EXPECT_THAT(rank.devices[2], ElementsAre(1, 2));
}

TEST(OwnNics, DeviceAtAnUnknownLocationHasNoneAndLeavesNone) {
  HostLinks unknown = rank_with({2, 0});
  unknown.located_devices = 0;
  EXPECT_THAT(kept({rank_with({0, 2}), unknown}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(2, 0)));
}

TEST(OwnNics, NumberOfNicsThatTheUserHasSetIsKept) {
  HostLinks all = rank_with({1, 0, 2, 3});
  all.keeps_all_nics = true;
  EXPECT_THAT(kept({rank_with({0, 1, 2, 3}), all}),
              ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1, 0, 2, 3)));
}

TEST(OwnNics, UnknownDeviceAndNicAreNotLeft) {
  OwnNics own;
  own.add(rank_with({1}));
  const HostLinks rank = rank_with({0, 1});
  EXPECT_TRUE(own.is_left_by(rank, 1, "eth1"));
  EXPECT_FALSE(own.is_left_by(rank, 1, "eth9"));
  EXPECT_FALSE(own.is_left_by(rank, 7, "eth1"));
  EXPECT_FALSE(own.is_left_by(rank, 64, "eth1"));
  EXPECT_FALSE(own.is_left_by({}, 1, "eth1"));
}

}  // namespace
}  // namespace hetcomm::topology
