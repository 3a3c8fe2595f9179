// TwoLevels groups the ranks of a problem into clusters of nearby ranks, each with one leader.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/core/collectives/members.h"
#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

class TwoLevels {
 public:
  explicit TwoLevels(const Problem& problem) : problem_(problem), placement_(*problem.placement) {}

  // Returns the number of clusters, which are in the order of their first ranks.
  uint32_t count() const { return placement_.cluster_count(); }
  const std::vector<uint32_t>& ranks_of(uint32_t cluster) const {
    return placement_.clusters[cluster];
  }
  uint32_t cluster_of(uint32_t rank) const { return placement_.cluster_of[rank]; }
  // Returns the index of |rank| in its cluster.
  uint32_t index_of(uint32_t rank) const { return placement_.index_of[rank]; }
  // Returns the number of ranks in the smallest cluster.
  uint32_t smallest() const { return placement_.smallest; }

  // Return this rank's cluster, this rank's index in it, and all ranks of the cluster.
  uint32_t cluster() const { return cluster_of(problem_.rank); }
  uint32_t index() const { return index_of(problem_.rank); }
  const std::vector<uint32_t>& mates() const { return ranks_of(cluster()); }
  Members own_cluster() const { return {static_cast<uint32_t>(mates().size()), index(), mates()}; }

  // Returns the rank that represents |cluster|.
  uint32_t leader_of(uint32_t cluster) const {
    const bool of_root = has_root(problem_.kind) && cluster_of(problem_.root) == cluster;
    return of_root ? problem_.root : ranks_of(cluster)[0];
  }
  uint32_t leader() const { return leader_of(cluster()); }
  bool leads() const { return leader() == problem_.rank; }

  // Return one rank from each cluster: its leader, its last rank, or the rank with this rank's
  // index. In the last case, every cluster must have a rank with that index.
  std::vector<uint32_t> leaders() const {
    return one_of_each([this](uint32_t cluster) { return leader_of(cluster); });
  }
  std::vector<uint32_t> last_ranks() const {
    return one_of_each([this](uint32_t cluster) { return ranks_of(cluster).back(); });
  }
  std::vector<uint32_t> peers() const {
    return one_of_each([this](uint32_t cluster) { return ranks_of(cluster)[index()]; });
  }
  // Returns |ranks|, one from each cluster including this rank, as members. |ranks| must outlive
  // the result.
  Members between_clusters(const std::vector<uint32_t>& ranks) const {
    return {count(), cluster(), ranks};
  }
  Members between_clusters(std::vector<uint32_t>&&) const = delete;

  // Returns the rank of |cluster| that exchanges data with |rank|.
  uint32_t counterpart(uint32_t rank, uint32_t cluster) const {
    const std::vector<uint32_t>& ranks = ranks_of(cluster);
    return ranks[index_of(rank) % ranks.size()];
  }
  // Returns the rank of |cluster| that gathers the cluster's data for |rank|.
  uint32_t collector(uint32_t rank, uint32_t cluster) const {
    return cluster_of(rank) == cluster ? rank : counterpart(rank, cluster);
  }

 private:
  template <typename RankOf>
  std::vector<uint32_t> one_of_each(RankOf&& rank_of) const {
    std::vector<uint32_t> ranks;
    for (uint32_t cluster = 0; cluster < count(); ++cluster) ranks.push_back(rank_of(cluster));
    return ranks;
  }

  const Problem& problem_;
  const RankPlacement& placement_;
};

}  // namespace hetcomm::collectives
