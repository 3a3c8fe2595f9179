// Selects the NUMA nodes near which the memory and the threads of one rank are placed. Pure.
//
// Data is buffered in memory near the device that moves it: a NIC's buffers are near the NIC,
// staging memory is near the device. A device may be local to several nodes (a whole package, or a
// bond over two cards). The nodes that it shares with the rank's accelerators are then preferred,
// and among these the nodes on which the rank may run.
#pragma once

#include <vector>

#include "src/base/processor_set.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"
#include "topology/machine/rank_nics.h"

namespace hetcomm::topology {

// Selected nodes, as the kernel's numbers. kNone: anywhere.
struct RankNodes {
  std::vector<int> accelerators;  // staging memory of each of RankPlace::accelerators
  std::vector<int> nics;          // buffers of each of the rank's NICs
  int staging = kNone;            // staging memory of a device of unknown location
  int inside = kNone;             // memory that the rank reads from others on its host
  // The processors near the first NICs of the rank's accelerators, or near its first NIC. Empty:
  // anywhere.
  ProcessorSet processors;
};

// Selects the nodes for |nics|, the result of nics_of_rank(). On a machine with one node everything
// may be placed anywhere.
RankNodes nodes_of_rank(const Machine& machine, const Affinity& affinity, const RankPlace& place,
                        const std::vector<int>& nics);

}  // namespace hetcomm::topology
