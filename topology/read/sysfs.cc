#include "topology/read/sysfs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/system/interface_list.h"
#include "src/system/unique_fd.h"
#include "topology/machine/accelerator_class.h"

namespace hetcomm::topology {
namespace {

namespace fs = std::filesystem;

// Returns the first 4 KiB of a file, or an empty string if it cannot be read. C++ streams would
// take ten times as long, and all processes of a job read about twenty files at the same time.
std::string read_file(const fs::path& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[4096];
  const ssize_t length = file.valid() ? read(file.get(), bytes, sizeof(bytes)) : 0;
  return std::string(bytes, length > 0 ? static_cast<size_t>(length) : 0);
}

// Returns the first line of a file without trailing spaces, or an empty string if the file cannot
// be read.
std::string read_line(const fs::path& path) {
  std::string line = read_file(path);
  line.resize(std::min(line.find('\n'), line.size()));
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
    line.pop_back();
  }
  return line;
}

std::optional<int64_t> read_number(const fs::path& path, int base = 10) {
  std::string line = read_line(path);
  std::string_view digits = line;
  if (base == 16 && digits.starts_with("0x")) digits.remove_prefix(2);
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end == digits.data()) return std::nullopt;
  return value;
}

bool is_there(const fs::path& path) { return access(path.c_str(), F_OK) == 0; }

// Returns the sorted names in a folder, or an empty list if it cannot be read.
std::vector<std::string> list(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the target of a link, or an empty path if there is none.
fs::path resolve(const fs::path& link) {
  // The kernel resolves the whole path in one call. fs::canonical() makes one call for each part.
  const UniqueFd file(open(link.c_str(), O_PATH | O_CLOEXEC));
  if (!file.valid()) return {};
  char path[PATH_MAX];
  const std::string entry = fmt::format("/proc/self/fd/{}", file.get());
  const ssize_t length = readlink(entry.c_str(), path, sizeof(path));
  if (length > 0 && length < PATH_MAX && path[0] == '/') {
    return std::string(path, static_cast<size_t>(length));
  }
  std::error_code error;
  fs::path target = fs::canonical(link, error);
  return error ? fs::path() : target;
}

// Returns the folder of the PCI function that carries the data of the device behind |link|, or an
// empty path if there is none. For a virtual function, this is its physical function.
fs::path carrier_folder(const fs::path& link) {
  const fs::path device = resolve(link);
  const fs::path physical = device.empty() ? fs::path() : resolve(device / "physfn");
  fs::path at = physical.empty() ? device : physical;
  // Goes up to the last PCI function on the path, as in .../0000:00:03.0/virtio1.
  while (at.has_relative_path() && !parse_pci_address(at.filename().string())) {
    at = at.parent_path();
  }
  return at.has_relative_path() ? at : fs::path();
}

std::optional<PciAddress> carrier_of(const fs::path& link) {
  return parse_pci_address(carrier_folder(link).filename().string());
}

// Returns the names of the interfaces on which the one in |folder| is built, as for a bond.
std::vector<std::string> lower_interfaces(const fs::path& folder) {
  constexpr std::string_view kLower = "lower_";
  std::vector<std::string> names;
  for (const std::string& name : list(folder)) {
    if (name.starts_with(kLower)) names.push_back(name.substr(kLower.size()));
  }
  return names;
}

// --- PCIe tree -------------------------------------------------------------------------------

// Returns the payload rate of one PCIe lane, in kB/s. The encoding is 8b/10b up to 5 GT/s,
// 128b/130b up to 32 GT/s, and flits above.
uint64_t track_kbyte_per_s(double gt_per_s) {
  if (gt_per_s <= 5.0) return static_cast<uint64_t>(gt_per_s * 100'000);
  if (gt_per_s <= 32.0) return static_cast<uint64_t>(gt_per_s * 1e6 / 8 * 128 / 130);
  return static_cast<uint64_t>(gt_per_s * 1e6 / 8 * 242 / 256);
}

uint64_t link_mbyte_per_s(const fs::path& device) {
  const double gt_per_s = leading_number(read_line(device / "current_link_speed"));
  const int64_t tracks = read_number(device / "current_link_width").value_or(0);
  if (!(gt_per_s > 0) || gt_per_s > 1000 || tracks <= 0 || tracks > 32) return 0;
  return track_kbyte_per_s(gt_per_s) * static_cast<uint64_t>(tracks) / 1000;
}

class PciTree {
 public:
  explicit PciTree(Machine& machine) : machine_(machine) {}

  // Adds the function whose folder is |device|, and the bridges above it. A folder is, for example,
  // /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
  void add(const fs::path& device) {
    std::vector<fs::path> way;
    fs::path at = device;
    for (; at.has_relative_path() && parse_pci_address(at.filename().string());
         at = at.parent_path()) {
      way.push_back(at);
    }
    const std::optional<PciAddress> root = root_of(at.filename().string());
    if (!root || way.empty()) return;
    int parent = add_node(PciKind::kRootComplex, *root, kNone, {});
    for (size_t i = way.size(); i-- > 0;) {
      const PciAddress address = *parse_pci_address(way[i].filename().string());
      parent = add_node(i == 0 ? PciKind::kFunction : PciKind::kBridge, address, parent, way[i]);
    }
  }

 private:
  // Parses the name of a root complex's folder, such as "pci0000:3a". Returns nothing for any other
  // name.
  static std::optional<PciAddress> root_of(const std::string& name) {
    if (!name.starts_with("pci")) return std::nullopt;
    return parse_pci_address(name.substr(3) + ":00.0");
  }

  int add_node(PciKind kind, const PciAddress& address, int parent, const fs::path& folder) {
    if (const int there = machine_.find_pci(address, kind); there != kNone) return there;
    PciNode node;
    node.kind = kind;
    node.address = address;
    node.parent = parent;
    if (!folder.empty()) {
      node.vendor = static_cast<uint16_t>(read_number(folder / "vendor", 16).value_or(0));
      node.device = static_cast<uint16_t>(read_number(folder / "device", 16).value_or(0));
      node.device_class = static_cast<uint16_t>(read_number(folder / "class", 16).value_or(0) >> 8);
      node.mbyte_per_s = link_mbyte_per_s(folder);
      node.numa_nodes = numa_nodes(read_number(folder / "numa_node").value_or(-1));
    }
    machine_.pci.push_back(std::move(node));
    return static_cast<int>(machine_.pci.size()) - 1;
  }

  std::vector<int> numa_nodes(int64_t number) const {
    for (size_t i = 0; i < machine_.numa_nodes.size(); ++i) {
      if (machine_.numa_nodes[i].number == number) return {static_cast<int>(i)};
    }
    return {};
  }

  Machine& machine_;
};

// --- NUMA nodes ------------------------------------------------------------------------------

void add_numa_nodes(const fs::path& sys, Machine& machine) {
  const fs::path folder = sys / "devices/system/node";
  for (const std::string& name : list(folder)) {
    uint32_t number = 0;
    if (!name.starts_with("node")) continue;
    const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), number);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    NumaNode node;
    node.number = number;
    node.processors = read_line(folder / name / "cpulist");
    const std::string first = node.processors.substr(0, node.processors.find_first_of(",-"));
    node.package = static_cast<int>(
        read_number(sys / "devices/system/cpu" / ("cpu" + first) / "topology/physical_package_id")
            .value_or(kNone));
    machine.numa_nodes.push_back(std::move(node));
  }
  std::sort(machine.numa_nodes.begin(), machine.numa_nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
  for (NumaNode& node : machine.numa_nodes) {
    std::istringstream line(read_line(folder / fmt::format("node{}", node.number) / "distance"));
    for (uint32_t value = 0; line >> value;) node.distances.push_back(value);
    if (node.distances.size() != machine.numa_nodes.size()) node.distances.clear();
  }
}

// --- NICs ------------------------------------------------------------------------------------

class NicReader {
 public:
  NicReader(const std::string& sys, const std::vector<Interface>& interfaces, Machine& machine)
      : net_(fs::path(sys) / "class/net"),
        infiniband_(fs::path(sys) / "class/infiniband"),
        interfaces_(interfaces),
        machine_(machine) {}

  void run() {
    machine_.nics.clear();
    for (const Interface& interface : interfaces_) add_interface(interface);
    for (const std::string& device : list(infiniband_)) add_rdma(device);
    // An interface in a bond or a bridge is reachable only by the name of the bond or the bridge.
    std::erase_if(machine_.nics, [this](const Nic& nic) {
      return nic.rdma_device.empty() && members_.count(nic.interface) != 0;
    });
  }

 private:
  bool is_ours(const Interface& interface) const {
    const fs::path folder = net_ / interface.name;
    if (!is_there(folder)) return false;
    return interface.index == 0 || read_number(folder / "ifindex") == interface.index;
  }

  void add_interface(const Interface& interface) {
    Nic nic;
    nic.interface = interface.name;
    nic.state = interface.is_running ? NicState::kUp : NicState::kDown;
    nic.subnets = interface.subnets;
    nic.kind = NicKind::kVirtual;
    if (is_ours(interface)) {
      const fs::path folder = net_ / interface.name;
      nic.mbit_per_s = rate_of(folder);
      nic.kind = kind_of(folder, nic.functions);
      if (is_member(folder)) members_.insert(interface.name);
    }
    machine_.nics.push_back(std::move(nic));
  }

  static uint64_t rate_of(const fs::path& folder) {
    const int64_t mbit = read_number(folder / "speed").value_or(0);
    return mbit > 0 && static_cast<uint64_t>(mbit) <= kMaxMbitPerS ? static_cast<uint64_t>(mbit)
                                                                   : 0;
  }

  // Returns the kind of the interface in |folder|, and adds the PCI functions that carry its data
  // to |functions|.
  NicKind kind_of(const fs::path& folder, std::vector<int>& functions) const {
    bool is_physical = false;
    add_carriers(folder, functions, is_physical);
    if (is_tunnel(folder)) return NicKind::kBridge;
    if (is_physical && !is_representor(folder)) return NicKind::kPhysical;
    return is_there(folder / "bridge") ? NicKind::kBridge : NicKind::kVirtual;
  }

  // Returns whether the interface is a tunnel, such as tun, WireGuard or VXLAN.
  static bool is_tunnel(const fs::path& folder) {
    constexpr int64_t kEthernet = 1;
    constexpr int64_t kInfiniBand = 32;
    const int64_t type = read_number(folder / "type").value_or(kEthernet);
    const std::string device_type = uevent(folder, "DEVTYPE=");
    return is_there(folder / "tun_flags") || (type != kEthernet && type != kInfiniBand) ||
           device_type == "vxlan" || device_type == "geneve" || device_type == "gre" ||
           device_type == "wireguard";
  }

  // Returns whether the interface is a representor ("pf0vf3", "c1pf0sf88"). A representor is the
  // host's end of a virtual function, and leads only to that function.
  static bool is_representor(const fs::path& folder) {
    const std::string name = read_line(folder / "phys_port_name");
    return name.find("pf") != std::string::npos &&
           (name.find("vf") != std::string::npos || name.find("sf") != std::string::npos);
  }

  // Returns whether the interface has joined a bond, a team or a bridge. Other masters, such as a
  // VRF, carry no data themselves.
  static bool is_member(const fs::path& folder) {
    const fs::path master = folder / "master";
    return is_there(master / "bonding") || is_there(master / "bridge") ||
           uevent(master, "DEVTYPE=") == "team";
  }

  // Returns the rest of the line that begins with |name| in the file `uevent` in |folder|, in which
  // the kernel describes a device. Returns an empty string if there is no such line.
  static std::string uevent(const fs::path& folder, std::string_view name) {
    std::istringstream lines(read_file(folder / "uevent"));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name)) return line.substr(name.size());
    }
    return {};
  }

  // Adds the PCI functions that carry the data of an interface: its own, or those of the interfaces
  // below it. Sets |is_physical| if one of these interfaces has a device.
  void add_carriers(const fs::path& folder, std::vector<int>& functions, bool& is_physical,
                    int depth = 0) const {
    constexpr int kDeepest = 8;
    if (is_there(folder / "device")) {
      is_physical = true;
      const std::optional<PciAddress> carrier = carrier_of(folder / "device");
      add_function(carrier, functions);
      if (carrier) return;
      // In a virtual machine, a device without a PCI function may pass its data to an interface
      // below it, which is a virtual function.
    }
    if (depth == kDeepest) return;
    for (const std::string& name : lower_interfaces(folder)) {
      add_carriers(net_ / name, functions, is_physical, depth + 1);
    }
  }

  void add_function(const std::optional<PciAddress>& address, std::vector<int>& functions) const {
    const int function = address ? machine_.find_pci(*address) : kNone;
    if (function == kNone) return;
    const auto at = std::lower_bound(functions.begin(), functions.end(), function);
    if (at == functions.end() || *at != function) functions.insert(at, function);
  }

  void add_rdma(const std::string& device) {
    const fs::path folder = infiniband_ / device;
    for (const std::string& name : list(folder / "ports")) {
      uint32_t port = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), port);
      if (error != std::errc() || end != name.data() + name.size() || port == 0) continue;
      add_rdma_port(folder, device, port);
    }
  }

  void add_rdma_port(const fs::path& folder, const std::string& device, uint32_t port) {
    const fs::path files = folder / "ports" / std::to_string(port);
    // The files contain, for example, "4: ACTIVE" and "100 Gb/sec (4X EDR)".
    const bool is_active = read_line(files / "state").starts_with("4:");
    const double gbit = leading_number(read_line(files / "rate"));
    // A Soft-RoCE device has no card but runs over a network interface. Its rate is not used, since
    // the kernel invents a rate if the interface reports none.
    const std::string parent = read_line(folder / "parent");
    const bool is_soft = !is_there(folder / "device");
    Nic& nic = is_soft ? nic_over(parent) : nic_at(folder, files, port);
    nic.rdma_device = device;
    nic.rdma_port = port;
    nic.state = is_active ? NicState::kUp : NicState::kDown;
    if (!is_soft && gbit > 0 && gbit < 1e6) {
      nic.mbit_per_s = std::max(nic.mbit_per_s, static_cast<uint64_t>(std::lround(gbit * 1000)));
    }
  }

  // Returns the NIC of the interface |parent|. If there is none, or it already has an RDMA device,
  // adds another NIC and returns that one.
  Nic& nic_over(const std::string& parent) {
    Nic beside;
    beside.kind = NicKind::kVirtual;
    for (Nic& nic : machine_.nics) {
      if (parent.empty() || nic.interface != parent) continue;
      if (nic.rdma_device.empty()) return nic;
      beside.kind = nic.kind;
      beside.functions = nic.functions;
    }
    machine_.nics.push_back(std::move(beside));
    return machine_.nics.back();
  }

  // Returns the NIC of an RDMA port on a card: an existing NIC with the card's PCI function, or
  // else a new one. If the port names its interface (RoCE), the existing NIC must have that
  // interface. If it names none (InfiniBand), the existing NIC must have the same port number.
  Nic& nic_at(const fs::path& folder, const fs::path& files, uint32_t port) {
    std::vector<int> functions;
    add_function(carrier_of(folder / "device"), functions);
    const std::string named = read_line(files / "gid_attrs/ndevs/0");
    for (Nic& nic : machine_.nics) {
      if (nic.interface.empty() || !nic.rdma_device.empty()) continue;
      const bool at_the_card = std::includes(nic.functions.begin(), nic.functions.end(),
                                             functions.begin(), functions.end());
      if (!at_the_card || (functions.empty() && named.empty())) continue;
      if (named.empty() ? port_number(nic.interface) == port : nic.interface == named) return nic;
    }
    Nic nic;
    nic.functions = std::move(functions);
    machine_.nics.push_back(std::move(nic));
    return machine_.nics.back();
  }

  // Returns the number of an interface's port on its card, from 1, or 0 if the interface has no
  // card.
  int64_t port_number(const std::string& interface) const {
    const fs::path folder = net_ / interface;
    if (!is_there(folder / "device")) return 0;
    return std::max(read_number(folder / "dev_port").value_or(0),
                    read_number(folder / "dev_id", 16).value_or(0)) +
           1;
  }

  const fs::path net_;
  const fs::path infiniband_;
  const std::vector<Interface>& interfaces_;
  Machine& machine_;
  std::set<std::string> members_;  // interfaces that have joined a bond or a bridge
};

std::string subnet_of(const sockaddr* address, const sockaddr* mask) {
  const bool is_v4 = address->sa_family == AF_INET;
  const size_t length = is_v4 ? 4 : 16;
  const auto bytes = [is_v4](const sockaddr* from) {
    return is_v4 ? reinterpret_cast<const unsigned char*>(
                       &reinterpret_cast<const sockaddr_in*>(from)->sin_addr)
                 : reinterpret_cast<const unsigned char*>(
                       &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr);
  };
  unsigned char network[16] = {};
  int bits = 0;
  for (size_t i = 0; i < length; ++i) {
    network[i] = bytes(address)[i] & bytes(mask)[i];
    bits += __builtin_popcount(bytes(mask)[i]);
  }
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(address->sa_family, network, text, sizeof(text));
  return fmt::format("{}/{}", text, bits);
}

}  // namespace

std::vector<Interface> list_interfaces() {
  const Result<std::vector<ListedAddress>> entries = list_addresses_of_host();
  if (!entries.ok()) return {};
  std::map<std::string, Interface> found;
  for (const ListedAddress& entry : entries.value()) {
    if ((entry.flags & IFF_LOOPBACK) != 0) continue;
    constexpr unsigned int kRunning = IFF_UP | IFF_RUNNING;
    // If an address has a label, the label ("eth0:1") appears in place of the interface's name.
    std::string name = entry.interface;
    name.resize(std::min(name.find(':'), name.size()));
    Interface& interface = found[name];
    interface.name = name;
    interface.is_running = (entry.flags & kRunning) == kRunning;
    if (entry.index != 0) interface.index = entry.index;
    const auto* const address = reinterpret_cast<const sockaddr*>(&entry.address);
    if (entry.netmask.ss_family == AF_UNSPEC) continue;
    const int family = address->sa_family;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)) {
      continue;  // every interface has an address in this subnet
    }
    if (family == AF_INET || family == AF_INET6) {
      std::string subnet = subnet_of(address, reinterpret_cast<const sockaddr*>(&entry.netmask));
      std::vector<std::string>& subnets = interface.subnets;
      if (std::find(subnets.begin(), subnets.end(), subnet) == subnets.end()) {
        subnets.push_back(std::move(subnet));
      }
    }
  }
  std::vector<Interface> interfaces;
  for (auto& [name, interface] : found) interfaces.push_back(std::move(interface));
  return interfaces;
}

Machine read_pci_tree(const std::string& sys) {
  Machine machine;
  add_numa_nodes(sys, machine);
  PciTree tree(machine);
  const fs::path devices = fs::path(sys) / "bus/pci/devices";
  for (const std::string& name : list(devices)) {
    constexpr int64_t kNetwork = 0x02;
    constexpr int64_t kDisplay = 0x03;
    constexpr int64_t kProcessingAccelerator = 0x12;
    const int64_t top = read_number(devices / name / "class", 16).value_or(0) >> 16;
    if (top != kNetwork && top != kDisplay && top != kProcessingAccelerator) continue;
    tree.add(resolve(devices / name));
  }
  add_accelerators(machine);
  drop_virtual_accelerators(sys, machine);
  return machine;
}

void drop_virtual_accelerators(const std::string& sys, Machine& machine) {
  const fs::path devices = fs::path(sys) / "bus/pci/devices";
  std::erase_if(machine.accelerators, [&](const Accelerator& each) {
    return is_there(devices / each.address.text() / "physfn");
  });
  if (machine.accelerators.size() > kMaxAccelerators) machine.accelerators.resize(kMaxAccelerators);
}

void read_nics(const std::string& sys, const std::vector<Interface>& interfaces, Machine& machine) {
  NicReader(sys, interfaces, machine).run();
}

bool has_locations(const std::string& sys) {
  if (!list(fs::path(sys) / "class/infiniband").empty()) return true;
  const std::string nodes = read_line(fs::path(sys) / "devices/system/node/online");
  return !nodes.empty() && nodes != "0";
}

std::optional<Machine> read_only_nic(const std::string& sys,
                                     const std::vector<Interface>& interfaces) {
  if (has_locations(sys)) return std::nullopt;
  const fs::path net = fs::path(sys) / "class/net";
  std::vector<Interface> running;
  for (const Interface& interface : interfaces) {
    if (interface.is_running) {
      running.push_back(interface);
    } else if (is_there(net / interface.name / "device") ||
               (!interface.subnets.empty() && !is_there(net / interface.name / "bridge"))) {
      return std::nullopt;
    }
  }
  if (running.size() > 1) return std::nullopt;
  Machine machine;
  if (running.empty()) return machine;
  const fs::path folder = net / running[0].name;
  if (is_there(folder / "device")) {
    PciTree(machine).add(carrier_folder(folder / "device"));
  } else if (!lower_interfaces(folder).empty()) {
    return std::nullopt;
  }
  read_nics(sys, running, machine);
  return machine;
}

}  // namespace hetcomm::topology
