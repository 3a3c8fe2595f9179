#include "topology/machine/machine.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "src/base/sort_and_map.h"
#include "src/base/text.h"

namespace hetcomm::topology {
namespace {

bool is_index(int index, size_t size) {
  return index == kNone || (index >= 0 && static_cast<size_t>(index) < size);
}

// Returns whether |indices| are in strictly ascending order, and all are less than |size|.
bool are_indices(const std::vector<int>& indices, size_t size) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == kNone || !is_index(indices[i], size)) return false;
    if (i != 0 && indices[i] <= indices[i - 1]) return false;
  }
  return true;
}

Status broken(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }

Status check_count(size_t count, size_t most, const char* what) {
  if (count <= most) return {};
  return broken(fmt::format("there are {} {}; {} are the most", count, what, most));
}

std::string name_of(const PciNode& node) {
  const char* kind = node.kind == PciKind::kRootComplex ? "root complex"
                     : node.kind == PciKind::kBridge    ? "PCI bridge"
                                                        : "PCI function";
  return fmt::format("{} {}", kind, node.address.text());
}

Status check_numa_nodes(const Machine& machine) {
  std::set<uint32_t> numbers;
  for (const NumaNode& node : machine.numa_nodes) {
    if (!numbers.insert(node.number).second) {
      return broken(fmt::format("NUMA node {} is there twice", node.number));
    }
    if (!node.distances.empty() && node.distances.size() != machine.numa_nodes.size()) {
      return broken(fmt::format("NUMA node {} has {} distances for {} nodes", node.number,
                                node.distances.size(), machine.numa_nodes.size()));
    }
  }
  return {};
}

Status check_pci(const Machine& machine) {
  constexpr int kDeepest = 64;
  std::vector<int> depths;
  std::set<std::pair<PciAddress, PciKind>> seen;
  for (size_t i = 0; i < machine.pci.size(); ++i) {
    const PciNode& node = machine.pci[i];
    const bool is_root = node.kind == PciKind::kRootComplex;
    if (!seen.insert({node.address, node.kind}).second) {
      return broken(fmt::format("{} is there twice", name_of(node)));
    }
    if (!are_indices(node.numa_nodes, machine.numa_nodes.size())) {
      return broken(fmt::format("{} is local to NUMA nodes that are not there", name_of(node)));
    }
    if (is_root != (node.parent == kNone)) {
      return broken(fmt::format("{} {} a parent", name_of(node), is_root ? "has" : "lacks"));
    }
    depths.push_back(0);
    if (is_root) continue;
    if (!is_index(node.parent, i) ||
        machine.pci[static_cast<size_t>(node.parent)].kind == PciKind::kFunction) {
      return broken(fmt::format("{} has a parent that is no bridge before it", name_of(node)));
    }
    depths.back() = depths[static_cast<size_t>(node.parent)] + 1;
    if (depths.back() > kDeepest) {
      return broken(fmt::format("{} lies below more than {} bridges", name_of(node), kDeepest));
    }
  }
  return {};
}

Status check_nics(const Machine& machine) {
  std::set<std::string> interfaces;
  std::set<std::pair<std::string, uint32_t>> ports;
  for (const Nic& nic : machine.nics) {
    const std::string name = printable(nic.name());
    if (nic.interface.empty() && nic.rdma_device.empty()) return broken("a NIC has no name");
    if (nic.rdma_device.empty() != (nic.rdma_port == 0)) {
      return broken(fmt::format("NIC {}: an RDMA device and a port from 1 go together", name));
    }
    const bool fresh =
        (nic.interface.empty() || interfaces.insert(nic.interface).second) &&
        (nic.rdma_device.empty() || ports.insert({nic.rdma_device, nic.rdma_port}).second);
    if (!fresh) return broken(fmt::format("NIC {} is there twice", name));
    if (!are_indices(nic.numa_nodes, machine.numa_nodes.size())) {
      return broken(fmt::format("NIC {} is local to NUMA nodes that are not there", name));
    }
    if (nic.mbit_per_s > kMaxMbitPerS) {
      return broken(fmt::format("NIC {} has a rate of more than {} Mbit/s", name, kMaxMbitPerS));
    }
    for (const int function : nic.functions) {
      if (function == kNone || !is_index(function, machine.pci.size()) ||
          machine.pci[static_cast<size_t>(function)].kind != PciKind::kFunction) {
        return broken(fmt::format("NIC {} is carried by no PCI function", name));
      }
    }
  }
  return {};
}

Status check_accelerators(const Machine& machine) {
  std::set<PciAddress> addresses;
  for (const Accelerator& each : machine.accelerators) {
    const std::string name = each.address.text();
    if (!addresses.insert(each.address).second) {
      return broken(fmt::format("accelerator {} is there twice", name));
    }
    if (!are_indices(each.numa_nodes, machine.numa_nodes.size())) {
      return broken(fmt::format("accelerator {} is local to NUMA nodes that are not there", name));
    }
    if (!is_index(each.function, machine.pci.size()) ||
        (each.function != kNone &&
         (machine.pci[static_cast<size_t>(each.function)].kind != PciKind::kFunction ||
          machine.pci[static_cast<size_t>(each.function)].address != each.address))) {
      return broken(fmt::format("accelerator {} is another PCI function", name));
    }
  }
  for (const AcceleratorLink& link : machine.links) {
    if (link.first < 0 || link.first >= link.second ||
        !is_index(link.second, machine.accelerators.size())) {
      return broken(
          fmt::format("a link '{}' joins accelerators that are not there, or in the wrong "
                      "order",
                      printable(link.kind)));
    }
  }
  return {};
}

int mapped(const std::vector<int>& positions, int index) {
  return index == kNone ? kNone : positions[static_cast<size_t>(index)];
}

void map_all(const std::vector<int>& positions, std::vector<int>& indices) {
  for (int& index : indices) index = mapped(positions, index);
  std::sort(indices.begin(), indices.end());
}

void sort_numa_nodes(Machine& machine) {
  const auto by_number = [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; };
  const std::vector<int> positions = sort_and_map(machine.numa_nodes, by_number);
  for (NumaNode& node : machine.numa_nodes) {
    const std::vector<uint32_t> old = node.distances;
    for (size_t i = 0; i < old.size(); ++i)
      node.distances[static_cast<size_t>(positions[i])] = old[i];
  }
  for (PciNode& node : machine.pci) map_all(positions, node.numa_nodes);
  for (Nic& nic : machine.nics) map_all(positions, nic.numa_nodes);
  for (Accelerator& each : machine.accelerators) map_all(positions, each.numa_nodes);
}

// The addresses and kinds of the objects on the path from the root complex down to one object.
// Sorting objects by their PciPath puts the tree in depth-first order.
using PciPath = std::vector<std::pair<PciAddress, PciKind>>;

void sort_pci(Machine& machine) {
  std::vector<PciPath> paths;
  paths.reserve(machine.pci.size());
  for (const PciNode& node : machine.pci) {
    PciPath path = node.parent == kNone ? PciPath() : paths[static_cast<size_t>(node.parent)];
    path.emplace_back(node.address, node.kind);
    paths.push_back(std::move(path));
  }
  const auto less = [&](const PciNode& a, const PciNode& b) {
    const auto path = [&](const PciNode& node) -> const PciPath& {
      return paths[static_cast<size_t>(&node - machine.pci.data())];
    };
    return path(a) < path(b);
  };
  const std::vector<int> positions = sort_and_map(machine.pci, less);
  for (PciNode& node : machine.pci) node.parent = mapped(positions, node.parent);
  for (Nic& nic : machine.nics) map_all(positions, nic.functions);
  for (Accelerator& each : machine.accelerators) each.function = mapped(positions, each.function);
}

void sort_accelerators(Machine& machine) {
  const auto by_address = [](const Accelerator& a, const Accelerator& b) {
    return a.address < b.address;
  };
  const std::vector<int> positions = sort_and_map(machine.accelerators, by_address);
  for (AcceleratorLink& link : machine.links) {
    link.first = mapped(positions, link.first);
    link.second = mapped(positions, link.second);
    if (link.first > link.second) std::swap(link.first, link.second);
  }
  std::sort(machine.links.begin(), machine.links.end(),
            [](const AcceleratorLink& a, const AcceleratorLink& b) {
              return std::tie(a.first, a.second, a.kind, a.mbyte_per_s) <
                     std::tie(b.first, b.second, b.kind, b.mbyte_per_s);
            });
}

// Sorts NICs by their position in the PCIe tree. NICs without PCI functions come last.
void sort_nics(Machine& machine) {
  const auto position = [](const Nic& nic) {
    return nic.functions.empty() ? INT32_MAX : nic.functions.front();
  };
  std::stable_sort(machine.nics.begin(), machine.nics.end(), [&](const Nic& a, const Nic& b) {
    const int position_a = position(a);
    const int position_b = position(b);
    const uint32_t port_a = a.rdma_port - 1;  // 0 wraps, so NICs without an RDMA port come last
    const uint32_t port_b = b.rdma_port - 1;
    return std::tie(position_a, port_a, a.rdma_device, a.interface) <
           std::tie(position_b, port_b, b.rdma_device, b.interface);
  });
  for (Nic& nic : machine.nics) std::sort(nic.subnets.begin(), nic.subnets.end());
}

}  // namespace

std::string Nic::name() const {
  return rdma_device.empty() ? interface : fmt::format("{}:{}", rdma_device, rdma_port);
}

bool Nic::is_called(std::string_view word) const {
  return !word.empty() && (word == interface || word == rdma_device || word == name());
}

int Machine::find_pci(const PciAddress& address, PciKind kind) const {
  for (size_t i = 0; i < pci.size(); ++i) {
    if (pci[i].kind == kind && pci[i].address == address) return static_cast<int>(i);
  }
  return kNone;
}

int Machine::find_nic(std::string_view name) const {
  for (size_t i = 0; i < nics.size(); ++i) {
    if (nics[i].is_called(name)) return static_cast<int>(i);
  }
  const std::optional<PciAddress> address = parse_pci_address(name);
  const int function = address ? find_pci(*address) : kNone;
  if (function == kNone) return kNone;
  for (size_t i = 0; i < nics.size(); ++i) {
    const std::vector<int>& functions = nics[i].functions;
    if (std::find(functions.begin(), functions.end(), function) != functions.end()) {
      return static_cast<int>(i);
    }
  }
  return kNone;
}

int Machine::find_accelerator(const PciAddress& address) const {
  for (size_t i = 0; i < accelerators.size(); ++i) {
    if (accelerators[i].address == address) return static_cast<int>(i);
  }
  return kNone;
}

Status check(const Machine& machine) {
  HETCOMM_RETURN_IF_ERROR(check_count(machine.numa_nodes.size(), kMaxNumaNodes, "NUMA nodes"));
  HETCOMM_RETURN_IF_ERROR(check_count(machine.pci.size(), kMaxObjects, "PCI objects"));
  HETCOMM_RETURN_IF_ERROR(check_count(machine.nics.size(), kMaxNics, "NICs"));
  HETCOMM_RETURN_IF_ERROR(
      check_count(machine.accelerators.size(), kMaxAccelerators, "accelerators"));
  HETCOMM_RETURN_IF_ERROR(check_count(machine.links.size(), kMaxObjects, "accelerator links"));
  HETCOMM_RETURN_IF_ERROR(check_numa_nodes(machine));
  HETCOMM_RETURN_IF_ERROR(check_pci(machine));
  HETCOMM_RETURN_IF_ERROR(check_nics(machine));
  return check_accelerators(machine);
}

void normalize(Machine& machine) {
  sort_numa_nodes(machine);
  sort_pci(machine);
  sort_nics(machine);
  sort_accelerators(machine);
}

const std::vector<int>& numa_nodes_of(const Machine& machine, int pci) {
  static const std::vector<int> kUnknown;
  for (int at = pci; at != kNone; at = machine.pci[static_cast<size_t>(at)].parent) {
    const PciNode& node = machine.pci[static_cast<size_t>(at)];
    if (!node.numa_nodes.empty()) return node.numa_nodes;
  }
  return kUnknown;
}

}  // namespace hetcomm::topology
