#include "topology/machine/rank_nodes.h"

#include <algorithm>
#include <iterator>

namespace hetcomm::topology {
namespace {

// Indices in Machine::numa_nodes, in ascending order.
using Nodes = std::vector<int>;

Nodes both(const Nodes& one, const Nodes& other) {
  Nodes nodes;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                        std::back_inserter(nodes));
  return nodes;
}

Nodes either(const Nodes& one, const Nodes& other) {
  Nodes nodes;
  std::set_union(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(nodes));
  return nodes;
}

// Returns the nodes that are in both lists, or all of |nodes| if the lists have none in common.
Nodes narrowed(const Nodes& nodes, const Nodes& other) {
  Nodes shared = both(nodes, other);
  return shared.empty() ? nodes : shared;
}

Nodes nodes_near(const Machine& machine, const Accelerator& accelerator) {
  return accelerator.function == kNone ? accelerator.numa_nodes
                                       : numa_nodes_of(machine, accelerator.function);
}

Nodes nodes_near(const Machine& machine, const Nic& nic) {
  if (nic.functions.empty()) return nic.numa_nodes;
  Nodes nodes;
  for (const int function : nic.functions) nodes = either(nodes, numa_nodes_of(machine, function));
  return nodes;
}

class Chooser {
 public:
  Chooser(const Machine& machine, const RankLocation& location)
      : machine_(machine), location_(location) {
    for (const int each : location.accelerators) {
      near_accelerators_ = either(near_accelerators_, of_accelerator(each));
    }
  }

  Nodes of_accelerator(int accelerator) const {
    return narrowed(nodes_near(machine_, machine_.accelerators[static_cast<size_t>(accelerator)]),
                    location_.numa_nodes);
  }
  Nodes of_nic(int nic) const {
    const Nodes nodes = nodes_near(machine_, machine_.nics[static_cast<size_t>(nic)]);
    return narrowed(narrowed(nodes, near_accelerators_), location_.numa_nodes);
  }
  // Returns the nodes for memory that the rank's own processors read. These are the nodes near its
  // accelerators. If there are none, returns the node on which the rank may run, provided there is
  // only one. Otherwise returns an empty list.
  Nodes of_rank() const {
    if (!near_accelerators_.empty()) return near_accelerators_;
    return location_.numa_nodes.size() == 1 ? location_.numa_nodes : Nodes();
  }
  int number(const Nodes& nodes) const {
    if (nodes.empty()) return kNone;
    return static_cast<int>(machine_.numa_nodes[static_cast<size_t>(nodes.front())].number);
  }

 private:
  const Machine& machine_;
  const RankLocation& location_;
  Nodes near_accelerators_;
};

// Returns the nodes near the first NICs of the rank's accelerators. If the rank has no
// accelerators, returns the nodes near its first NIC.
Nodes nodes_of_first_nics(const Chooser& chooser, const Affinity& affinity,
                          const RankLocation& location, const std::vector<int>& nics) {
  Nodes nodes;
  for (const int accelerator : location.accelerators) {
    const NicOrder& order = affinity.accelerators[static_cast<size_t>(accelerator)];
    if (!order.empty()) nodes = either(nodes, chooser.of_nic(order.front().nic));
  }
  if (location.accelerators.empty() && !nics.empty()) nodes = chooser.of_nic(nics.front());
  return nodes;
}

}  // namespace

RankNodes nodes_of_rank(const Machine& machine, const Affinity& affinity,
                        const RankLocation& location, const std::vector<int>& nics) {
  RankNodes result;
  result.accelerators.assign(location.accelerators.size(), kNone);
  result.nics.assign(nics.size(), kNone);
  if (machine.numa_nodes.size() < 2) return result;
  const Chooser chooser(machine, location);
  for (size_t i = 0; i < nics.size(); ++i) result.nics[i] = chooser.number(chooser.of_nic(nics[i]));
  const Nodes first = nodes_of_first_nics(chooser, affinity, location, nics);
  result.staging = chooser.number(first);
  for (size_t i = 0; i < location.accelerators.size(); ++i) {
    const Nodes nodes = chooser.of_accelerator(location.accelerators[i]);
    result.accelerators[i] = nodes.empty() ? result.staging : chooser.number(nodes);
  }
  const Nodes own = chooser.of_rank();
  result.inside = own.empty() ? result.staging : chooser.number(own);
  for (const int node : first.empty() ? own : first) {
    const std::string& list = machine.numa_nodes[static_cast<size_t>(node)].processors;
    result.processors.add(ProcessorSet::parse(list).value_or(ProcessorSet()));
  }
  return result;
}

}  // namespace hetcomm::topology
