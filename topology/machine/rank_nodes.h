// Selects the NUMA nodes on which the memory and the threads of one rank are placed. The function
// is pure.
//
// Data is buffered in memory near the device that moves it: a NIC's buffers are near the NIC, and
// staging memory is near the accelerator. A device may be near several nodes, such as those of a
// whole package, or of both cards of a bond. Among these nodes, those near the rank's accelerators
// are preferred, and then those on which the rank may run.
#pragma once

#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"
#include "topology/machine/rank_nics.h"

namespace hetcomm::topology {

// RankNodes holds the selected nodes, by the kernel's numbers. kNone: any node.
struct RankNodes {
  std::vector<int> accelerators;  // for staging memory of each of RankLocation::accelerators
  std::vector<int> nics;          // for buffers of each of the rank's NICs
  int staging = kNone;            // for staging memory of a device of unknown location
  int inside = kNone;             // for memory that other ranks of the host fill for this rank
  // The processors near the first NICs of the rank's accelerators, or near the rank's first NIC if
  // it has no accelerators. If the location of these NICs is unknown, the processors near the
  // accelerators. If their location is unknown too, the processors of the only node on which the
  // rank may run. Empty: any processor.
  ProcessorSet processors;
};

// Selects the nodes. |nics| is the result of nics_of_rank(). On a machine with fewer than two
// nodes, every node in the result is kNone.
RankNodes nodes_of_rank(const Machine& machine, const Affinity& affinity,
                        const RankLocation& location, const std::vector<int>& nics);

}  // namespace hetcomm::topology
