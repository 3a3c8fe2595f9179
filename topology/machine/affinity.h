// Which NICs the data of each accelerator, and of each NUMA node's memory, goes over. Pure: every
// rank of a host computes the same from the same Machine.
//
// A user (an accelerator, or a NUMA node) gets its NICs nearest class of distance first. Its first
// NIC comes from an assignment: of all that give every user one of its nearest class, the one is
// taken whose worst share is best. A share is the NIC's rate divided by the users that got it. The
// other NICs follow by distance, then rate; among equal ones users spread, so that the second NICs
// are shared evenly too.
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
  uint64_t share_mbit_per_s = 0;  // of the NIC, among the users that got it at this place or before
  bool operator==(const NicChoice&) const = default;
};

// All NICs that one user may use, best first.
using NicOrder = std::vector<NicChoice>;

struct Affinity {
  std::vector<NicOrder> accelerators;  // in the order of Machine::accelerators
  std::vector<NicOrder> numa_nodes;    // in that of Machine::numa_nodes; one where none are known
};

Affinity assign_nics(const Machine& machine, const NicRules& rules);

// The rate by which |nic| counts. A NIC that does not tell its rate counts as the slowest that
// does.
uint64_t counted_mbit_per_s(const Machine& machine, const Nic& nic);

}  // namespace hetcomm::topology
