// Assigns each user (an accelerator or a NUMA node) its first NIC. The function is pure.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/machine/distance.h"

namespace hetcomm::topology {

// A NIC that a user may use, and the path to it.
struct NicOption {
  int nic = kNone;
  Path path;
};

// The load of a NIC or of a PCIe link: the number of its users divided by its rate.
struct Load {
  uint64_t users = 0;
  uint64_t mbit_per_s = 1;
  bool operator<(const Load& other) const {
    return users * other.mbit_per_s < other.users * mbit_per_s;
  }
};

// Assigns each user one of its |options|. Returns the index of the NIC for each user, or kNone for
// a user without options. |rates| has the rate of each NIC in Mbit/s. No rate may be 0.
//
// A user's share of a NIC is the NIC's rate divided by the number of its users, or the rate of the
// narrowest link between user and NIC if that is less. The function makes the smallest share as
// large as possible. For this purpose, the n-th user of a NIC adds a load of n / rate, and a path
// whose narrowest link is narrower than the NIC adds a load of 1 / rate of that link. The result
// has the smallest maximum load of all assignments, among these the smallest second-highest load,
// and so on.
//
// Ties are broken by path length. The result has the fewest paths of the longest Distance, then the
// fewest of the next one, and so on. After the Distances, the smallest total number of bridges
// counts, then the smallest sum of NUMA distances, and then the fewest paths to other packages.
std::vector<int> assign_first_nics(const std::vector<std::vector<NicOption>>& options,
                                   const std::vector<uint64_t>& rates);

}  // namespace hetcomm::topology
