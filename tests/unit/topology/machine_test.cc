// A Machine from a file:
//    - everything in hwloc's file and the accompanying one is read: nodes, tree, ports, rates,
//      bonds;
//    - written as JSON and read again it is the same, for any order in the file;
//    - every fault in a file is refused, with its place;
//    - every truncated file and every changed byte gives a Machine that passes check(), or an
//      error.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/machines.h"
#include "topology/machine/accelerator_class.h"
#include "topology/machine/machine_json.h"
#include "topology/read/hwloc_reader.h"
#include "topology/read/machine_file.h"

namespace hetcomm::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Machine read(const std::string& name) {
  Result<Machine> machine = read_machine_file(machine_path(name + ".xml"));
  EXPECT_TRUE(machine.ok()) << machine.status().text();
  return machine.ok() ? *machine : Machine();
}

const Nic& nic(const Machine& machine, const std::string& name) {
  const int index = machine.find_nic(name);
  EXPECT_NE(index, kNone) << name;
  static const Nic kNothing;
  return index == kNone ? kNothing : machine.nics[static_cast<size_t>(index)];
}

std::string error_of(const std::string& json) {
  const Result<Machine> machine = parse_machine(json);
  return machine.ok() ? "none" : std::string(machine.status().text());
}

// Returns a document with |members|.
std::string document(const std::string& members) {
  return R"({"format": "hetcomm topology", "version": 1, )" + members + "}";
}

TEST(PciAddress, OnlyWellFormedAddressesParse) {
  EXPECT_EQ(parse_pci_address("3B:00.1")->text(), "0000:3b:00.1");
  EXPECT_EQ(parse_pci_address("10000:e1:1f.7")->text(), "10000:e1:1f.7");
  for (const char* wrong :
       {"", ":", ".", "3b", "3b:00", "3b:20.0", "3b:00.8", "13b:00.0", "3b:00.0 ", "0000:3b:00.",
        ":3b:00.0", "0000::00.0", "-1:00.0", "x:3b:00.0"}) {
    EXPECT_FALSE(parse_pci_address(wrong)) << wrong;
  }
}

TEST(HwlocFile, ReadsHwlocAndTheAccompanyingFile) {
  const Machine machine = read("eight_nics");
  EXPECT_EQ(machine.numa_nodes.size(), 2u);
  EXPECT_EQ(machine.numa_nodes[1].number, 1u);
  EXPECT_EQ(machine.numa_nodes[1].package, 1);
  EXPECT_EQ(machine.numa_nodes[1].processors, "2-3");
  EXPECT_EQ(machine.numa_nodes[1].memory_bytes, uint64_t{64} << 30);
  EXPECT_THAT(machine.numa_nodes[1].distances, ElementsAre(21u, 10u));
  EXPECT_EQ(machine.accelerators.size(), 8u);
  EXPECT_EQ(machine.accelerators[0].name, "NVIDIA 10de:2330");
  EXPECT_EQ(machine.nics.size(), 8u);
  const Nic& third = nic(machine, "mlx5_2");
  EXPECT_EQ(third.interface, "ib2");
  EXPECT_EQ(third.rdma_port, 1u);
  EXPECT_EQ(third.state, NicState::kUp);
  EXPECT_EQ(third.mbit_per_s, 200'000u);
  EXPECT_THAT(third.subnets, ElementsAre("10.2.0.0/16"));
  ASSERT_EQ(third.functions.size(), 1u);
  const PciNode& function = machine.pci[static_cast<size_t>(third.functions[0])];
  EXPECT_EQ(function.address.text(), "0000:45:00.0");
  EXPECT_EQ(function.mbyte_per_s, 31'508u);
  EXPECT_THAT(numa_nodes_of(machine, third.functions[0]), ElementsAre(0));
}

TEST(HwlocFile, PortIsFoundByEachOfItsNames) {
  const Machine machine = read("two_ports");
  const int second = machine.find_nic("mlx4_0:2");
  ASSERT_NE(second, kNone);
  EXPECT_EQ(machine.find_nic("eth1"), second);
  EXPECT_EQ(machine.nics[static_cast<size_t>(second)].mbit_per_s, 10'000u);
  EXPECT_EQ(machine.find_nic("mlx4_0"), machine.find_nic("eth0"));
  EXPECT_EQ(machine.find_nic("14:00.0"), machine.find_nic("eth0"));
  EXPECT_EQ(machine.find_nic(""), kNone);
  EXPECT_EQ(machine.find_nic("eth2"), kNone);
}

TEST(HwlocFile, BondBelongsToTheFunctionsOfItsMembers) {
  const Machine machine = read("two_ports");
  EXPECT_EQ(nic(machine, "bond0").functions, nic(machine, "eth0").functions);
}

TEST(HwlocFile, ConsoleIsNotAnAccelerator) {
  const Machine machine = read("two_ports");
  EXPECT_NE(machine.find_pci(*parse_pci_address("0000:01:00.0")), kNone);
  EXPECT_EQ(machine.find_accelerator(*parse_pci_address("0000:01:00.0")), kNone);
  EXPECT_EQ(machine.accelerators.size(), 2u);
}

// ES1000 and Rage XL are cards of AMD behind a bridge, and show the console of a server.
TEST(Accelerators, ServerConsoleCardsAreNotAccelerators) {
  const auto is_one = [](uint16_t vendor, uint16_t device, uint16_t device_class) {
    PciNode node;
    node.kind = PciKind::kFunction;
    node.vendor = vendor;
    node.device = device;
    node.device_class = device_class;
    return is_accelerator(node, /*on_root_bus=*/false);
  };
  EXPECT_FALSE(is_one(0x1002, 0x515e, 0x0300));
  EXPECT_FALSE(is_one(0x1002, 0x5969, 0x0300));
  EXPECT_FALSE(is_one(0x1002, 0x4752, 0x0300));
  EXPECT_FALSE(is_one(0x1a03, 0x2000, 0x0300));
  EXPECT_FALSE(is_one(0x102b, 0x0536, 0x0300));
  EXPECT_FALSE(is_one(0x19e5, 0x1711, 0x0300));
  EXPECT_TRUE(is_one(0x1002, 0x740f, 0x0380));
  EXPECT_TRUE(is_one(0x1002, 0x74a1, 0x1200));
  EXPECT_TRUE(is_one(0x10de, 0x2330, 0x0302));
}

TEST(HwlocFile, ErrorNamesAnUnsupportedHwlocVersion) {
  const std::string text(
      parse_hwloc_xml("<?xml version=\"1.0\"?>\n<topology version=\"9.1\">\n</topology>\n")
          .status()
          .text());
  EXPECT_THAT(text, HasSubstr("hwloc 9.1"));
  EXPECT_THAT(text, HasSubstr("installed hwloc 2."));
}

TEST(HwlocFile, NicNearAWholeSocketIsNearAllItsNodes) {
  const Machine machine = read("four_nodes");
  EXPECT_THAT(numa_nodes_of(machine, nic(machine, "mlx5_3").functions.at(0)),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numa_nodes_of(machine, nic(machine, "mlx5_2").functions.at(0)), ElementsAre(6));
}

TEST(HwlocFile, FileThatHwlocCannotReadIsRefused) {
  for (const char* wrong : {"", "nothing", "<topology/>", "<?xml version=\"1.0\"?><a><b></a>"}) {
    const Result<Machine> machine = parse_hwloc_xml(wrong);
    EXPECT_EQ(machine.status().code(), Code::kInvalidArgument) << wrong;
  }
}

TEST(MachineFile, ErrorNamesAMissingFile) {
  const Result<Machine> machine = read_machine_file("/nowhere/machine.json");
  ASSERT_FALSE(machine.ok());
  EXPECT_THAT(std::string(machine.status().text()), HasSubstr("/nowhere/machine.json"));
}

TEST(MachineFile, SyntaxErrorIsReportedWithFileAndLine) {
  const std::string path = testing::TempDir() + "/machine.json";
  std::ofstream(path) << "{\n \"format\": oops\n}";
  const Result<Machine> machine = read_machine_file(path);
  ASSERT_FALSE(machine.ok());
  EXPECT_THAT(std::string(machine.status().text()), HasSubstr(path));
  EXPECT_THAT(std::string(machine.status().text()), HasSubstr("line 2"));
  std::filesystem::remove(path);
}

TEST(MachineJson, MachineReadsBackAsWritten) {
  for (const char* name : kMachines) {
    const Machine machine = read(name);
    const std::string json = to_json(machine);
    Result<Machine> again = parse_machine(json);
    ASSERT_TRUE(again.ok()) << name << ": " << again.status().text();
    EXPECT_EQ(to_json(*again), json) << name;
    EXPECT_EQ(again->nics, machine.nics) << name;
    EXPECT_EQ(again->pci, machine.pci) << name;
    EXPECT_EQ(again->numa_nodes, machine.numa_nodes) << name;
    EXPECT_EQ(again->accelerators, machine.accelerators) << name;
  }
}

TEST(MachineJson, ExampleInTheReadmeParses) {
  std::ifstream file(machine_path("../../topology/README.md"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = text.find("```json\n") + 8;
  Result<Machine> machine = parse_machine(text.substr(begin, text.find("```", begin) - begin));
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  EXPECT_EQ(machine->links.size(), 1u);
  EXPECT_EQ(machine->nics.at(0).functions.size(), 1u);
  EXPECT_EQ(machine->nics.at(0).fabric, "rail0");
  Result<Machine> again = parse_machine(to_json(*machine));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(again->nics, machine->nics);
}

TEST(MachineJson, AcceleratorLinksReadBackAsWritten) {
  Machine machine = read("one_nic");
  machine.links.push_back({0, 3, "xGMI", 50'000});
  machine.links.push_back({1, 2, "xGMI", 0});
  Result<Machine> again = parse_machine(to_json(machine));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(again->links, machine.links);
}

// Shuffles everything whose order is not significant.
Machine shuffled(const Machine& machine, std::mt19937& random) {
  Machine result = machine;
  std::shuffle(result.nics.begin(), result.nics.end(), random);
  std::shuffle(result.accelerators.begin(), result.accelerators.end(), random);
  // Children of one parent change places, in a list where every parent still precedes them.
  std::vector<int> order;
  std::vector<int> ready;
  for (size_t i = 0; i < machine.pci.size(); ++i) {
    if (machine.pci[i].parent == kNone) ready.push_back(static_cast<int>(i));
  }
  while (!ready.empty()) {
    std::shuffle(ready.begin(), ready.end(), random);
    const int next = ready.back();
    ready.pop_back();
    order.push_back(next);
    for (size_t i = 0; i < machine.pci.size(); ++i) {
      if (machine.pci[i].parent == next) ready.push_back(static_cast<int>(i));
    }
  }
  std::vector<int> place(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    place[static_cast<size_t>(order[i])] = static_cast<int>(i);
  const auto moved = [&](int index) {
    return index == kNone ? kNone : place[static_cast<size_t>(index)];
  };
  for (size_t i = 0; i < order.size(); ++i) {
    result.pci[i] = machine.pci[static_cast<size_t>(order[i])];
    result.pci[i].parent = moved(result.pci[i].parent);
  }
  for (Nic& each : result.nics) {
    for (int& function : each.functions) function = moved(function);
  }
  for (Accelerator& each : result.accelerators) each.function = moved(each.function);
  return result;
}

TEST(Machine, NormalizedMachineDoesNotDependOnTheReadingOrder) {
  std::mt19937 random(7);
  for (const char* name : kMachines) {
    const Machine machine = read(name);
    for (int i = 0; i < 20; ++i) {
      Machine other = shuffled(machine, random);
      ASSERT_TRUE(check(other).ok()) << name << ": " << check(other).text();
      normalize(other);
      ASSERT_EQ(to_json(other), to_json(machine)) << name;
    }
  }
}

TEST(MachineJson, ErrorNamesTheFaultWithItsPath) {
  EXPECT_THAT(error_of("[]"), HasSubstr("is no object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("format is not 'hetcomm topology'"));
  EXPECT_THAT(error_of(R"({"format": "hetcomm topology", "version": 2})"),
              HasSubstr("version is 2"));
  EXPECT_THAT(error_of(document(R"("nics": {})")), HasSubstr("nics is no list"));
  EXPECT_THAT(error_of(document(R"("nics": [{"interface": "a"}, {"state": "up"}])")),
              HasSubstr("a NIC has no name"));
  EXPECT_THAT(
      error_of(document(R"("nics": [{"interface": "a"}, {"interface": "b", "state": "on"}])")),
      HasSubstr("nics[1].state is 'on' and none of: up, down, unknown"));
  EXPECT_THAT(error_of(document(R"("nics": [{"interface": "a", "speed": 1}])")),
              HasSubstr("nics[0].speed is no field"));
  EXPECT_THAT(error_of(document(R"("nics": [{"interface": "a", "fabric": ")" +
                                std::string(64, 'x') + R"("}])")),
              HasSubstr("nics[0].fabric has more than 63 characters"));
  EXPECT_THAT(error_of(document(R"("nics": [{"interface": "a", "mbit_per_s": -1}])")),
              HasSubstr("nics[0].mbit_per_s is no whole number"));
  EXPECT_THAT(error_of(document(R"("nics": [{"interface": "a", "functions": ["0000:01:00.0"]}])")),
              HasSubstr("which is no function of 'pci'"));
  EXPECT_THAT(error_of(document(R"("nics": [{"interface": "a", "numa_nodes": [3]}])")),
              HasSubstr("nics[0].numa_nodes[0] is no NUMA node"));
  EXPECT_THAT(error_of(document(R"("numa_nodes": [{"number": 0}, {"number": 0}])")),
              HasSubstr("NUMA node 0 is there twice"));
  EXPECT_THAT(error_of(document(R"("pci": [{"kind": "function", "address": "0000:01:00.0"}])")),
              HasSubstr("PCI function 0000:01:00.0 lacks a parent"));
  EXPECT_THAT(error_of(document(R"("pci": [{"kind": "root complex", "address": "here"}])")),
              HasSubstr("pci[0].address is no PCI address"));
  EXPECT_THAT(error_of(document(R"("accelerators": [{"name": "x"}])")),
              HasSubstr("accelerators[0].address is missing"));
  EXPECT_THAT(error_of(document(R"("accelerator_links": [{"between": ["0000:01:00.0"]}])")),
              HasSubstr("accelerator_links[0].between does not name two accelerators"));
  EXPECT_THAT(error_of(std::string(200, '[')), HasSubstr("nested more deeply"));
}

TEST(MachineJson, AnotherVersionIsUnsupported) {
  EXPECT_EQ(parse_machine(R"({"format": "hetcomm topology", "version": 2})").status().code(),
            Code::kUnsupported);
}

TEST(MachineJson, OverlyDeepTreeIsRefused) {
  std::string tree = R"({"kind": "bridge", "address": "0001:00:00.0"})";
  for (int i = 0; i < 66; ++i) {
    const PciAddress address{0, static_cast<uint8_t>(i), 0, 0};
    tree =
        R"({"kind": "bridge", "address": ")" + address.text() + R"(", "children": [)" + tree + "]}";
  }
  tree = R"({"kind": "root complex", "address": "0000:00:00.0", "children": [)" + tree + "]}";
  EXPECT_THAT(error_of(document(R"("pci": [)" + tree + "]")), HasSubstr("bridges"));
}

TEST(MachineJson, AddedNicsUpdateExistingOnes) {
  Machine machine = read("nic_down");
  ASSERT_TRUE(
      add_nics(document(R"("nics": [{"rdma_device": "mlx5_1", "state": "up"}])"), machine).ok());
  EXPECT_EQ(nic(machine, "mlx5_1").state, NicState::kUp);
  EXPECT_EQ(nic(machine, "mlx5_1").mbit_per_s, 200'000u);
  const Machine before = machine;
  const Status status = add_nics(document(R"("nics": [{"rdma_device": "mlx5_0", "state": "down"},
                                    {"interface": "vlan7", "over": ["eth9"]}])"),
                                 machine);
  EXPECT_THAT(std::string(status.text()), HasSubstr("over names no NIC"));
  EXPECT_EQ(to_json(machine), to_json(before));
}

TEST(MachineJson, NicStackedOnItselfIsRefused) {
  const std::string tree =
      R"("pci": [{"kind": "root complex", "address": "0000:00:00.0", "children": [
           {"kind": "function", "address": "0000:01:00.0"},
           {"kind": "function", "address": "0000:01:00.1"}]}], )";
  EXPECT_THAT(error_of(document(tree + R"("nics": [{"interface": "a", "over": ["a"],
                                     "functions": ["0000:01:00.0", "0000:01:00.1"]}])")),
              HasSubstr("nics[0].over names no NIC before this one"));
}

TEST(HwlocFile, OverlyDeepXmlIsRefused) {
  std::string xml = "<?xml version=\"1.0\"?><topology version=\"2.0\">";
  for (int i = 0; i < 100'000; ++i) xml += "<object type=\"Bridge\">";
  EXPECT_THAT(std::string(parse_hwloc_xml(xml).status().text()), HasSubstr("too deeply"));
}

TEST(MachineJson, DamagedFileIsRefusedOrGivesAValidMachine) {
  const std::string good = to_json(read("two_ports"));
  std::mt19937 random(11);
  // Without its last line feed it would still be whole.
  for (size_t length = 0; length <= good.rfind('}'); length += 7) {
    const Result<Machine> machine = parse_machine(std::string_view(good).substr(0, length));
    ASSERT_FALSE(machine.ok());
    ASSERT_NE(machine.status().text(), "");
  }
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int changes = 1 + i % 3; changes > 0; --changes) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    Result<Machine> machine = parse_machine(bad);
    if (!machine.ok()) continue;
    ASSERT_TRUE(check(*machine).ok());
    (void)to_json(*machine);
  }
}

TEST(MachineFile, DisagreementWithTheHostNamesWhatIsMissing) {
  const Machine file = read("eight_nics");
  EXPECT_EQ(disagreement(file, file), "");
  Machine live = file;
  live.nics.erase(live.nics.begin() + 3);
  EXPECT_THAT(disagreement(file, live), HasSubstr("NIC mlx5_3:1, which this host lacks"));
  EXPECT_THAT(disagreement(live, file), HasSubstr("lacks NIC mlx5_3:1"));
  live = file;
  live.accelerators.pop_back();
  EXPECT_THAT(disagreement(file, live), HasSubstr("accelerator at 0000:c4:00.0"));
  EXPECT_THAT(disagreement(live, file), HasSubstr("accelerator at 0000:c4:00.0"));
  live = file;
  live.nics.push_back({});
  live.nics.back().interface = "docker0";
  live.nics.back().kind = NicKind::kBridge;
  EXPECT_EQ(disagreement(file, live), "");
}

}  // namespace
}  // namespace hetcomm::topology
