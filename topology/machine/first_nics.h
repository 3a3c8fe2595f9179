// Assigns each user its first NIC. The function is pure.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/machine/distance.h"

namespace hetcomm::topology {

// A NIC that a user may use.
struct NicOption {
  int nic = kNone;
  Path path;
};

// The load of a NIC, or of a narrow part of a path: the number of its users divided by its rate.
struct Load {
  uint64_t users = 0;
  uint64_t mbit_per_s = 1;
  bool operator<(const Load& other) const {
    return users * other.mbit_per_s < other.users * mbit_per_s;
  }
};

// Assigns each user one of its |options|, and returns the NICs by user; kNone: a user without
// options. |rates| has the rate of each NIC in Mbit/s, none of them 0.
//
// A user's share of a NIC is the NIC's rate divided by the number of its users, or the rate of the
// narrowest link between them if that is less. The smallest share is as large as possible, in
// detail: the n-th user of a NIC adds a load of n / rate, and a link that is narrower than the NIC
// adds 1 / rate of the link. Of all assignments, the result has the lowest highest load, then the
// lowest second one, and so on. Of these, it has the fewest paths of the longest Distance, then of
// the next one, then the smallest sums of bridges, of NUMA distances, and of paths to other
// packages.
std::vector<int> assign_first_nics(const std::vector<std::vector<NicOption>>& options,
                                   const std::vector<uint64_t>& rates);

}  // namespace hetcomm::topology
