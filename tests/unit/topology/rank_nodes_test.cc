// The NUMA nodes of a rank's memory and threads:
//    - a NIC's buffers lie near the NIC, staging memory near its device, and near the NIC for a
//      device that does not report its place;
//    - of several nodes those count that are near the rank's accelerators, and near the processors
//      that it may use, as well;
//    - nodes are the kernel's numbers, which may have holes;
//    - a machine of one node, or one that reports no places, gives no preference;
//    - on random machines every named node is near the object that it is named for.
#include "topology/machine/rank_nodes.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/machines.h"
#include "topology/read/machine_file.h"

namespace hetcomm::topology {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;

// Returns nodes 0, 3 and 7 with four processors each: two in one package, and one in another.
Machine three_nodes() {
  Machine machine;
  const char* const processors[] = {"0-3", "4-7", "2000-2003"};
  const uint32_t numbers[] = {0, 3, 7};
  for (size_t i = 0; i < 3; ++i) {
    NumaNode& node = machine.numa_nodes.emplace_back();
    node.number = numbers[i];
    node.processors = processors[i];
  }
  return machine;
}

int add_nic(Machine& machine, std::vector<int> nodes) {
  Nic& nic = machine.nics.emplace_back();
  nic.interface = "eth" + std::to_string(machine.nics.size());
  nic.state = NicState::kUp;
  nic.mbit_per_s = 100'000;
  nic.numa_nodes = std::move(nodes);
  return static_cast<int>(machine.nics.size()) - 1;
}

int add_accelerator(Machine& machine, std::vector<int> nodes) {
  Accelerator& accelerator = machine.accelerators.emplace_back();
  accelerator.address.bus = static_cast<uint8_t>(machine.accelerators.size());
  accelerator.numa_nodes = std::move(nodes);
  return static_cast<int>(machine.accelerators.size()) - 1;
}

RankNodes nodes(const Machine& machine, const RankLocation& place, size_t most = 4) {
  const Affinity affinity = assign_nics(machine, {});
  return nodes_of_rank(machine, affinity, place, nics_of_rank(machine, affinity, place, most).used);
}

TEST(RankNodes, BuffersArePlacedNearNicAndDevice) {
  Machine machine = three_nodes();
  add_nic(machine, {1});
  const int accelerator = add_accelerator(machine, {2});
  const RankNodes found = nodes(machine, {.accelerators = {accelerator}});
  EXPECT_THAT(found.nics, ElementsAre(3));
  EXPECT_THAT(found.accelerators, ElementsAre(7));
  EXPECT_EQ(found.inside, 7);
  EXPECT_EQ(found.staging, 3);
  EXPECT_EQ(found.processors.text(), "4-7");
}

TEST(RankNodes, DeviceWithUnknownLocationIsStagedNearTheNic) {
  Machine machine = three_nodes();
  add_nic(machine, {1});
  const int accelerator = add_accelerator(machine, {});
  const RankNodes found = nodes(machine, {.accelerators = {accelerator}});
  EXPECT_THAT(found.accelerators, ElementsAre(3));
  EXPECT_EQ(found.inside, 3);
}

TEST(RankNodes, NodesSharedByNicAndDeviceArePreferred) {
  Machine machine = three_nodes();
  add_nic(machine, {0, 1, 2});
  const int accelerator = add_accelerator(machine, {1, 2});
  EXPECT_THAT(nodes(machine, {}).nics, ElementsAre(0));
  EXPECT_EQ(nodes(machine, {}).processors.text(), "0-7,2000-2003");
  EXPECT_THAT(nodes(machine, {.numa_nodes = {2}}).nics, ElementsAre(7));
  const RankNodes near_device = nodes(machine, {.accelerators = {accelerator}});
  EXPECT_THAT(near_device.nics, ElementsAre(3));
  EXPECT_EQ(near_device.processors.text(), "4-7,2000-2003");
  const RankNodes bound = nodes(machine, {.accelerators = {accelerator}, .numa_nodes = {2}});
  EXPECT_THAT(bound.nics, ElementsAre(7));
  EXPECT_THAT(bound.accelerators, ElementsAre(7));
  // A rank that runs elsewhere does not move the memory away from the devices that use it.
  const RankNodes far = nodes(machine, {.accelerators = {accelerator}, .numa_nodes = {0}});
  EXPECT_THAT(far.nics, ElementsAre(3));
  EXPECT_EQ(far.inside, 3);
}

TEST(RankNodes, ThreadsStayNearTheFirstNicOfEachAccelerator) {
  Machine machine = three_nodes();
  for (const int node : {0, 1, 2}) add_nic(machine, {node});
  const int first = add_accelerator(machine, {0});
  const int second = add_accelerator(machine, {2});
  EXPECT_EQ(nodes(machine, {.accelerators = {first}}).processors.text(), "0-3");
  EXPECT_EQ(nodes(machine, {.accelerators = {first, second}}).processors.text(), "0-3,2000-2003");
  EXPECT_EQ(nodes(machine, {.numa_nodes = {1}}).processors.text(), "4-7");
}

TEST(RankNodes, NodesOfDeviceOrRankAreUsedWithoutANic) {
  Machine machine = three_nodes();
  const int accelerator = add_accelerator(machine, {2});
  const RankNodes with = nodes(machine, {.accelerators = {accelerator}, .numa_nodes = {0}});
  EXPECT_EQ(with.inside, 7);
  EXPECT_EQ(with.processors.text(), "2000-2003");
  EXPECT_EQ(nodes(machine, {.numa_nodes = {1}}).inside, 3);
  const RankNodes lost = nodes(machine, {.numa_nodes = {0, 1}});
  EXPECT_EQ(lost.inside, kNone);
  EXPECT_TRUE(lost.processors.empty());
}

void expect_no_wish(const RankNodes& found) {
  EXPECT_THAT(found.nics, Each(kNone));
  EXPECT_THAT(found.accelerators, Each(kNone));
  EXPECT_EQ(found.inside, kNone);
  EXPECT_EQ(found.staging, kNone);
  EXPECT_TRUE(found.processors.empty());
}

TEST(RankNodes, SingleNodeOrUnknownLocationsGiveNoPreference) {
  Machine machine = three_nodes();
  add_nic(machine, {});
  const int accelerator = add_accelerator(machine, {});
  expect_no_wish(nodes(machine, {.accelerators = {accelerator}}));
  expect_no_wish(nodes(machine, {}));
  for (const size_t count : {size_t{1}, size_t{0}}) {
    machine.numa_nodes.resize(count);
    const std::vector<int> only(count, 0);
    machine.nics[0].numa_nodes = only;
    machine.accelerators[0].numa_nodes = only;
    expect_no_wish(nodes(machine, {.accelerators = {accelerator}, .numa_nodes = only}));
  }
}

TEST(RankNodes, NodesMatchARecordedMachine) {
  Result<Machine> machine = read_machine_file(machine_path("four_nodes.xml"));
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  for (size_t i = 0; i < machine->accelerators.size(); ++i) {
    const std::vector<int>& own = numa_nodes_of(*machine, machine->accelerators[i].function);
    ASSERT_EQ(own.size(), 1u);
    const NumaNode& node = machine->numa_nodes[static_cast<size_t>(own[0])];
    const RankNodes found = nodes(*machine, {.accelerators = {static_cast<int>(i)}});
    EXPECT_THAT(found.accelerators, ElementsAre(static_cast<int>(node.number)));
    EXPECT_EQ(found.inside, static_cast<int>(node.number));
  }
}

TEST(RankNodes, NodesAreNearTheirObjectsOnRandomMachines) {
  std::mt19937 random(11);
  const auto some_nodes = [&] {
    std::vector<int> some;
    for (int node = 0; node < 3; ++node) {
      if (random() % 2 == 0) some.push_back(node);
    }
    return some;
  };
  for (int round = 0; round < 2000; ++round) {
    Machine machine = three_nodes();
    RankLocation place;
    for (size_t i = random() % 4; i > 0; --i) add_nic(machine, some_nodes());
    for (size_t i = random() % 4; i > 0; --i) {
      place.accelerators.push_back(add_accelerator(machine, some_nodes()));
    }
    place.numa_nodes = some_nodes();
    const Affinity affinity = assign_nics(machine, {});
    const std::vector<int> nics = nics_of_rank(machine, affinity, place, 2).used;
    const RankNodes found = nodes_of_rank(machine, affinity, place, nics);
    ASSERT_EQ(found.nics.size(), nics.size());
    ASSERT_EQ(found.accelerators.size(), place.accelerators.size());
    const auto numbers = [&](const std::vector<int>& indices) {
      std::vector<int> result;
      for (const int index : indices) {
        result.push_back(static_cast<int>(machine.numa_nodes[static_cast<size_t>(index)].number));
      }
      return result;
    };
    for (size_t i = 0; i < nics.size(); ++i) {
      const std::vector<int> near = numbers(machine.nics[static_cast<size_t>(nics[i])].numa_nodes);
      if (near.empty()) {
        ASSERT_EQ(found.nics[i], kNone);
      } else {
        ASSERT_THAT(near, Contains(found.nics[i]));
      }
    }
    for (size_t i = 0; i < place.accelerators.size(); ++i) {
      const std::vector<int> near =
          numbers(machine.accelerators[static_cast<size_t>(place.accelerators[i])].numa_nodes);
      if (!near.empty()) {
        ASSERT_THAT(near, Contains(found.accelerators[i]));
      }
    }
  }
}

}  // namespace
}  // namespace hetcomm::topology
