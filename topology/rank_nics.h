// Which NICs one rank uses. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "topology/affinity.h"
#include "topology/machine.h"

namespace hetcomm::topology {

// Where the memory of a rank is.
struct RankPlace {
  std::vector<int> accelerators;  // that it uses, as indices of Machine::accelerators
  int numa_node = kNone;          // on which it runs, as index of Machine::numa_nodes
};

// Indices of Machine::nics: the first |most| of each of the rank's accelerators, or of its NUMA node
// if it uses none; the first choice of everyone stands before the second ones. One more follows for
// each subnet or fabric that has none yet: a peer may be there only. A NIC that is much slower than the
// quickest of them is left out: it would be waited for.
std::vector<int> nics_of_rank(const Machine& machine, const Affinity& affinity,
                              const RankPlace& place, size_t most);

// The index of the NUMA node that has |processor|; kNone: not known.
int numa_node_of_processor(const Machine& machine, int processor);

}  // namespace hetcomm::topology
