// Selects the NICs for the data of each accelerator and for the memory of each NUMA node. The
// functions are pure: every rank on a host computes the same result from the same Machine.
//
// An accelerator or a NUMA node is called a user of NICs. The first NICs of all users are assigned
// together, so that the smallest share is as large as possible (first_nics.h). A user's share is
// the NIC's rate divided by the number of its users, or the rate of the narrowest link on the path
// if that is less.
//
// The other NICs of a user follow by capacity, highest first. The capacity is the NIC's rate or the
// rate of the narrowest link on the path, whichever is less. Among NICs of equal capacity, those
// with a shorter path come first (distance.h). If several NICs are equally good for several users,
// the users are distributed evenly over them.
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
  // The NIC's rate divided by the number of users that have the NIC at this position of their order
  // or an earlier one, or the rate of the narrowest link on the path if that is less.
  uint64_t share_mbit_per_s = 0;
  bool operator==(const NicChoice&) const = default;
};

// The maximum number of NICs per user. More would not help the user, and would make the affinity of
// hosts with hundreds of NICs large.
inline constexpr size_t kMaxNicsOfUser = 64;

// The NICs that one user may use, best first. There are at most kMaxNicsOfUser.
using NicOrder = std::vector<NicChoice>;

struct Affinity {
  std::vector<NicOrder> accelerators;  // in the order of Machine::accelerators
  std::vector<NicOrder> numa_nodes;    // as in Machine::numa_nodes, or one entry if that is empty
};

Affinity assign_nics(const Machine& machine, const NicRules& rules);

// Returns the rate of |nic|. If it is unknown, returns the slowest known rate of any NIC of the
// machine, or 1 if no rate is known.
uint64_t counted_mbit_per_s(const Machine& machine, const Nic& nic);

}  // namespace hetcomm::topology
