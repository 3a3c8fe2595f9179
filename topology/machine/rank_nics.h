// Selects the NICs of one rank. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The location of a rank's memory.
struct RankPlace {
  std::vector<int> accelerators;  // used accelerators, as indices of Machine::accelerators
  std::vector<int> numa_nodes;    // usable nodes, as indices of Machine::numa_nodes
};

// Returns indices in Machine::nics: the first |most| NICs of each of the rank's accelerators. A
// rank without accelerators uses its NUMA node instead (the first one if it may run on several).
// The first choices of all users precede the second choices. One more NIC follows for each subnet
// or fabric not yet covered, since a peer may be reachable only there. A NIC that is much slower
// than the fastest is left out, since the other NICs would wait for it.
std::vector<int> nics_of_rank(const Machine& machine, const Affinity& affinity,
                              const RankPlace& place, size_t most);

// Selects the NICs from |chosen| for a user of the rank whose preferences are |order|: the first
// |most| in |order| that were chosen. Returns indices in |chosen|, or an empty list if none of its
// NICs was chosen.
std::vector<size_t> nics_of_user(const NicOrder& order, const std::vector<int>& chosen,
                                 size_t most);

// Returns indices of the NUMA nodes that contain some of |processors|.
std::vector<int> numa_nodes_of_processors(const Machine& machine, const ProcessorSet& processors);

}  // namespace hetcomm::topology
