#include "topology/machine/distance.h"

#include <algorithm>
#include <vector>

namespace hetcomm::topology {
namespace {

const PciNode& node_at(const Machine& machine, int index) {
  return machine.pci[static_cast<size_t>(index)];
}

// Returns the objects from |function| up to its root complex.
std::vector<int> way_up(const Machine& machine, int function) {
  std::vector<int> way;
  for (int at = function; at != kNone; at = node_at(machine, at).parent) way.push_back(at);
  return way;
}

// A Meeting is the lowest object above two functions, and the number of bridges that bytes pass
// below it on the longer side.
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

// Returns whether two lists in ascending order have a node in common. On a machine with one node
// they always do.
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
  // Two devices below one switch meet at its upstream port. One bridge is below that port on each
  // side: the switch's port towards the device.
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
