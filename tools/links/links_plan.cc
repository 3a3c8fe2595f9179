#include "tools/links/links_plan.h"

#include <algorithm>

namespace tools {
namespace {

HostRound turned(const HostRound& round) {
  HostRound result;
  for (const auto& [from, to] : round) result.emplace_back(to, from);
  return result;
}

std::vector<std::vector<int>> clusters_of(const std::vector<int>& cluster_of) {
  std::vector<std::vector<int>> clusters;
  for (size_t host = 0; host < cluster_of.size(); ++host) {
    const auto cluster = static_cast<size_t>(cluster_of[host]);
    if (clusters.size() <= cluster) clusters.resize(cluster + 1);
    clusters[cluster].push_back(static_cast<int>(host));
  }
  return clusters;
}

// Pairs all of |from| with all of |to| if this gives at most |most| pairs. Otherwise forms at most
// |most| pairs, for which the hosts of each side take turns.
HostRound crossing(const std::vector<int>& from, const std::vector<int>& to, size_t most) {
  HostRound round;
  if (from.size() * to.size() <= most) {
    for (const int one : from) {
      for (const int other : to) {
        if (one != other) round.emplace_back(one, other);
      }
    }
    return round;
  }
  const size_t count = std::min(most, std::max(from.size(), to.size()));
  // Within one cluster every host sends to the next.
  const size_t shift = from == to ? 1 : 0;
  for (size_t i = 0; i < count; ++i) {
    const int one = from[i % from.size()];
    const int other = to[(i + shift) % to.size()];
    if (one != other) round.emplace_back(one, other);
  }
  return round;
}

// Pairs each host with up to kMaxFan others at the same time, in one round for each direction.
// Hosts in the same cluster come first, since no trunk slows them. Adds nothing for fewer than
// three hosts.
void add_fans(const std::vector<int>& cluster_of, std::vector<HostRound>& rounds) {
  const int hosts = static_cast<int>(cluster_of.size());
  if (hosts < 3) return;
  for (int host = 0; host < hosts; ++host) {
    HostRound fan;
    for (const bool near : {true, false}) {
      for (int step = 1; step < hosts && fan.size() < kMaxFan; ++step) {
        const int other = (host + step) % hosts;
        const bool same =
            cluster_of[static_cast<size_t>(host)] == cluster_of[static_cast<size_t>(other)];
        if (same == near) fan.emplace_back(host, other);
      }
    }
    rounds.push_back(fan);
    rounds.push_back(turned(fan));
  }
}

// Divides |hosts| into groups of kMaxFan + 1 or more. Fewer hosts form one group.
void add_groups(const std::vector<int>& hosts, std::vector<std::vector<int>>& groups) {
  const size_t count = std::max<size_t>(hosts.size() / (kMaxFan + 1), 1);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = hosts.size() * i / count;
    const size_t end = hosts.size() * (i + 1) / count;
    groups.emplace_back(hosts.begin() + static_cast<ptrdiff_t>(begin),
                        hosts.begin() + static_cast<ptrdiff_t>(end));
  }
}

// Adds rounds like add_fans(), but their number does not grow with the number of hosts. Hosts form
// groups within the clusters, and each round serves one host of every group.
void add_fans_of_groups(const std::vector<std::vector<int>>& clusters,
                        std::vector<HostRound>& rounds) {
  std::vector<std::vector<int>> groups;
  for (const std::vector<int>& cluster : clusters) add_groups(cluster, groups);
  size_t largest = 0;
  for (const std::vector<int>& group : groups) largest = std::max(largest, group.size());
  for (size_t turn = 0; turn < largest; ++turn) {
    HostRound round;
    for (const std::vector<int>& group : groups) {
      for (size_t step = 1; turn < group.size() && step < group.size() && step <= kMaxFan; ++step) {
        round.emplace_back(group[turn], group[(turn + step) % group.size()]);
      }
    }
    if (round.empty()) continue;
    rounds.push_back(round);
    rounds.push_back(turned(round));
  }
}

// Returns hosts from all clusters except |own|: the first of each, then the second of each and so
// on, until there are at least |wanted| or no others are left.
std::vector<int> some_of_others(const std::vector<std::vector<int>>& clusters,
                                const std::vector<int>& own, size_t wanted) {
  std::vector<int> others;
  size_t largest = 0;
  for (const std::vector<int>& each : clusters) largest = std::max(largest, each.size());
  for (size_t index = 0; index < largest && (index == 0 || others.size() < wanted); ++index) {
    for (const std::vector<int>& each : clusters) {
      if (&each != &own && index < each.size()) others.push_back(each[index]);
    }
  }
  return others;
}

// Distributes all pairs of |count| participants over rounds. No participant occurs twice in a
// round.
std::vector<HostRound> circle(int count) {
  std::vector<HostRound> rounds;
  // The last participant is fixed, and the others rotate. If the number is odd, the last
  // participant does not exist.
  const int even = count + count % 2;
  for (int turn = 0; turn < even - 1; ++turn) {
    HostRound round;
    const auto add = [&](int one, int other) {
      if (one < count && other < count) {
        round.emplace_back(std::min(one, other), std::max(one, other));
      }
    };
    add(turn, even - 1);
    for (int i = 1; i < even / 2; ++i) {
      add((turn + i) % (even - 1), (turn - i + even - 1) % (even - 1));
    }
    if (!round.empty()) rounds.push_back(std::move(round));
  }
  return rounds;
}

// Adds rounds with one pair of hosts for every two clusters, and one pair inside each cluster that
// has several hosts. Disjoint pairs share a round.
void add_sampled_clusters(const std::vector<std::vector<int>>& clusters,
                          std::vector<HostRound>& rounds) {
  for (const HostRound& pairs : circle(static_cast<int>(clusters.size()))) {
    HostRound round;
    for (const auto& [one, other] : pairs) {
      round.emplace_back(clusters[static_cast<size_t>(one)].front(),
                         clusters[static_cast<size_t>(other)].front());
    }
    rounds.push_back(round);
    rounds.push_back(turned(round));
  }
  HostRound inside;
  for (const std::vector<int>& cluster : clusters) {
    if (cluster.size() > 1) inside.emplace_back(cluster[0], cluster[1]);
  }
  if (!inside.empty()) rounds.push_back(std::move(inside));
}

// Returns 1, 2, 4, 8, ... and their multiples by 3, 5 and 7, so that clusters that alternate in the
// list of hosts also have pairs within each cluster.
std::vector<int> sampled_distances(int hosts) {
  std::vector<int> distances;
  for (const int factor : {1, 3, 5, 7}) {
    for (int distance = factor; distance < hosts; distance *= 2) distances.push_back(distance);
  }
  return distances;
}

}  // namespace

std::vector<HostRound> tournament(int hosts) {
  std::vector<HostRound> rounds;
  if (hosts > kMaxTournament) {
    // Splits the pairs of each distance into two rounds, in which no host occurs twice.
    for (const int distance : sampled_distances(hosts)) {
      for (const int parity : {0, 1}) {
        HostRound round;
        for (int host = 0; host + distance < hosts; ++host) {
          if (host / distance % 2 == parity) round.emplace_back(host, host + distance);
        }
        if (!round.empty()) rounds.push_back(std::move(round));
      }
    }
    return rounds;
  }
  return circle(hosts);
}

std::vector<HostRound> first_rounds(int hosts) {
  std::vector<HostRound> rounds;
  for (const HostRound& round : tournament(hosts)) {
    if (hosts > kMaxAlone) {
      rounds.push_back(round);
      rounds.push_back(turned(round));
      continue;
    }
    for (const auto& [one, other] : round) {
      rounds.push_back({{one, other}});
      rounds.push_back({{other, one}});
    }
  }
  return rounds;
}

std::vector<HostRound> further_rounds(const std::vector<int>& cluster_of) {
  std::vector<HostRound> rounds;
  const std::vector<std::vector<int>> clusters = clusters_of(cluster_of);
  if (static_cast<int>(cluster_of.size()) > kMaxTournament) {
    add_fans_of_groups(clusters, rounds);
  } else {
    add_fans(cluster_of, rounds);
  }
  if (clusters.size() * clusters.size() > kMaxClusterPairs) {
    add_sampled_clusters(clusters, rounds);
    return rounds;
  }
  for (const std::vector<int>& from : clusters) {
    for (const std::vector<int>& to : clusters) {
      if (&from == &to && from.size() < 2) continue;
      const HostRound round = crossing(from, to, kMaxAcross);
      if (static_cast<int>(cluster_of.size()) > kMaxAlone) rounds.push_back({round.front()});
      if (round.size() > 1) rounds.push_back(round);
    }
  }
  if (clusters.size() < 3) return rounds;
  for (const std::vector<int>& cluster : clusters) {
    // Takes enough hosts to fill the cluster's uplink, so that the other hosts' NICs do not limit
    // it.
    const std::vector<int> others =
        some_of_others(clusters, cluster, std::min(cluster.size(), kMaxAcross));
    const HostRound round = crossing(cluster, others, kMaxAcross);
    rounds.push_back(round);
    rounds.push_back(turned(round));
  }
  return rounds;
}

std::vector<HostRound> check_rounds(int hosts, size_t count, uint32_t seed) {
  std::vector<HostRound> rounds;
  std::mt19937 random(seed);
  const auto draw = [&](int most) {
    return static_cast<int>(random() % static_cast<uint32_t>(most));
  };
  while (hosts > 1 && rounds.size() < count) {
    HostRound round;
    // The first four rounds have 1, 2, 3 and 4 transfers.
    const size_t size = rounds.size() < 4 ? rounds.size() + 1 : static_cast<size_t>(1 + draw(4));
    while (round.size() < size) {
      const int from = draw(hosts);
      const int to = draw(hosts);
      if (from == to) continue;
      const bool there = std::find(round.begin(), round.end(), HostPair(from, to)) != round.end();
      // With few hosts there are fewer pairs than the round needs: two hosts have only two.
      if (there && static_cast<int>(round.size()) >= hosts * (hosts - 1)) break;
      if (!there) round.emplace_back(from, to);
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace tools
