// Near which NUMA nodes the memory and the threads of one rank lie. Pure.
//
// Data waits in memory near what moves it: a NIC's buffers lie near the NIC, staging memory near
// the device. Something may be local to several nodes (a whole package, or a bond over two cards).
// Then the nodes that it shares with the rank's accelerators count, and of these the ones on which
// the rank may run.
#pragma once

#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"
#include "topology/machine/rank_nics.h"

namespace hetcomm::topology {

// Nodes are the kernel's numbers; kNone: anywhere.
struct RankNodes {
  std::vector<int> accelerators;  // staging memory of each of RankPlace::accelerators
  std::vector<int> nics;          // buffers of each of the rank's NICs
  int staging = kNone;            // staging memory of a device that does not tell where it is
  int inside = kNone;             // what the rank reads of others on its host
  // Those of the nodes near the first NICs of its accelerators, or near its first NIC. Empty:
  // anywhere.
  ProcessorSet processors;
};

// |nics| is what nics_of_rank() has chosen. A machine of one node has nothing to choose: all may
// lie anywhere.
RankNodes nodes_of_rank(const Machine& machine, const Affinity& affinity, const RankPlace& place,
                        const std::vector<int>& nics);

}  // namespace hetcomm::topology
