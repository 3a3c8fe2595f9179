// Finds clusters: hosts that reach each other at a higher rate than the others. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetcomm::topology {

// The rate of each pair of hosts, in parts per million of the rate that the two hosts' own NICs
// allow. 0: unknown. The pair of i and j is at i * hosts + j.
using PairShares = std::vector<uint32_t>;

// Finds clusters by a jump. Hosts are joined in descending order of their pairs' shares (single
// linkage). A jump lies between two successive shares if the greater is at least twice the lesser.
// The hosts joined before a jump form clusters if no known pair within one of them has less than
// the greater share. The jump with the greatest factor is chosen; among equal jumps, the one with
// fewer clusters. Noise of 10 % makes no jump. Without a jump all hosts are one cluster. Returns
// the cluster of each host. Clusters are numbered in the order of their first hosts.
std::vector<int> find_clusters(size_t hosts, const PairShares& shares);

}  // namespace hetcomm::topology
