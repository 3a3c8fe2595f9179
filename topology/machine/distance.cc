#include "topology/machine/distance.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace hetcomm::topology {
namespace {

const PciNode& node_at(const Machine& machine, int index) {
  return machine.pci[static_cast<size_t>(index)];
}

// Returns the PCI objects from |function| up to its root complex, both included.
std::vector<int> way_up(const Machine& machine, int function) {
  std::vector<int> way;
  for (int at = function; at != kNone; at = node_at(machine, at).parent) way.push_back(at);
  return way;
}

// The result of meet(): the lowest common ancestor of two functions in the PCIe tree, and the
// number of bridges between it and the function that is deeper below it.
struct Meeting {
  int node = kNone;
  size_t bridges = 0;
};

Meeting meet(const Machine& machine, int a, int b) {
  if (a == kNone || b == kNone) return {};
  const std::vector<int> up_a = way_up(machine, a);
  const std::vector<int> up_b = way_up(machine, b);
  for (size_t i = 0; i < up_a.size(); ++i) {
    const auto found = std::find(up_b.begin(), up_b.end(), up_a[i]);
    if (found == up_b.end()) continue;
    const size_t longer = std::max(i, static_cast<size_t>(found - up_b.begin()));
    return {up_a[i], longer == 0 ? 0 : longer - 1};
  }
  return {};
}

const std::vector<int>& numa_nodes_at(const Machine& machine, const Location& location) {
  return location.function == kNone ? location.numa_nodes
                                    : numa_nodes_of(machine, location.function);
}

// Returns whether two lists of NUMA nodes, in ascending order, have a node in common. Always
// returns true on a machine with one node.
bool share_a_node(const Machine& machine, const std::vector<int>& a, const std::vector<int>& b) {
  if (machine.numa_nodes.size() == 1) return true;
  return std::any_of(a.begin(), a.end(),
                     [&](int node) { return std::binary_search(b.begin(), b.end(), node); });
}

std::vector<Location> locations_of(const Nic& nic) {
  std::vector<Location> locations;
  for (const int function : nic.functions) locations.push_back({function, {}});
  if (locations.empty()) locations.push_back({kNone, nic.numa_nodes});
  return locations;
}

// The distances that the kernel assumes if the firmware reports none.
constexpr uint32_t kLocalNumaDistance = 10;
constexpr uint32_t kRemoteNumaDistance = 20;

// Returns the least distance between a node of |a| and a node of |b|. If the kernel has reported
// none, returns a default distance.
uint32_t numa_distance(const Machine& machine, const std::vector<int>& a,
                       const std::vector<int>& b) {
  uint32_t least = share_a_node(machine, a, b) ? kLocalNumaDistance : kRemoteNumaDistance;
  bool is_first = true;
  for (const int one : a) {
    const std::vector<uint32_t>& known = machine.numa_nodes[static_cast<size_t>(one)].distances;
    for (const int other : b) {
      if (static_cast<size_t>(other) >= known.size()) continue;
      const uint32_t told = known[static_cast<size_t>(other)];
      least = is_first ? told : std::min(least, told);
      is_first = false;
    }
  }
  return least;
}

bool is_other_package(const Machine& machine, const std::vector<int>& a,
                      const std::vector<int>& b) {
  const auto package = [&](int node) {
    return machine.numa_nodes[static_cast<size_t>(node)].package;
  };
  return !a.empty() && !b.empty() && std::all_of(a.begin(), a.end(), [&](int one) {
    return package(one) != kNone && std::all_of(b.begin(), b.end(), [&](int other) {
             return package(other) != kNone && package(one) != package(other);
           });
  });
}

// Returns the objects from |function| up to, but not including, |end|. If |end| is kNone, the list
// ends below the root complex.
std::vector<int> way_below(const Machine& machine, int function, int end) {
  std::vector<int> way = way_up(machine, function);
  const auto last = std::find(way.begin(), way.end(), end);
  way.erase(last, way.end());
  if (end == kNone && !way.empty() && node_at(machine, way.back()).kind == PciKind::kRootComplex) {
    way.pop_back();
  }
  return way;
}

// Returns the same objects as way_below(), except those that report the function's own link, which
// is on all paths from |function|. These are the function itself and, if the function is its only
// child, the port above it.
std::vector<int> way_beyond_own_link(const Machine& machine, int function, int end) {
  std::vector<int> way = way_below(machine, function, end);
  const auto is_other_child = [&](const PciNode& node) {
    return node.parent == way[1] && &node != &node_at(machine, function);
  };
  const bool has_port =
      way.size() > 1 && std::none_of(machine.pci.begin(), machine.pci.end(), is_other_child);
  way.erase(way.begin(), way.begin() + std::min<ptrdiff_t>(std::ssize(way), has_port ? 2 : 1));
  return way;
}

// Returns Path::mbit_per_s of the path between |from| and |nic|.
uint64_t narrowest_link(const Machine& machine, const Location& from, const Nic& nic) {
  // By object at the lower end of a link: the number of the NIC's functions whose data crosses the
  // link.
  std::map<int, size_t> crossings;
  for (const int function : nic.functions) {
    const int top = meet(machine, from.function, function).node;
    for (const int each : way_below(machine, function, top)) ++crossings[each];
    if (from.function == kNone) continue;
    for (const int each : way_beyond_own_link(machine, from.function, top)) ++crossings[each];
  }
  uint64_t narrowest = Path::kNotLimited;
  for (const auto& [object, functions] : crossings) {
    const uint64_t rate = node_at(machine, object).mbyte_per_s * 8;
    if (rate != 0) narrowest = std::min(narrowest, rate * nic.functions.size() / functions);
  }
  return narrowest;
}

// Returns the path from |from| to one location of a NIC. Does not set the rate.
Path path_to(const Machine& machine, const Location& from, const Location& to) {
  const std::vector<int>& a = numa_nodes_at(machine, from);
  const std::vector<int>& b = numa_nodes_at(machine, to);
  Path path{.distance = distance(machine, from, to),
            .numa_distance = numa_distance(machine, a, b),
            .is_other_package = is_other_package(machine, a, b)};
  const int top = meet(machine, from.function, to.function).node;
  for (const int function : {from.function, to.function}) {
    if (function == kNone) continue;
    for (const int each : way_up(machine, function)) {
      if (each == top) break;
      if (node_at(machine, each).kind != PciKind::kFunction) ++path.bridges;
    }
  }
  if (top != kNone && node_at(machine, top).kind != PciKind::kFunction) ++path.bridges;
  return path;
}

}  // namespace

Distance distance(const Machine& machine, const Location& from, const Location& to) {
  const Meeting meeting = meet(machine, from.function, to.function);
  if (meeting.node != kNone) {
    return node_at(machine, meeting.node).kind == PciKind::kRootComplex ? Distance::kSameRootComplex
                                                                        : Distance::kSameSwitch;
  }
  const bool share =
      share_a_node(machine, numa_nodes_at(machine, from), numa_nodes_at(machine, to));
  return share ? Distance::kSameNumaNode : Distance::kOther;
}

Distance distance(const Machine& machine, const Location& from, const Nic& nic) {
  Distance farthest = Distance::kSameSwitch;
  for (const Location& location : locations_of(nic)) {
    farthest = std::max(farthest, distance(machine, from, location));
  }
  return farthest;
}

std::strong_ordering Path::operator<=>(const Path& other) const {
  return std::tie(distance, bridges, numa_distance, is_other_package) <=>
         std::tie(other.distance, other.bridges, other.numa_distance, other.is_other_package);
}

Path path(const Machine& machine, const Location& from, const Nic& nic) {
  Path longest{.distance = Distance::kSameSwitch};
  for (const Location& location : locations_of(nic)) {
    longest = std::max(longest, path_to(machine, from, location));
  }
  longest.mbit_per_s = narrowest_link(machine, from, nic);
  return longest;
}

const char* word_of(Distance distance) {
  switch (distance) {
    case Distance::kSameSwitch:
      return "switch";
    case Distance::kSameRootComplex:
      return "root complex";
    case Distance::kSameNumaNode:
      return "NUMA node";
    case Distance::kOther:
      break;
  }
  return "other";
}

const char* matrix_word(const Machine& machine, const Location& from, const Nic& nic) {
  // The lowest common ancestor of two devices below one switch is the switch's upstream port. One
  // bridge, a downstream port of the switch, is between that port and each device.
  constexpr size_t kBridgesOfOneSwitch = 1;
  switch (distance(machine, from, nic)) {
    case Distance::kSameSwitch: {
      size_t bridges = 0;
      for (const int function : nic.functions) {
        bridges = std::max(bridges, meet(machine, from.function, function).bridges);
      }
      return bridges <= kBridgesOfOneSwitch ? "PIX" : "PXB";
    }
    case Distance::kSameRootComplex:
      return "PHB";
    case Distance::kSameNumaNode:
      return "NODE";
    case Distance::kOther:
      break;
  }
  return "SYS";
}

}  // namespace hetcomm::topology
