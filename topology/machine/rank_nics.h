// Selects the NICs of one rank. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Location of a rank's memory.
struct RankPlace {
  std::vector<int> accelerators;  // accelerators that it uses, as indices of Machine::accelerators
  std::vector<int> numa_nodes;    // nodes that it may run on, as indices of Machine::numa_nodes
};

// Returns indices of Machine::nics: the first |most| of each of the rank's accelerators. A rank
// without accelerators uses its NUMA node instead (the first one if it may run on several). The
// first choices of all users come before the second ones. One more NIC follows for each subnet or
// fabric not yet covered, since a peer may be there only. A NIC that is much slower than the
// fastest of them is left out, since the others would wait for it.
std::vector<int> nics_of_rank(const Machine& machine, const Affinity& affinity,
                              const RankPlace& place, size_t most);

// Selects the NICs of |chosen| that a user of the rank with the NICs in |order| takes: the first
// |most| of its order that were chosen. Returns indices of |chosen|, or an empty list if none of
// its NICs was chosen.
std::vector<size_t> nics_of_user(const NicOrder& order, const std::vector<int>& chosen,
                                 size_t most);

// Indices of the NUMA nodes that contain some of |processors|.
std::vector<int> numa_nodes_of_processors(const Machine& machine, const ProcessorSet& processors);

}  // namespace hetcomm::topology
