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

// Clusters hosts by single linkage: joins them in descending order of their pairs' shares. A jump
// lies between two successive shares if the greater is at least twice the lesser, so that noise of
// 10 % makes none. The groups that exist just before a jump are clusters if no known pair within a
// group has a share below the greater one. The jump with the greatest ratio counts; of equal ones,
// that with the fewest clusters. Without a jump, all hosts are one cluster. Returns the cluster of
// each host. Clusters are numbered in the order of their first hosts.
std::vector<int> find_clusters(size_t hosts, const PairShares& shares);

}  // namespace hetcomm::topology
