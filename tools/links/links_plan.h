// Plans the transfers that hetcomm_bench links measures, and their rounds. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tools {

// A transfer from one host to another, or within one host, with hosts as indices.
using HostPair = std::pair<int, int>;
using HostRound = std::vector<HostPair>;

// With at most this many hosts, every pair is measured on its own. With more, all pairs of a round
// are measured concurrently, which is just as accurate for hosts of one cluster.
inline constexpr int kMaxAlone = 8;
// Up to this many hosts all pairs are measured, and each host with several others has its own
// round. With more hosts, each one is measured with the hosts at distances 1, 2, 4, 8, ... in the
// list of hosts and at 3, 5 and 7 times these distances, and hosts of different groups share
// rounds.
inline constexpr int kMaxTournament = 64;
// Limit on the hosts that concurrently send to one host or receive from one, and on the hosts that
// send from cluster to cluster.
inline constexpr size_t kMaxFan = 8;
inline constexpr size_t kMaxAcross = 16;
// Up to this many pairs of clusters are measured one after the other, with several hosts of each
// cluster. With more pairs, one pair of hosts represents each pair of clusters, and disjoint pairs
// are measured concurrently.
inline constexpr size_t kMaxClusterPairs = 256;

// Distributes all pairs of |hosts| over rounds in which no host occurs twice: a tournament by the
// circle method. Each pair occurs once. With more than kMaxTournament hosts, only a sample of the
// pairs occurs, as described there.
std::vector<HostRound> tournament(int hosts);

// Returns the measured rounds of pairs, with each direction separately.
std::vector<HostRound> first_rounds(int hosts);

// Returns the rounds to measure once clusters are known: one pair of hosts alone for each two
// clusters, each host with several others, pairs of clusters, and each cluster with all others.
// |cluster_of| is indexed by host.
std::vector<HostRound> further_rounds(const std::vector<int>& cluster_of);

// Returns |count| random rounds of one to four transfers to check the model.
std::vector<HostRound> check_rounds(int hosts, size_t count, uint32_t seed);

}  // namespace tools
