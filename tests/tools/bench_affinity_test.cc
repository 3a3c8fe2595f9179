// The comparison of hetcomm_bench affinity:
//   - a rank's device is the accelerator at its address, otherwise that with its number on the
//     host, otherwise a NUMA node;
//   - the far NIC is the first one at the largest distance; if all NICs are equally near, it is the
//     near NIC;
//   - every rank sends or receives at most once, ranks with one number on two hosts form a pair,
//     and ranks of one host form a pair only if there is no other host;
//   - a document that is not a topology names no device.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/links/affinity_plan.h"

namespace tools {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const std::string kMachine = R"({"affinity": {
  "accelerators": [
    {"address": "0000:3b:00.0", "nics": [{"name": "a", "distance": "switch"},
                                         {"name": "b", "distance": "NUMA node"},
                                         {"name": "c", "distance": "other"},
                                         {"name": "d", "distance": "other"}]},
    {"address": "0000:5d:00.0", "nics": [{"name": "b", "distance": "switch"}]}],
  "numa_nodes": [{"number": 4, "nics": [{"name": "a", "distance": "NUMA node"},
                                        {"name": "b", "distance": "NUMA node"}]}]}})";

TEST(BenchAffinity, DeviceIsFoundByAddress) {
  EXPECT_EQ(device_nics(kMachine, "0000:5d:00.0", 0).name, "acc1 0000:5d:00.0");
  EXPECT_EQ(device_nics(kMachine, "0000:5d:00.0", 0).nics.front().name, "b");
}

TEST(BenchAffinity, DevicesWithoutAddressAreAssignedInTurn) {
  EXPECT_EQ(device_nics(kMachine, "", 0).name, "acc0 0000:3b:00.0");
  EXPECT_EQ(device_nics(kMachine, "", 1).name, "acc1 0000:5d:00.0");
  EXPECT_EQ(device_nics(kMachine, "", 2).name, "acc0 0000:3b:00.0");
}

TEST(BenchAffinity, UnknownAddressSelectsANumaNode) {
  EXPECT_EQ(device_nics(kMachine, "0000:99:00.0", 5).name, "numa4");
}

TEST(BenchAffinity, InvalidTopologyGivesNoDevice) {
  for (const char* text : {"", "{", "[]", "{}", R"({"affinity": {"numa_nodes": []}})"}) {
    EXPECT_EQ(device_nics(text, "", 0).name, "") << text;
  }
}

TEST(BenchAffinity, FarNicIsTheFirstAtTheLargestDistance) {
  EXPECT_EQ(far_choice(device_nics(kMachine, "", 0)), 2U);
}

TEST(BenchAffinity, EquallyNearNicsGiveNoFarNic) {
  EXPECT_EQ(far_choice(device_nics(kMachine, "0000:99:00.0", 0)), 0U);
  EXPECT_EQ(far_choice({}), 0U);
}

TEST(BenchAffinity, RanksWithTheSameLocalNumberFormPairs) {
  EXPECT_THAT(affinity_pairs({"x", "x", "y", "y"}), ElementsAre(Pair(0, 2), Pair(1, 3)));
  EXPECT_THAT(affinity_pairs({"x", "y", "x", "y"}), ElementsAre(Pair(0, 1), Pair(2, 3)));
  EXPECT_THAT(affinity_pairs({"x", "x", "y"}), ElementsAre(Pair(0, 2)));
  EXPECT_THAT(affinity_pairs({"x", "y", "z"}), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(affinity_pairs({"x", "y", "z", "w"}), ElementsAre(Pair(0, 1), Pair(2, 3)));
}

TEST(BenchAffinity, RanksOfASingleHostArePairedInOrder) {
  EXPECT_THAT(affinity_pairs({"x", "x", "x", "x", "x"}), ElementsAre(Pair(0, 1), Pair(2, 3)));
  EXPECT_THAT(affinity_pairs({"x"}), IsEmpty());
}

TEST(BenchAffinity, LocalNumbersCountRanksWithinEachHost) {
  EXPECT_THAT(local_numbers({"x", "y", "x", "x", "y"}), ElementsAre(0U, 0U, 1U, 2U, 1U));
}

}  // namespace
}  // namespace tools
