// Selects the NICs of one rank. The functions are pure.
#pragma once

#include <cstddef>
#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The location of a rank's memory.
struct RankLocation {
  std::vector<int> accelerators;  // indices in Machine::accelerators of those that the rank uses
  std::vector<int> numa_nodes;    // indices in Machine::numa_nodes of those where the rank may run
};

// The NICs of a rank, as indices in Machine::nics.
struct RankNics {
  std::vector<int> used;    // best first
  std::vector<int> slower;  // left out because they are much slower than others
};

// Selects the NICs of a rank: the first |most| of each of its accelerators. A rank without
// accelerators gets the NICs of its NUMA node if it has exactly one, and otherwise those of the
// machine's first node. The first choices of all accelerators precede the second choices. One more
// NIC follows for each subnet or fabric not yet covered, since a peer may be reachable only there.
// A NIC with less than a quarter of the fastest rate is left out, since the other NICs would wait
// for it.
RankNics nics_of_rank(const Machine& machine, const Affinity& affinity,
                      const RankLocation& location, size_t most);

// Selects the NICs for one accelerator or NUMA node of a rank: the first |most| of |order| that are
// in |chosen|, the rank's NICs. Returns their indices in |chosen|.
std::vector<size_t> nics_of_user(const NicOrder& order, const std::vector<int>& chosen,
                                 size_t most);

// Returns the indices in Machine::numa_nodes of the nodes that contain some of |processors|.
std::vector<int> numa_nodes_of_processors(const Machine& machine, const ProcessorSet& processors);

}  // namespace hetcomm::topology
