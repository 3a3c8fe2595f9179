// Selects the NUMA nodes on which the memory and the threads of one rank are placed. The function
// is pure.
//
// A NIC's buffers are placed near the NIC, and staging memory near the accelerator. A device may be
// near several nodes, for example all nodes of a package, or those of both cards of a bond. Nodes
// near the rank's accelerators are then preferred, and after these the nodes on which the rank may
// run.
#pragma once

#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"
#include "topology/machine/rank_nics.h"

namespace hetcomm::topology {

// RankNodes holds the kernel's numbers of the selected nodes. kNone stands for any node.
struct RankNodes {
  std::vector<int> accelerators;  // for staging memory, by index in RankLocation::accelerators
  std::vector<int> nics;          // for buffers of NICs, by index in the list of the rank's NICs
  int staging = kNone;            // for staging memory of a device at an unknown location
  int inside = kNone;             // for memory that other ranks of the host write for this rank
  // The processors for the rank's threads. Empty stands for any processor. They are near the first
  // NICs of the rank's accelerators, or near the rank's first NIC if it has no accelerators. If the
  // location of these NICs is unknown, they are near the accelerators. If that is unknown too, they
  // are those of the node on which the rank may run, provided there is only one.
  ProcessorSet processors;
};

// Selects the nodes. |nics| is RankNics::used from nics_of_rank(). On a machine with fewer than two
// nodes, all nodes in the result are kNone, and |processors| is empty.
RankNodes nodes_of_rank(const Machine& machine, const Affinity& affinity,
                        const RankLocation& location, const std::vector<int>& nics);

}  // namespace hetcomm::topology
