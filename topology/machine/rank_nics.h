// Selects the NICs of one rank. The functions are pure.
#pragma once

#include <cstddef>
#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The accelerators that a rank uses and the NUMA nodes on which it may run.
struct RankLocation {
  std::vector<int> accelerators;  // indices in Machine::accelerators
  std::vector<int> numa_nodes;    // indices in Machine::numa_nodes
};

// The NICs of a rank, as indices in Machine::nics.
struct RankNics {
  std::vector<int> used;    // best first
  std::vector<int> slower;  // not used, because they are much slower than the fastest one
};

// Selects the NICs of a rank, which are the first |most| NICs of each of its accelerators. A rank
// without accelerators gets the first |most| NICs of a NUMA node instead. If it may run on exactly
// one node, this is that node, otherwise the machine's first node.
//
// The first choices of all accelerators precede the second choices. One more NIC follows for each
// subnet or fabric that is not covered yet, since a peer may be reachable only there. The slowest
// NICs are put into RankNics::slower as long as each has less than a quarter of the fastest rate,
// and together they would add at most a sixteenth to the rate of the others.
RankNics nics_of_rank(const Machine& machine, const Affinity& affinity,
                      const RankLocation& location, size_t most);

// Selects the NICs for one accelerator or NUMA node of a rank, which are the first |most| NICs in
// |order| that are also in |chosen|, the rank's NICs. Returns their indices in |chosen|.
std::vector<size_t> nics_of_user(const NicOrder& order, const std::vector<int>& chosen,
                                 size_t most);

// Returns the indices in Machine::numa_nodes of the nodes that have at least one of |processors|.
std::vector<int> numa_nodes_of_processors(const Machine& machine, const ProcessorSet& processors);

}  // namespace hetcomm::topology
