// The rounds of hetcomm_bench links, from a few hosts to more than are measured pair by pair:
//   - the pairs in one round are disjoint, and up to 64 hosts each pair occurs once;
//   - each host is measured with other hosts in both directions, even with more than 64 hosts;
//   - the rounds measure every two clusters in both directions, however many there are.
#include "tools/links/links_plan.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace tools {
namespace {

constexpr int kHosts[] = {2, 3, 8, 9, 16, 64, 65, 200};

TEST(LinksPlan, PairsOfARoundAreDisjointAndNeverRepeat) {
  for (const int hosts : kHosts) {
    std::set<HostPair> pairs;
    for (const HostRound& round : tournament(hosts)) {
      std::set<int> busy;
      for (const HostPair& pair : round) {
        EXPECT_TRUE(busy.insert(pair.first).second) << hosts;
        EXPECT_TRUE(busy.insert(pair.second).second) << hosts;
        EXPECT_TRUE(pairs.insert(pair).second) << hosts;
      }
    }
    if (hosts > kMaxTournament) continue;
    EXPECT_EQ(pairs.size(), static_cast<size_t>(hosts * (hosts - 1) / 2));
  }
}

TEST(LinksPlan, EveryHostSendsAndReceives) {
  for (const int hosts : kHosts) {
    std::set<int> senders;
    std::set<int> receivers;
    for (const HostRound& round : first_rounds(hosts)) {
      for (const HostPair& pair : round) {
        senders.insert(pair.first);
        receivers.insert(pair.second);
      }
    }
    EXPECT_EQ(senders.size(), static_cast<size_t>(hosts));
    EXPECT_EQ(receivers.size(), static_cast<size_t>(hosts));
  }
}

TEST(LinksPlan, EveryPairOfClustersIsMeasured) {
  for (const int hosts : kHosts) {
    for (const int clusters : {1, 2, 3, 16, 17, 20, 100}) {
      if (clusters > hosts) continue;
      std::vector<int> cluster_of;
      for (int host = 0; host < hosts; ++host) cluster_of.push_back(host % clusters);
      std::vector<int> sizes(static_cast<size_t>(clusters), 0);
      for (const int cluster : cluster_of) ++sizes[static_cast<size_t>(cluster)];
      std::set<HostPair> measured;
      std::vector<HostRound> rounds = first_rounds(hosts);
      const std::vector<HostRound> further = further_rounds(cluster_of);
      rounds.insert(rounds.end(), further.begin(), further.end());
      for (const HostRound& round : rounds) {
        EXPECT_FALSE(round.empty());
        for (const auto& [from, to] : round) {
          EXPECT_NE(from, to);
          measured.emplace(cluster_of[static_cast<size_t>(from)],
                           cluster_of[static_cast<size_t>(to)]);
        }
      }
      for (int from = 0; from < clusters; ++from) {
        for (int to = 0; to < clusters; ++to) {
          if (from == to && sizes[static_cast<size_t>(from)] < 2) continue;
          EXPECT_TRUE(measured.count({from, to}) == 1)
              << hosts << " hosts, " << clusters << " clusters: " << from << " to " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tools
