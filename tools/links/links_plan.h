// Plans the transfers that hetcomm_bench links measures, and their rounds. All functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tools {

// A transfer from one host to another, or within one host. Hosts are indices.
using HostPair = std::pair<int, int>;
// Transfers that are measured at the same time.
using HostRound = std::vector<HostPair>;

// With at most this many hosts, every pair is measured on its own. With more, all pairs of a round
// are measured concurrently, which is just as accurate for hosts of one cluster.
inline constexpr int kMaxAlone = 8;
// With at most this many hosts, all pairs are measured, and each host has a separate round with
// several others. With more hosts, each one is measured with the hosts at distances 1, 2, 4, 8, ...
// in the list of hosts, and at 3, 5 and 7 times these distances. The hosts of each cluster then
// form groups, and one host of every group has its transfers with several others in each round.
inline constexpr int kMaxTournament = 64;
// The maximum number of hosts that send to one host, or receive from one, at the same time.
inline constexpr size_t kMaxFan = 8;
// The maximum number of pairs of hosts that send from cluster to cluster at the same time.
inline constexpr size_t kMaxAcross = 16;
// At most this many pairs of clusters are measured one after the other, with several hosts of each
// cluster. If there are more, one pair of hosts represents each pair of clusters, and disjoint
// pairs are measured at the same time.
inline constexpr size_t kMaxClusterPairs = 256;

// Distributes all pairs of |hosts| over rounds in which no host occurs twice: a tournament by the
// circle method. Each pair occurs once. With more than kMaxTournament hosts, only a sample of the
// pairs occurs (see kMaxTournament).
std::vector<HostRound> tournament(int hosts);

// Returns the rounds that measure pairs of hosts. The two directions of a pair are in different
// rounds.
std::vector<HostRound> first_rounds(int hosts);

// Returns the rounds to measure once the clusters are known: each host with several others, pairs
// of clusters, and each cluster with all others. With more than kMaxAlone hosts, also measures one
// pair of hosts alone for every two clusters. |cluster_of| is indexed by host.
std::vector<HostRound> further_rounds(const std::vector<int>& cluster_of);

// Returns |count| random rounds of one to four transfers to check the model. Returns none if there
// is only one host.
std::vector<HostRound> check_rounds(int hosts, size_t count, uint32_t seed);

}  // namespace tools
