// Selects the NICs for the data of each accelerator and for the memory of each NUMA node. The
// functions are pure: every rank on a host computes the same result from the same Machine.
//
// A user (an accelerator, or a NUMA node) gets its NICs by capacity: the NIC's rate, or the rate of
// the narrowest link of the path to it. Equal NICs follow by the path's length (distance.h).
// The first NICs of all users are assigned together, so that the smallest share is as large as
// possible (first_nics.h). A share is the NIC's rate divided by the number of its users, or the
// rate of the path's narrowest link if that is less. Users spread over NICs that are equal to them,
// so that the second NICs are shared evenly too.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/machine/distance.h"
#include "topology/machine/machine.h"
#include "topology/machine/nic_rules.h"

namespace hetcomm::topology {

struct NicChoice {
  int nic = kNone;  // index in Machine::nics
  Distance distance = Distance::kOther;
  // The NIC's rate divided by the number of users that have it at this position or earlier, or the
  // rate of the path's narrowest link if that is less.
  uint64_t share_mbit_per_s = 0;
  bool operator==(const NicChoice&) const = default;
};

// More NICs of one user bring nothing, and make descriptions of hosts with hundreds of them large.
inline constexpr size_t kMaxNicsOfUser = 64;

// The NICs that one user may use, best first; at most kMaxNicsOfUser.
using NicOrder = std::vector<NicChoice>;

struct Affinity {
  std::vector<NicOrder> accelerators;  // in the order of Machine::accelerators
  std::vector<NicOrder> numa_nodes;    // as in Machine::numa_nodes; one entry if no node is known
};

Affinity assign_nics(const Machine& machine, const NicRules& rules);

// Returns the rate assumed for |nic|. An unknown rate counts as the slowest known rate of the
// machine.
uint64_t counted_mbit_per_s(const Machine& machine, const Nic& nic);

}  // namespace hetcomm::topology
