// Finds clusters: groups of hosts that reach each other at a higher rate than they reach other
// hosts. find_clusters() is a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetcomm::topology {

// The rate from each host to each other host, in parts per million of the rate that the NICs of the
// two hosts allow. The share from host i to host j is at i * hosts + j. 0: unknown.
using PairShares = std::vector<uint32_t>;

// Clusters hosts by single linkage: joins them in descending order of their pairs' shares. There is
// a jump between two successive shares if the greater is at least twice the smaller, so that noise
// of 10 % causes none. The groups that have formed before a jump are clusters if no known pair
// within a group has a share below the greater one. Uses the jump with the greatest ratio. If
// several jumps have that ratio, uses the one with the fewest clusters. Without a jump, all hosts
// are one cluster. Returns the cluster of each host. Clusters are numbered in the order of their
// first hosts.
std::vector<int> find_clusters(size_t hosts, const PairShares& shares);

}  // namespace hetcomm::topology
