// The files below /sys, in a folder that each test makes:
//    - bonds, VLANs, virtual functions, virtio and Soft-RoCE are found at the function that carries
//      them;
//    - an RDMA port and its interface are one NIC; ports, rates and states are read;
//    - bridges and tunnels are distinguished from physical interfaces; files of another namespace
//      are ignored;
//    - hosts without PCI, without NUMA nodes and without network are valid;
//    - the tree of this host is the one that hwloc sees.
#include "topology/read/sysfs.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/machine/machine_json.h"
#include "topology/read/hwloc_reader.h"
#include "topology/read/live.h"

namespace hetcomm::topology {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

std::string carriers(const Machine& machine, const std::string& nic) {
  const int index = machine.find_nic(nic);
  if (index == kNone) return "no such NIC";
  std::string text;
  for (const int function : machine.nics[static_cast<size_t>(index)].functions) {
    text += machine.pci[static_cast<size_t>(function)].address.text() + " ";
  }
  return text;
}

class Sysfs : public testing::Test {
 protected:
  Sysfs() : sys_(fs::path(testing::TempDir()) / ("sys." + std::to_string(getpid()))) {
    fs::remove_all(sys_);
    fs::create_directories(sys_);
  }
  ~Sysfs() override {
    std::error_code error;
    fs::remove_all(sys_, error);
  }

  void write(const fs::path& path, const std::string& text) {
    fs::create_directories((sys_ / path).parent_path());
    std::ofstream(sys_ / path) << text << "\n";
  }
  void link(const fs::path& path, const fs::path& target) {
    fs::create_directories((sys_ / path).parent_path());
    fs::create_symlink(fs::relative(sys_ / target, (sys_ / path).parent_path()), sys_ / path);
  }

  // Adds a PCI function at |way| below devices/, with the data that lspci would print.
  fs::path add_pci(const std::string& way, const std::string& device_class, int numa_node = -1,
                   const std::string& vendor = "0x15b3") {
    const fs::path folder = fs::path("devices") / way;
    write(folder / "class", device_class);
    write(folder / "vendor", vendor);
    write(folder / "device", "0x1021");
    write(folder / "numa_node", std::to_string(numa_node));
    write(folder / "current_link_speed", "16.0 GT/s PCIe");
    write(folder / "current_link_width", "16");
    link(fs::path("bus/pci/devices") / folder.filename(), folder);
    return folder;
  }
  // Adds an interface. |device| is its location, or empty if it has none.
  void add_interface(const std::string& name, const fs::path& device,
                     const std::string& speed = "") {
    const fs::path folder = fs::path("class/net") / name;
    write(folder / "type", "1");
    write(folder / "ifindex", std::to_string(++last_index_));
    if (!speed.empty()) write(folder / "speed", speed);
    if (!device.empty()) link(folder / "device", device);
    interfaces_.push_back({name, last_index_, true, {}});
  }
  void add_node(int number, const std::string& processors, const std::string& distances) {
    const fs::path folder = fs::path("devices/system/node") / ("node" + std::to_string(number));
    write(folder / "cpulist", processors);
    write(folder / "distance", distances);
  }
  void add_rdma(const std::string& name, const fs::path& device, int ports) {
    const fs::path folder = fs::path("class/infiniband") / name;
    for (int port = 1; port <= ports; ++port) {
      write(folder / "ports" / std::to_string(port) / "state", port == 1 ? "4: ACTIVE" : "1: DOWN");
      write(folder / "ports" / std::to_string(port) / "rate", "100 Gb/sec (4X EDR)");
    }
    if (!device.empty()) link(folder / "device", device);
  }

  Machine read() {
    Machine machine = read_pci_tree(sys_.string());
    read_nics(sys_.string(), interfaces_, machine);
    EXPECT_TRUE(check(machine).ok()) << check(machine).text();
    normalize(machine);
    return machine;
  }
  static const Nic& nic(const Machine& machine, const std::string& name) {
    const int index = machine.find_nic(name);
    EXPECT_NE(index, kNone) << name;
    static const Nic kNothing;
    return index == kNone ? kNothing : machine.nics[static_cast<size_t>(index)];
  }

  const fs::path sys_;
  std::vector<Interface> interfaces_;
  uint32_t last_index_ = 1;
};

TEST_F(Sysfs, PciTreeAboveACardIsRead) {
  add_node(0, "0-3", "10 21");
  add_node(1, "4-7", "21 10");
  add_interface("eth0", add_pci("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0x020000", 1), "100000");
  add_pci("pci0000:3a/0000:3a:02.0/0000:3c:00.0", "0x030200", 1, "0x10de");
  add_pci("pci0000:3a/0000:3a:03.0/0000:3d:00.0", "0x010802", 1);  // a disk
  const Machine machine = read();
  EXPECT_EQ(machine.pci.size(), 5u);
  EXPECT_EQ(machine.pci[0].kind, PciKind::kRootComplex);
  EXPECT_EQ(machine.pci[0].address.text(), "0000:3a:00.0");
  EXPECT_EQ(carriers(machine, "eth0"), "0000:3b:00.0 ");
  EXPECT_EQ(nic(machine, "eth0").kind, NicKind::kPhysical);
  EXPECT_EQ(nic(machine, "eth0").mbit_per_s, 100'000u);
  const int function = nic(machine, "eth0").functions.at(0);
  EXPECT_THAT(numa_nodes_of(machine, function), ElementsAre(1));
  EXPECT_EQ(machine.pci[static_cast<size_t>(function)].mbyte_per_s, 31'507u);
  ASSERT_EQ(machine.accelerators.size(), 1u);
  EXPECT_EQ(machine.accelerators[0].address.text(), "0000:3c:00.0");
  EXPECT_THAT(machine.numa_nodes[1].distances, ElementsAre(21u, 10u));
}

TEST_F(Sysfs, BondAndVlanBelongToTheirCards) {
  add_interface("eth0", add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x020000"));
  add_interface("eth1", add_pci("pci0000:00/0000:00:01.0/0000:01:00.1", "0x020000"));
  add_interface("bond0", {}, "20000");
  write("class/net/bond0/bonding/mode", "802.3ad 4");
  for (const char* member : {"eth0", "eth1"}) {
    link(fs::path("class/net/bond0") / ("lower_" + std::string(member)),
         fs::path("class/net") / member);
    link(fs::path("class/net") / member / "master", "class/net/bond0");
  }
  add_interface("bond0.7", {});
  link("class/net/bond0.7/lower_bond0", "class/net/bond0");
  const Machine machine = read();
  EXPECT_EQ(carriers(machine, "bond0"), "0000:01:00.0 0000:01:00.1 ");
  EXPECT_EQ(carriers(machine, "bond0.7"), "0000:01:00.0 0000:01:00.1 ");
  EXPECT_EQ(nic(machine, "bond0.7").kind, NicKind::kPhysical);
  EXPECT_EQ(machine.find_nic("eth0"), kNone) << "it is reached by its bond only";
  EXPECT_EQ(machine.nics.size(), 2u);
}

TEST_F(Sysfs, VirtualFunctionBelongsToThePhysicalOne) {
  const fs::path physical = add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x020000");
  const fs::path virtual_one = add_pci("pci0000:00/0000:00:01.0/0000:01:00.2", "0x020000");
  link(virtual_one / "physfn", physical);
  add_interface("eth2", virtual_one);
  EXPECT_EQ(carriers(read(), "eth2"), "0000:01:00.0 ");
}

TEST_F(Sysfs, VirtioInterfaceBelongsToItsPciFunction) {
  const fs::path function = add_pci("pci0000:00/0000:00:03.0", "0x020000", 0, "0x1af4");
  fs::create_directories(sys_ / function / "virtio1");
  add_interface("eth0", function / "virtio1", "-1");
  const Machine machine = read();
  EXPECT_EQ(carriers(machine, "eth0"), "0000:00:03.0 ");
  EXPECT_EQ(nic(machine, "eth0").mbit_per_s, 0u);
}

TEST_F(Sysfs, SoftRoceBelongsToItsInterface) {
  add_interface("eth0", add_pci("pci0000:00/0000:00:03.0", "0x020000"));
  add_rdma("rxe0", {}, 1);
  write("class/infiniband/rxe0/parent", "eth0");
  const Machine machine = read();
  ASSERT_EQ(machine.nics.size(), 1u);
  EXPECT_EQ(carriers(machine, "rxe0"), "0000:00:03.0 ");
  EXPECT_EQ(nic(machine, "rxe0").interface, "eth0");
  EXPECT_EQ(nic(machine, "rxe0").mbit_per_s, 0u) << "Soft-RoCE makes its rate up";
}

TEST_F(Sysfs, PortsOfAnRdmaDeviceAreSeparateNics) {
  const fs::path card = add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x020700");
  add_interface("ib1", card, "");  // InfiniBand: the port names no interface
  write("class/net/ib1/dev_port", "1");
  add_interface("ib0", card, "");
  write("class/net/ib0/dev_port", "0");
  add_rdma("mlx5_0", card, 2);
  const Machine machine = read();
  ASSERT_EQ(machine.nics.size(), 2u);
  EXPECT_EQ(nic(machine, "mlx5_0:1").interface, "ib0");
  EXPECT_EQ(nic(machine, "mlx5_0:1").state, NicState::kUp);
  EXPECT_EQ(nic(machine, "mlx5_0:1").mbit_per_s, 100'000u);
  EXPECT_EQ(nic(machine, "mlx5_0:2").interface, "ib1");
  EXPECT_EQ(nic(machine, "mlx5_0:2").state, NicState::kDown);
  EXPECT_EQ(carriers(machine, "mlx5_0:2"), "0000:01:00.0 ");
}

TEST_F(Sysfs, RocePortAndItsInterfaceAreOneNic) {
  const fs::path card = add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x020000");
  add_interface("eth1", card, "25000");
  add_rdma("mlx5_0", card, 1);
  write("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth1");
  EXPECT_EQ(nic(read(), "mlx5_0").interface, "eth1");
  // A container has an interface with the same name, which is not the card's.
  fs::remove(sys_ / "class/net/eth1/device");
  const Machine machine = read();
  ASSERT_EQ(machine.nics.size(), 2u);
  EXPECT_EQ(nic(machine, "mlx5_0").interface, "");
  EXPECT_EQ(nic(machine, "mlx5_0").kind, NicKind::kPhysical);
  EXPECT_EQ(nic(machine, "eth1").kind, NicKind::kVirtual);
}

TEST_F(Sysfs, BondKeepsItsRateDespiteTheRateOfOneRdmaPort) {
  const fs::path first = add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x020000");
  const fs::path second = add_pci("pci0000:00/0000:00:01.0/0000:01:00.1", "0x020000");
  add_interface("eth0", first);
  add_interface("eth1", second);
  add_interface("bond0", {}, "200000");
  write("class/net/bond0/bonding/mode", "802.3ad 4");
  for (const char* member : {"eth0", "eth1"}) {
    link(fs::path("class/net/bond0") / ("lower_" + std::string(member)),
         fs::path("class/net") / member);
    link(fs::path("class/net") / member / "master", "class/net/bond0");
  }
  add_rdma("mlx5_bond_0", first, 1);
  write("class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0");
  const Machine machine = read();
  ASSERT_EQ(machine.nics.size(), 1u);
  EXPECT_EQ(nic(machine, "bond0").rdma_device, "mlx5_bond_0");
  EXPECT_EQ(nic(machine, "bond0").mbit_per_s, 200'000u);
}

TEST_F(Sysfs, MemberOfAVrfStaysUsable) {
  add_interface("eth0", add_pci("pci0000:00/0000:00:03.0", "0x020000"));
  add_interface("mgmt", {});
  link("class/net/eth0/master", "class/net/mgmt");
  EXPECT_EQ(nic(read(), "eth0").kind, NicKind::kPhysical);
}

TEST_F(Sysfs, OverlaysAndRepresentorsAreNotUplinks) {
  const fs::path card = add_pci("pci0000:00/0000:00:03.0", "0x020000");
  add_interface("eth0", card);
  add_interface("flannel.1", {});
  link("class/net/flannel.1/lower_eth0", "class/net/eth0");
  write("class/net/flannel.1/uevent", "DEVTYPE=vxlan\nINTERFACE=flannel.1");
  add_interface("eth0npf0vf3", card);
  write("class/net/eth0npf0vf3/phys_port_name", "pf0vf3");
  const Machine machine = read();
  EXPECT_EQ(nic(machine, "flannel.1").kind, NicKind::kBridge);
  EXPECT_EQ(nic(machine, "eth0npf0vf3").kind, NicKind::kVirtual);
}

TEST_F(Sysfs, SoftRoceOverLoopbackIsNotAnUplink) {
  add_interface("veth0", {});
  add_rdma("rxe0", {}, 1);
  write("class/infiniband/rxe0/parent", "lo");
  EXPECT_EQ(nic(read(), "rxe0").kind, NicKind::kVirtual);
}

TEST_F(Sysfs, VirtualFunctionsAreNotAccelerators) {
  const fs::path physical =
      add_pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x030200", 0, "0x10de");
  const fs::path virtual_one =
      add_pci("pci0000:00/0000:00:01.0/0000:01:00.4", "0x030200", 0, "0x10de");
  link(virtual_one / "physfn", physical);
  const Machine machine = read();
  ASSERT_EQ(machine.accelerators.size(), 1u);
  EXPECT_EQ(machine.accelerators[0].address.text(), "0000:01:00.0");
}

TEST_F(Sysfs, BridgesAndTunnelsAreNotPhysical) {
  add_interface("docker0", {});
  write("class/net/docker0/bridge/bridge_id", "8000");
  add_interface("tun0", {});
  write("class/net/tun0/type", "65534");
  add_interface("veth1", {}, "10000");
  add_interface("br0", {});
  write("class/net/br0/bridge/bridge_id", "8000");
  add_interface("eth0", add_pci("pci0000:00/0000:00:03.0", "0x020000"));
  link("class/net/br0/lower_eth0", "class/net/eth0");
  const Machine machine = read();
  EXPECT_EQ(nic(machine, "docker0").kind, NicKind::kBridge);
  EXPECT_EQ(nic(machine, "tun0").kind, NicKind::kBridge);
  EXPECT_EQ(nic(machine, "veth1").kind, NicKind::kVirtual);
  EXPECT_EQ(nic(machine, "br0").kind, NicKind::kPhysical) << "it leads out by eth0";
}

TEST_F(Sysfs, FilesOfAnotherNamespaceAreIgnored) {
  add_interface("eth0", add_pci("pci0000:00/0000:00:03.0", "0x020000"), "100000");
  ++interfaces_[0].index;
  const Machine machine = read();
  EXPECT_EQ(nic(machine, "eth0").kind, NicKind::kVirtual);
  EXPECT_EQ(carriers(machine, "eth0"), "");
  EXPECT_EQ(nic(machine, "eth0").mbit_per_s, 0u);
}

TEST_F(Sysfs, InterfaceCycleDoesNotHang) {
  add_interface("a", {});
  add_interface("b", {});
  link("class/net/a/lower_b", "class/net/b");
  link("class/net/b/lower_a", "class/net/a");
  EXPECT_EQ(nic(read(), "a").kind, NicKind::kVirtual);
}

TEST_F(Sysfs, EmptyHostGivesAnEmptyMachine) {
  const Machine machine = read();
  EXPECT_TRUE(machine.pci.empty());
  EXPECT_TRUE(machine.numa_nodes.empty());
  EXPECT_TRUE(machine.nics.empty());
  interfaces_.push_back({"eth0", 0, true, {"192.0.2.0/24"}});
  EXPECT_THAT(nic(read(), "eth0").subnets, ElementsAre("192.0.2.0/24"));
}

// A rank without accelerators decides as in the whole machine.
TEST_F(Sysfs, SingleNicMatchesTheWholeMachine) {
  add_node(0, "0-7", "10");
  write("devices/system/node/online", "0");
  add_pci("pci0000:00/0000:00:02.0", "0x060400");
  const fs::path card = add_pci("pci0000:00/0000:00:02.0/0000:02:00.0", "0x020000");
  add_pci("pci0000:00/0000:00:03.0", "0x030200");
  add_interface("eth0", card, "100000");
  interfaces_[0].subnets = {"10.0.0.0/24"};
  add_interface("ifb0", {});
  interfaces_[1].is_running = false;
  const Machine whole = read();
  std::optional<Machine> only = read_only_nic(sys_.string(), interfaces_);
  ASSERT_TRUE(only);
  ASSERT_TRUE(check(*only).ok()) << check(*only).text();
  normalize(*only);
  ASSERT_EQ(only->nics.size(), 1u);
  EXPECT_EQ(carriers(*only, "eth0"), carriers(whole, "eth0"));
  EXPECT_EQ(nic(*only, "eth0").mbit_per_s, 100000u);
  EXPECT_EQ(nic(*only, "eth0").kind, NicKind::kPhysical);
  EXPECT_EQ(nic(*only, "eth0").subnets, nic(whole, "eth0").subnets);
  EXPECT_EQ(only->pci[static_cast<size_t>(only->find_pci(*parse_pci_address("02:00.0")))].parent,
            only->find_pci(*parse_pci_address("00:02.0"), PciKind::kBridge));
}

TEST_F(Sysfs, SingleNicOfAVirtualFunctionBelongsToThePhysicalOne) {
  const fs::path physical = add_pci("pci0000:00/0000:02:00.0", "0x020000");
  const fs::path function = add_pci("pci0000:00/0000:02:00.4", "0x020000");
  link(function / "physfn", physical);
  add_interface("eth0", function, "25000");
  const Machine whole = read();
  const std::optional<Machine> only = read_only_nic(sys_.string(), interfaces_);
  ASSERT_TRUE(only);
  EXPECT_EQ(carriers(*only, "eth0"), "0000:02:00.0 ");
  EXPECT_EQ(carriers(whole, "eth0"), "0000:02:00.0 ");
}

TEST_F(Sysfs, WholeMachineIsReadIfThereIsAChoiceOfNics) {
  const auto has_choice = [this] { return !read_only_nic(sys_.string(), interfaces_); };
  EXPECT_FALSE(has_choice());
  add_interface("eth0", add_pci("pci0000:00/0000:00:02.0", "0x020000"));
  EXPECT_FALSE(has_choice());
  add_interface("eth1", add_pci("pci0000:00/0000:00:03.0", "0x020000"));
  EXPECT_TRUE(has_choice());
  interfaces_.back().is_running = false;
  EXPECT_TRUE(has_choice()) << "a NIC that is down is reported";
  interfaces_.pop_back();
  EXPECT_FALSE(has_choice());
  add_interface("veth0", {});
  interfaces_.back().is_running = false;
  EXPECT_FALSE(has_choice());
  interfaces_.back().subnets = {"10.0.0.0/24"};
  EXPECT_TRUE(has_choice()) << "so is an interface with addresses that is down";
  interfaces_.pop_back();
  add_interface("docker0", {});
  write("class/net/docker0/bridge/bridge_id", "8000");
  interfaces_.back().is_running = false;
  interfaces_.back().subnets = {"172.17.0.0/16"};
  EXPECT_FALSE(has_choice()) << "a bridge is no NIC";
  interfaces_.pop_back();
  write("devices/system/node/online", "0-1");
  EXPECT_TRUE(has_choice());
  write("devices/system/node/online", "0");
  add_rdma("mlx5_0", {}, 1);
  EXPECT_TRUE(has_choice());
}

TEST_F(Sysfs, WholeMachineIsReadIfTheOnlyInterfaceIsStackedOnAnother) {
  add_interface("eth0", add_pci("pci0000:00/0000:00:02.0", "0x020000"));
  add_interface("vlan5", {});
  link("class/net/vlan5/lower_eth0", "class/net/eth0");
  interfaces_.erase(interfaces_.begin());
  EXPECT_FALSE(read_only_nic(sys_.string(), interfaces_));
}

// Returns the relevant PCI objects: those on the paths to NICs and accelerators.
std::vector<std::string> ways_to_nics(const Machine& machine) {
  std::vector<std::string> ways;
  for (const PciNode& node : machine.pci) {
    if (node.kind != PciKind::kFunction || node.device_class >> 8 != 0x02) continue;
    std::string way;
    for (const PciNode* at = &node; at != nullptr;
         at = at->parent == kNone ? nullptr : &machine.pci[static_cast<size_t>(at->parent)]) {
      way += at->address.text() + " ";
    }
    ways.push_back(way);
  }
  return ways;
}

TEST(LiveMachine, TreeMatchesHwloc) {
  Result<Machine> by_hwloc = read_live_by_hwloc();
  if (!by_hwloc.ok()) GTEST_SKIP() << by_hwloc.status().text();
  Machine by_files = read_pci_tree("/sys");
  ASSERT_TRUE(check(by_files).ok()) << check(by_files).text();
  normalize(by_files);
  EXPECT_EQ(ways_to_nics(by_files), ways_to_nics(*by_hwloc));
  EXPECT_EQ(by_files.numa_nodes.size(), by_hwloc->numa_nodes.size());
}

TEST(LiveMachine, MachineReadsBackAsWritten) {
  Result<Machine> machine = read_live_machine();
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  Result<Machine> again = parse_machine(to_json(*machine));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(to_json(*again), to_json(*machine));
}

TEST(LiveMachine, SingleNicMatchesTheWholeMachine) {
  const std::optional<Machine> only = read_live_nic();
  if (!only) GTEST_SKIP() << "this host has something to choose";
  Result<Machine> machine = read_live_machine();
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  for (const Nic& each : only->nics) {
    EXPECT_EQ(carriers(*only, each.name()), carriers(*machine, each.name()));
  }
}

}  // namespace
}  // namespace hetcomm::topology
