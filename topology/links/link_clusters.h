// Finds clusters: hosts that reach each other at a higher rate than the others. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetcomm::topology {

// The rate of a pair of hosts as parts in a million of what the two hosts' own NICs can do; 0:
// unknown. That of i and j stands at i * hosts + j.
using PairShares = std::vector<uint32_t>;

// Clusters by a jump: hosts are joined in the order of their pairs' shares, the greatest first
// (single linkage). Between two successive shares, of which the greater is at least twice the less,
// the hosts joined so far are clusters if no known pair inside one has less than the greater share.
// The jump with the greatest factor counts, and of equal ones the one with fewer clusters. Noise of
// 10 % makes no jump. Without a jump all hosts are one cluster. The result is the cluster of each
// host; clusters are numbered in the order of their first hosts.
std::vector<int> find_clusters(size_t hosts, const PairShares& shares);

}  // namespace hetcomm::topology
