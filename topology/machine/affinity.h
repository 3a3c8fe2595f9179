// Selects the NICs for the data of each accelerator and for the memory of each NUMA node. Pure:
// every rank on a host computes the same result from the same Machine.
//
// A user (an accelerator, or a NUMA node) gets its NICs by class of distance, nearest first. Its
// first NIC comes from an assignment that gives every user a NIC from its nearest class. Among
// these assignments, the one with the best worst share is chosen. A share is the NIC's rate divided
// by the number of its users. The other NICs follow by distance, then rate. Users spread over equal
// NICs, so that the second NICs are shared evenly too.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/machine/distance.h"
#include "topology/machine/machine.h"
#include "topology/machine/nic_rules.h"

namespace hetcomm::topology {

struct NicChoice {
  int nic = kNone;  // index of Machine::nics
  Distance distance = Distance::kOther;
  uint64_t share_mbit_per_s = 0;  // of the NIC, among its users at this place or before
  bool operator==(const NicChoice&) const = default;
};

// All NICs that one user may use, best first.
using NicOrder = std::vector<NicChoice>;

struct Affinity {
  std::vector<NicOrder> accelerators;  // in the order of Machine::accelerators
  std::vector<NicOrder> numa_nodes;    // by index of Machine::numa_nodes; one if none are known
};

Affinity assign_nics(const Machine& machine, const NicRules& rules);

// Returns the rate assumed for |nic|. A NIC with an unknown rate counts as the slowest NIC with a
// known one.
uint64_t counted_mbit_per_s(const Machine& machine, const Nic& nic);

}  // namespace hetcomm::topology
