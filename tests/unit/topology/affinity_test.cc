// Which NICs an accelerator gets:
//    - the distance of every pair is the one that a person reads off the machine;
//    - a user's NICs are in the order of capacity, then of distance (affinity_search_test.cc
//      compares the assignment with all others);
//    - the result does not depend on the order in which a machine was read;
//    - a rank uses the NICs of its accelerators, or of its NUMA node;
//    - HETCOMM_FABRIC puts NICs into the fabrics that it names, or changes nothing and reports the
//      error;
//    - HETCOMM_NIC restricts the NICs, for all users or for one, and errors in it are reported.
#include "topology/machine/affinity.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/system/clock.h"
#include "tests/support/machines.h"
#include "topology/machine/fabrics.h"
#include "topology/machine/rank_nics.h"
#include "topology/read/machine_file.h"

namespace hetcomm::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Machine read(const std::string& name) {
  Result<Machine> machine = read_machine_file(machine_path(name + ".xml"));
  EXPECT_TRUE(machine.ok()) << machine.status().text();
  return machine.ok() ? *machine : Machine();
}

NicRules rules(const std::string& text) {
  Result<NicRules> parsed = NicRules::parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  return parsed.ok() ? *parsed : NicRules();
}

std::vector<std::string> names(const Machine& machine, const NicOrder& order) {
  std::vector<std::string> result;
  for (const NicChoice& choice : order) {
    result.push_back(machine.nics[static_cast<size_t>(choice.nic)].name());
  }
  return result;
}

// Returns each accelerator's first NIC.
std::vector<std::string> first_nics(const Machine& machine) {
  std::vector<std::string> result;
  for (const NicOrder& order : assign_nics(machine, {}).accelerators) {
    result.push_back(order.empty() ? "" : names(machine, order).front());
  }
  return result;
}

const char* word(const Machine& machine, const char* accelerator, const char* nic) {
  const int user = machine.find_accelerator(*parse_pci_address(accelerator));
  const int port = machine.find_nic(nic);
  if (user == kNone || port == kNone) return "missing";
  return matrix_word(machine, location_of(machine.accelerators[static_cast<size_t>(user)]),
                     machine.nics[static_cast<size_t>(port)]);
}

TEST(Distance, MatchesTheRecordedMachine) {
  const Machine switches = read("eight_nics");
  EXPECT_STREQ(word(switches, "0000:13:00.0", "mlx5_1"), "PIX");
  EXPECT_STREQ(word(switches, "0000:13:00.0", "mlx5_2"), "NODE");
  EXPECT_STREQ(word(switches, "0000:13:00.0", "mlx5_4"), "SYS");
  const Machine ports = read("unequal_rates");
  EXPECT_STREQ(word(ports, "0000:11:00.0", "mlx5_0"), "PHB");
  const Machine nodes = read("four_nodes");
  EXPECT_STREQ(word(nodes, "0000:11:00.0", "mlx5_0"), "PHB");
  EXPECT_STREQ(word(nodes, "0000:11:00.0", "mlx5_1"), "SYS");   // another node of the socket
  EXPECT_STREQ(word(nodes, "0000:11:00.0", "mlx5_3"), "NODE");  // near the whole socket
  EXPECT_STREQ(word(nodes, "0000:a1:00.0", "mlx5_3"), "SYS");
}

TEST(Distance, IsPxbAcrossSeveralSwitches) {
  Machine machine = read("two_ports");
  // There is one more switch between the first downstream port and its accelerator.
  const int accelerator = machine.accelerators[0].function;
  const int port = machine.pci[static_cast<size_t>(accelerator)].parent;
  int above = port;
  for (const uint8_t bus : {uint8_t{0x70}, uint8_t{0x71}}) {
    PciNode bridge;
    bridge.kind = PciKind::kBridge;
    bridge.address = {0, bus, 0, 0};
    bridge.parent = above;
    above = static_cast<int>(machine.pci.size());
    machine.pci.push_back(bridge);
  }
  PciNode moved = machine.pci[static_cast<size_t>(accelerator)];
  moved.parent = above;
  moved.address = {0, 0x72, 0, 0};
  machine.accelerators[0].function = static_cast<int>(machine.pci.size());
  machine.accelerators[0].address = moved.address;
  machine.pci.push_back(moved);
  ASSERT_TRUE(check(machine).ok()) << check(machine).text();
  normalize(machine);
  EXPECT_STREQ(word(machine, "0000:72:00.0", "eth0"), "PXB");
  EXPECT_STREQ(word(machine, "0000:15:00.0", "eth0"), "PIX");
}

TEST(Distance, BondIsAsFarAsItsFarthestPort) {
  Machine machine = read("eight_nics");
  Nic bond;
  bond.interface = "bond0";
  bond.functions = {machine.nics[0].functions[0], machine.nics[4].functions[0]};
  machine.nics.push_back(bond);
  EXPECT_STREQ(word(machine, "0000:13:00.0", "bond0"), "SYS");
}

TEST(Distance, UsesNumaNodesIfTheTreeIsHidden) {
  Machine machine = read("eight_nics");
  for (Accelerator& each : machine.accelerators) {
    each.numa_nodes = numa_nodes_of(machine, each.function);
    each.function = kNone;
  }
  EXPECT_STREQ(word(machine, "0000:13:00.0", "mlx5_0"), "NODE");
  EXPECT_STREQ(word(machine, "0000:13:00.0", "mlx5_7"), "SYS");
  for (Accelerator& each : machine.accelerators) each.numa_nodes.clear();
  EXPECT_STREQ(word(machine, "0000:13:00.0", "mlx5_0"), "SYS");
}

TEST(Affinity, MatchesTheRecordedMachines) {
  EXPECT_THAT(first_nics(read("eight_nics")),
              ElementsAre("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1", "mlx5_4:1", "mlx5_5:1",
                          "mlx5_6:1", "mlx5_7:1"));
  EXPECT_THAT(first_nics(read("four_nics")),
              ElementsAre("mlx5_0:1", "mlx5_0:1", "mlx5_1:1", "mlx5_1:1", "mlx5_2:1", "mlx5_2:1",
                          "mlx5_3:1", "mlx5_3:1"));
  EXPECT_THAT(first_nics(read("switch_without_nic")),
              ElementsAre("mlx5_0:1", "mlx5_1:1", "mlx5_1:1", "mlx5_0:1", "mlx5_2:1"));
  // The second accelerator's near NIC is down.
  EXPECT_THAT(first_nics(read("nic_down")), ElementsAre("mlx5_0:1", "mlx5_0:1"));
  EXPECT_THAT(first_nics(read("four_nodes")),
              ElementsAre("mlx5_0:1", "mlx5_3:1", "mlx5_1:1", "mlx5_2:1"));
}

TEST(Affinity, SharedNicsAreDividedEvenly) {
  const Machine machine = read("four_nics");
  const Affinity affinity = assign_nics(machine, {});
  for (const NicOrder& order : affinity.accelerators) {
    EXPECT_EQ(order[0].share_mbit_per_s, 100'000u);  // two share 200 Gbit/s
  }
  const Machine eight = read("eight_nics");
  std::vector<int> seconds(eight.nics.size());
  for (const NicOrder& order : assign_nics(eight, {}).accelerators) {
    EXPECT_EQ(order[0].share_mbit_per_s, 200'000u);
    ++seconds[static_cast<size_t>(order[1].nic)];
  }
  EXPECT_EQ(seconds, std::vector<int>(eight.nics.size(), 1));
}

TEST(Affinity, NicWithUnknownRateCountsAsTheSlowest) {
  Machine machine;
  for (const uint64_t rate : {100'000u, 0u, 25'000u}) {
    machine.nics.push_back({});
    machine.nics.back().interface = "eth" + std::to_string(machine.nics.size());
    machine.nics.back().mbit_per_s = rate;
  }
  EXPECT_EQ(counted_mbit_per_s(machine, machine.nics[0]), 100'000u);
  EXPECT_EQ(counted_mbit_per_s(machine, machine.nics[1]), 25'000u);
  machine.nics = {machine.nics[1]};
  EXPECT_EQ(counted_mbit_per_s(machine, machine.nics[0]), 1u);
}

TEST(Affinity, HostMemoryPrefersFastNicsThenNearOnes) {
  const Machine machine = read("four_nics");
  const Affinity affinity = assign_nics(machine, {});
  ASSERT_EQ(affinity.numa_nodes.size(), 2u);
  EXPECT_THAT(names(machine, affinity.numa_nodes[0]),
              ElementsAre("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1", "eno1"));
  EXPECT_THAT(names(machine, affinity.numa_nodes[1]),
              ElementsAre("mlx5_2:1", "mlx5_3:1", "mlx5_0:1", "mlx5_1:1", "eno1"))
      << "eno1 is near, but slow";
}

// Accelerators 0 and 1 with a NIC of 100 Gbit/s below one leaf switch, accelerator 2 and another
// such NIC below a second leaf, and both leaves below one switch.
TEST(Affinity, NicOfTheOwnLeafSwitchIsUsed) {
  Machine machine;
  machine.numa_nodes.resize(1);
  machine.pci.push_back({.kind = PciKind::kRootComplex});
  const auto add = [&](PciKind kind, int parent) {
    const auto bus = static_cast<uint8_t>(machine.pci.size());
    machine.pci.push_back({.kind = kind, .address = {0, bus, 0, 0}, .parent = parent});
    return static_cast<int>(machine.pci.size()) - 1;
  };
  const int top = add(PciKind::kBridge, 0);
  for (const int accelerators : {2, 1}) {
    const int leaf = add(PciKind::kBridge, add(PciKind::kBridge, top));
    for (int i = 0; i < accelerators; ++i) {
      machine.accelerators.emplace_back().function = add(PciKind::kFunction, leaf);
    }
  }
  for (const int leaf : {7, 3}) {  // the NIC of the far leaf comes first
    Nic& nic = machine.nics.emplace_back();
    nic.interface = "eth" + std::to_string(machine.nics.size());
    nic.functions = {add(PciKind::kFunction, leaf)};
    nic.mbit_per_s = 100'000;
  }
  ASSERT_EQ(machine.pci[7].parent, 6);
  const Affinity affinity = assign_nics(machine, {});
  EXPECT_EQ(names(machine, affinity.accelerators[2]).front(), "eth1");
  EXPECT_EQ(names(machine, affinity.accelerators[0]).front(), "eth2");
  EXPECT_EQ(names(machine, affinity.accelerators[1]).front(), "eth2");
}

// Two packages with two NUMA nodes each. The NICs are at the first node of each package, the
// accelerators at the second ones, so that all NICs are at another node.
TEST(Affinity, NicOfTheOwnPackageIsUsed) {
  for (const bool has_distances : {false, true}) {
    Machine machine;
    for (int i = 0; i < 4; ++i) {
      NumaNode& node = machine.numa_nodes.emplace_back();
      node.number = static_cast<uint32_t>(i);
      if (!has_distances) node.package = i / 2;
      for (int k = 0; k < 4 && has_distances; ++k) {
        node.distances.push_back(i == k ? 10 : i / 2 == k / 2 ? 12 : 32);
      }
    }
    for (const int node : {2, 0}) {
      Nic& nic = machine.nics.emplace_back();
      nic.interface = "eth" + std::to_string(node);
      nic.numa_nodes = {node};
      nic.mbit_per_s = 200'000;
    }
    for (const int node : {1, 3}) machine.accelerators.emplace_back().numa_nodes = {node};
    EXPECT_THAT(first_nics(machine), ElementsAre("eth0", "eth2")) << has_distances;
  }
}

// A NIC of 1 Gbit/s at the accelerator's own root port, and one of 200 Gbit/s at another one.
TEST(Affinity, FastNicIsPreferredToANearerSlowOne) {
  Machine machine;
  machine.numa_nodes.resize(1);
  machine.pci.push_back({.kind = PciKind::kRootComplex});
  machine.pci.push_back({.kind = PciKind::kRootComplex});
  const auto add = [&](int parent, uint64_t mbyte_per_s) {
    machine.pci.push_back({.parent = parent, .mbyte_per_s = mbyte_per_s});
    return static_cast<int>(machine.pci.size()) - 1;
  };
  // The accelerator's link has gone to its lowest rate, since the accelerator is idle.
  machine.accelerators.emplace_back().function = add(0, 250);
  for (const uint64_t rate : {1'000u, 200'000u}) {
    Nic& nic = machine.nics.emplace_back();
    nic.interface = "eth" + std::to_string(rate);
    nic.functions = {add(rate == 1'000 ? 0 : 1, 31'508)};
    nic.mbit_per_s = rate;
  }
  EXPECT_THAT(first_nics(machine), ElementsAre("eth200000"));
  EXPECT_EQ(assign_nics(machine, {}).accelerators[0][0].share_mbit_per_s, 200'000u);
  machine.pci.back().mbyte_per_s = 100;  // the fast NIC is in a bad slot
  EXPECT_THAT(first_nics(machine), ElementsAre("eth1000"));
  EXPECT_EQ(assign_nics(machine, {}).accelerators[0][1].share_mbit_per_s, 800u);
}

TEST(Affinity, MachineWithoutNodesOrNicsIsAccepted) {
  Machine machine;
  Affinity affinity = assign_nics(machine, {});
  EXPECT_TRUE(affinity.accelerators.empty());
  ASSERT_EQ(affinity.numa_nodes.size(), 1u);
  EXPECT_TRUE(affinity.numa_nodes[0].empty());
  machine.nics.push_back({});
  machine.nics.back().interface = "eth0";
  EXPECT_THAT(names(machine, assign_nics(machine, {}).numa_nodes[0]), ElementsAre("eth0"));
}

// The distances that every assignment needs are the measure. A search over all users and NICs for
// each of them would take thousands of times as long.
TEST(Affinity, HundredsOfNicsAndAcceleratorsAreAssignedSoon) {
  constexpr int kNics = 512;
  constexpr int kAccelerators = 128;
  Machine machine;
  machine.numa_nodes.resize(1);
  machine.pci.push_back({.kind = PciKind::kRootComplex});
  machine.pci.push_back({.kind = PciKind::kBridge, .parent = 0});
  for (int i = 0; i < kNics + kAccelerators; ++i) {
    const auto function = static_cast<int>(machine.pci.size());
    machine.pci.push_back({.kind = PciKind::kFunction, .parent = 1});
    if (i < kNics) {
      Nic& nic = machine.nics.emplace_back();
      nic.functions = {function};
      nic.mbit_per_s = 25'000;
    } else {
      machine.accelerators.emplace_back().function = function;
    }
  }
  uint64_t start = now_ns();
  for (const Accelerator& accelerator : machine.accelerators) {
    for (const Nic& nic : machine.nics) {
      EXPECT_EQ(distance(machine, location_of(accelerator), nic), Distance::kSameSwitch);
    }
  }
  const uint64_t all_distances_ns = now_ns() - start;
  Affinity affinity;
  uint64_t best_ns = UINT64_MAX;
  for (int i = 0; i < 3; ++i) {
    start = now_ns();
    affinity = assign_nics(machine, {});
    best_ns = std::min(best_ns, now_ns() - start);
  }
  EXPECT_LT(best_ns, 100 * all_distances_ns);
  std::set<int> firsts;
  for (const NicOrder& order : affinity.accelerators) {
    EXPECT_EQ(order.size(), kMaxNicsOfUser);
    firsts.insert(order.front().nic);
  }
  EXPECT_EQ(firsts.size(), size_t{kAccelerators});
}

TEST(NicRules, ListsAllowAndExclude) {
  const Machine machine = read("four_nics");
  const auto of_first = [&](const std::string& text) {
    return names(machine, assign_nics(machine, rules(text)).accelerators[0]);
  };
  EXPECT_THAT(of_first("mlx5_2,mlx5_1:1"), ElementsAre("mlx5_1:1", "mlx5_2:1"));
  EXPECT_EQ(of_first("^mlx5_0,eno*").front(), "mlx5_1:1");
  EXPECT_THAT(of_first("^mlx5_0,eno*"), UnorderedElementsAre("mlx5_1:1", "mlx5_2:1", "mlx5_3:1"));
  EXPECT_THAT(of_first(" mlx5_3 , c5:00.0 "), ElementsAre("mlx5_3:1"));
  EXPECT_THAT(of_first("eno1"), ElementsAre("eno1"));
}

TEST(NicRules, ListForOneUserReplacesTheGeneralList) {
  const Machine machine = read("four_nics");
  const Affinity affinity =
      assign_nics(machine, rules("^eno1|acc1=mlx5_3|0000:43:00.0=^mlx5_1|numa1=eno1"));
  EXPECT_EQ(affinity.accelerators[0].size(), 4u);
  EXPECT_THAT(names(machine, affinity.accelerators[1]), ElementsAre("mlx5_3:1"));
  EXPECT_EQ(names(machine, affinity.accelerators[2]).front(), "mlx5_0:1");
  // The accelerator's own list does not exclude eno1.
  EXPECT_EQ(affinity.accelerators[2].size(), 4u);
  EXPECT_THAT(names(machine, affinity.numa_nodes[1]), ElementsAre("eno1"));
}

TEST(NicRules, GeneralListSetsTheOrder) {
  const Machine machine = read("unequal_rates");
  const auto general = [&](const std::string& text) {
    std::vector<std::string> result;
    for (const int nic : rules(text).general(machine)) {
      result.push_back(machine.nics[static_cast<size_t>(nic)].name());
    }
    return result;
  };
  EXPECT_THAT(general("mlx5_2,mlx5_0"), ElementsAre("mlx5_2:1", "mlx5_0:1"));
  EXPECT_THAT(general("mlx5_2,mlx5_*"), ElementsAre("mlx5_2:1", "mlx5_0:1", "mlx5_1:1"));
  EXPECT_THAT(general("^mlx5_0"), ElementsAre("mlx5_1:1", "mlx5_2:1"));
  EXPECT_TRUE(rules("^mlx5_0|acc0=mlx5_1").has_general());
  EXPECT_FALSE(rules("acc0=mlx5_1").has_general());
}

TEST(NicRules, ParseErrorNamesTheFault) {
  const auto error = [](const std::string& text) {
    const Result<NicRules> parsed = NicRules::parse(text);
    return parsed.ok() ? "none" : std::string(parsed.status().text());
  };
  EXPECT_THAT(error(","), HasSubstr("names no NIC"));
  EXPECT_THAT(error("^"), HasSubstr("names no NIC"));
  EXPECT_THAT(error("acc0=eth0|acc00=eth1"), HasSubstr("two lists for acc0"));
  EXPECT_THAT(error("acc0="), HasSubstr("acc0 names no NIC"));
  EXPECT_THAT(error("gpu0=eth0"), HasSubstr("'gpu0' is no accelerator"));
  EXPECT_THAT(error("eth0|eth1"), HasSubstr("two lists for everybody"));
  EXPECT_THAT(error("acc0=eth0|acc0=eth1"), HasSubstr("two lists for acc0"));
  EXPECT_EQ(error(""), "none");
}

TEST(NicRules, CheckNamesWhatTheMachineLacks) {
  const Machine machine = read("nic_down");
  const auto error = [&](const std::string& text) {
    return std::string(rules(text).check(machine).text());
  };
  EXPECT_TRUE(rules("mlx5_0|acc1=mlx5_2|numa1=mlx5_3").check(machine).ok());
  EXPECT_THAT(error("mlx5_0,mlx5_9"),
              HasSubstr("no NIC is called 'mlx5_9'; this host has mlx5_0:1"));
  EXPECT_THAT(error("acc2=mlx5_0"), HasSubstr("no acc2"));
  EXPECT_THAT(error("numa2=mlx5_0"), HasSubstr("no numa2"));
  EXPECT_THAT(error("0000:99:00.0=mlx5_0"), HasSubstr("no 0000:99:00.0"));
  EXPECT_THAT(error("mlx5_1"), HasSubstr("no NIC is left that is up"));
  EXPECT_THAT(error("^mlx5_*"), HasSubstr("no NIC is left that is up"));
}

TEST(NicRules, BridgesAreUsedOnlyIfNamedAndVirtualNicsOnlyAsALastResort) {
  Machine machine;
  for (const auto& [name, kind] :
       {std::pair("eth0", NicKind::kVirtual), {"docker0", NicKind::kBridge}}) {
    machine.nics.push_back({});
    machine.nics.back().interface = name;
    machine.nics.back().kind = kind;
    machine.nics.back().state = NicState::kUp;
  }
  const auto of_host = [&](const std::string& text) {
    return names(machine, assign_nics(machine, rules(text)).numa_nodes[0]);
  };
  EXPECT_THAT(of_host(""), ElementsAre("eth0"));
  EXPECT_THAT(of_host("docker*"), ElementsAre("docker0"));
  machine.nics[0].kind = NicKind::kPhysical;
  machine.nics[1].kind = NicKind::kVirtual;
  EXPECT_THAT(of_host(""), ElementsAre("eth0"));
  machine.nics[0].state = NicState::kDown;
  EXPECT_THAT(of_host(""), ElementsAre("docker0"));
}

std::vector<std::string> nics_of(const Machine& machine, const RankLocation& location,
                                 size_t most) {
  std::vector<std::string> result;
  for (const int nic : nics_of_rank(machine, assign_nics(machine, {}), location, most).used) {
    result.push_back(machine.nics[static_cast<size_t>(nic)].name());
  }
  return result;
}

TEST(RankNics, RankWithOneAcceleratorGetsItsPreferredNicsFirst) {
  const Machine machine = read("eight_nics");
  const Affinity affinity = assign_nics(machine, {});
  for (size_t i = 0; i < machine.accelerators.size(); ++i) {
    const RankLocation location{.accelerators = {static_cast<int>(i)}};
    for (const size_t most : {size_t{1}, size_t{4}}) {
      std::vector<std::string> expected = names(machine, affinity.accelerators[i]);
      expected.resize(most);
      std::vector<std::string> chosen = nics_of(machine, location, most);
      ASSERT_GE(chosen.size(), most);
      chosen.resize(most);
      EXPECT_EQ(chosen, expected);
    }
  }
}

TEST(RankNics, EveryAcceleratorGetsItsFirstNicBeforeAnySecond) {
  const Machine machine = read("eight_nics");
  const Affinity affinity = assign_nics(machine, {});
  const std::vector<std::string> chosen = nics_of(machine, {.accelerators = {0, 5}}, 2);
  ASSERT_GE(chosen.size(), 3u);
  EXPECT_EQ(chosen[0], names(machine, affinity.accelerators[0]).front());
  EXPECT_EQ(chosen[1], names(machine, affinity.accelerators[5]).front());
}

TEST(RankNics, RankWithoutAcceleratorUsesTheNicsOfItsNode) {
  const Machine machine = read("four_nodes");
  const Affinity affinity = assign_nics(machine, {});
  for (size_t node = 0; node < machine.numa_nodes.size(); ++node) {
    const std::vector<std::string> chosen =
        nics_of(machine, {.numa_nodes = {static_cast<int>(node)}}, 1);
    EXPECT_EQ(chosen.front(), names(machine, affinity.numa_nodes[node]).front());
  }
  EXPECT_FALSE(nics_of(machine, {}, 1).empty()) << "a rank that does not know where it runs";
}

// Ranks on different hosts may have chosen different NICs, and still share a subnet.
TEST(RankNics, EverySubnetGetsANic) {
  Machine machine;
  for (const char* subnet : {"a", "a", "b", "c"}) {
    Nic& nic = machine.nics.emplace_back();
    nic.interface = "eth" + std::to_string(machine.nics.size());
    nic.state = NicState::kUp;
    nic.mbit_per_s = 100'000;
    nic.subnets = {subnet};
  }
  EXPECT_THAT(nics_of(machine, {}, 1), UnorderedElementsAre("eth1", "eth3", "eth4"));
  EXPECT_EQ(nics_of(machine, {}, 4).size(), 4u);
}

TEST(RankNics, EveryFabricGetsANic) {
  Machine machine;
  for (const char* fabric : {"a", "a", "b", ""}) {
    Nic& nic = machine.nics.emplace_back();
    nic.rdma_device = "mlx5_" + std::to_string(machine.nics.size());
    nic.rdma_port = 1;
    nic.state = NicState::kUp;
    nic.mbit_per_s = 100'000;
    nic.fabric = fabric;
  }
  EXPECT_THAT(nics_of(machine, {}, 1), UnorderedElementsAre("mlx5_1:1", "mlx5_3:1"));
}

Machine with_nics(const std::vector<std::string>& names) {
  Machine machine;
  for (const std::string& name : names) machine.nics.emplace_back().interface = name;
  return machine;
}

std::vector<std::string> fabrics_of(const Machine& machine) {
  std::vector<std::string> result;
  for (const Nic& nic : machine.nics) result.push_back(nic.fabric);
  return result;
}

TEST(Fabrics, NicsJoinTheFabricsThatTheListNames) {
  Machine machine = with_nics({"eth0", "eth1", "ib0"});
  machine.nics[2].fabric = "of the file";
  EXPECT_TRUE(declare_fabrics("", machine).ok());
  EXPECT_THAT(fabrics_of(machine), ElementsAre("", "", "of the file"));
  ASSERT_TRUE(declare_fabrics(" eth0 = red , eth1=blue", machine).ok());
  EXPECT_THAT(fabrics_of(machine), ElementsAre("red", "blue", "of the file"));
  ASSERT_TRUE(declare_fabrics("eth*=one,ib0=two", machine).ok());
  EXPECT_THAT(fabrics_of(machine), ElementsAre("one", "one", "two"));
}

TEST(Fabrics, InvalidListIsReportedAndChangesNothing) {
  struct Case {
    std::string text;
    Code code;
    std::string told;
  };
  const std::vector<Case> cases{
      {"eth0", Code::kInvalidArgument, "'eth0' is not of the form NIC=FABRIC"},
      {"eth0=", Code::kInvalidArgument, "'eth0=' is not of the form"},
      {"=red", Code::kInvalidArgument, "'=red' is not of the form"},
      {"eth0=red,eth*=blue", Code::kInvalidArgument, "eth0 is in two fabrics: 'red' and 'blue'"},
      {"eth0=" + std::string(64, 'x'), Code::kInvalidArgument, "64 characters"},
      {"eth0=red,eth7=red", Code::kNotFound, "no NIC is called 'eth7'; this host has eth0, eth1"},
  };
  for (const Case& each : cases) {
    Machine machine = with_nics({"eth0", "eth1"});
    const Status status = declare_fabrics(each.text, machine);
    EXPECT_EQ(status.code(), each.code) << each.text;
    EXPECT_THAT(std::string(status.text()), HasSubstr(each.told));
    EXPECT_THAT(std::string(status.text()), HasSubstr("HETCOMM_FABRIC"));
    EXPECT_THAT(fabrics_of(machine), ElementsAre("", "")) << each.text;
  }
}

TEST(RankNics, SlowNicsThatAddLittleAreOmitted) {
  const auto used = [](const std::vector<uint64_t>& rates) {
    Machine machine;
    for (const uint64_t rate : rates) {
      Nic& nic = machine.nics.emplace_back();
      nic.interface = "eth" + std::to_string(machine.nics.size());
      nic.state = NicState::kUp;
      nic.mbit_per_s = rate;
    }
    return nics_of(machine, {}, 64);
  };
  EXPECT_THAT(used({100'000, 25'000, 6'000}), ElementsAre("eth1", "eth2"));
  EXPECT_THAT(used({1'000, 100'000}), ElementsAre("eth2"));
  EXPECT_THAT(used({100'000, 10'000}), ElementsAre("eth1", "eth2")) << "a tenth is worth using";
  EXPECT_THAT(used({160'000, 10'000}), ElementsAre("eth1"));
  // Five NICs of 3 Gbit/s add 15 to 100, and two of them add 6. Equal NICs are treated alike.
  EXPECT_THAT(used({100'000, 3'000, 3'000}), ElementsAre("eth1"));
  EXPECT_EQ(used({100'000, 3'000, 3'000, 3'000, 3'000, 3'000}).size(), 6u);
  EXPECT_THAT(used({100'000, 3'000, 3'000, 3'000, 3'000, 3'000, 1'000}),
              UnorderedElementsAre("eth1", "eth2", "eth3", "eth4", "eth5", "eth6"));
}

TEST(RankNics, UserTakesTheFirstChosenNicsOfItsOrder) {
  const NicOrder order = {{.nic = 3}, {.nic = 0}, {.nic = 2}, {.nic = 1}};
  EXPECT_THAT(nics_of_user(order, {0, 1, 2}, 2), ElementsAre(0, 2)) << "places in what was chosen";
  EXPECT_THAT(nics_of_user(order, {2, 3}, 1), ElementsAre(1));
  EXPECT_THAT(nics_of_user(order, {2, 3}, 8), ElementsAre(1, 0));
  EXPECT_THAT(nics_of_user(order, {7}, 8), ElementsAre());
  EXPECT_THAT(nics_of_user({}, {1, 2}, 8), ElementsAre());
}

TEST(RankNics, ProcessorsBelongToTheNodesThatListThem) {
  Machine machine;
  for (const char* processors : {"0-3,8-11", "4-7,12,2000", "", "no list"}) {
    machine.numa_nodes.emplace_back().processors = processors;
  }
  const auto nodes = [&](const char* processors) {
    return numa_nodes_of_processors(machine, *ProcessorSet::parse(processors));
  };
  EXPECT_THAT(nodes("0"), ElementsAre(0));
  EXPECT_THAT(nodes("11"), ElementsAre(0));
  EXPECT_THAT(nodes("4"), ElementsAre(1));
  EXPECT_THAT(nodes("2000"), ElementsAre(1));
  EXPECT_THAT(nodes("3-4"), ElementsAre(0, 1));
  EXPECT_THAT(nodes("13"), ElementsAre());
  EXPECT_THAT(nodes(""), ElementsAre());
}

}  // namespace
}  // namespace hetcomm::topology
