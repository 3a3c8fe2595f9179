// Which NICs one rank uses. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Where the memory of a rank is.
struct RankPlace {
  std::vector<int> accelerators;  // that it uses, as indices of Machine::accelerators
  std::vector<int> numa_nodes;    // on which it may run, as indices of Machine::numa_nodes
};

// Indices of Machine::nics: the first |most| of each of the rank's accelerators, or of its NUMA
// node if it uses none (the first one where it may run on several); the first choice of everyone
// stands before the second ones. One more follows for each subnet or fabric that has none yet: a
// peer may be there only. A NIC that is much slower than the quickest of them is left out: it would
// be waited for.
std::vector<int> nics_of_rank(const Machine& machine, const Affinity& affinity,
                              const RankPlace& place, size_t most);

// Which of |chosen| one of the rank's users takes, whose NICs are in |order|: the first |most| of
// its order that were chosen. As indices of |chosen|; none where no NIC of its was chosen.
std::vector<size_t> nics_of_user(const NicOrder& order, const std::vector<int>& chosen,
                                 size_t most);

// Indices of the NUMA nodes that have some of |processors|.
std::vector<int> numa_nodes_of_processors(const Machine& machine, const ProcessorSet& processors);

}  // namespace hetcomm::topology
