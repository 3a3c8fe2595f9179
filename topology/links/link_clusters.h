// Finds clusters: groups of hosts that reach each other at a higher rate than they reach other
// hosts. find_clusters() is pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetcomm::topology {

// The rate from each host to each other host, in parts per million of the rate that the NICs of the
// two hosts allow. The share from host i to host j is at i * hosts + j. 0: unknown.
using PairShares = std::vector<uint32_t>;

// Finds clusters by a jump. Hosts are joined in descending order of their pairs' shares (single
// linkage). A jump lies between two successive shares if the greater is at least twice the lesser.
// The hosts joined before a jump form clusters if no known pair within one of them has less than
// the greater share. The jump with the greatest factor is chosen. Among jumps with equal factors,
// the one with fewer clusters is chosen. Noise of 10 % makes no jump. Without a jump all hosts are
// one cluster. Returns the cluster of each host. Clusters are numbered in the order of their first
// hosts.
std::vector<int> find_clusters(size_t hosts, const PairShares& shares);

}  // namespace hetcomm::topology
