// A rank placement records which ranks of a team are near each other, and the costs of their
// messages. Collective algorithms are chosen according to it. All ranks compute the same placement
// from the data that all have published.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/job/membership/transport_costs.h"

namespace hetcomm {

struct RankPlacement {
  RankPlacement() = default;
  // |labels| has a label for each rank. Ranks with equal labels form a cluster.
  RankPlacement(const std::vector<uint32_t>& labels, LinkCost inside, LinkCost across);

  uint32_t cluster_count() const { return static_cast<uint32_t>(clusters.size()); }
  // Returns whether some ranks are near each other and others are not.
  bool has_levels() const { return clusters.size() > 1 && largest > 1; }

  // The ranks of each cluster, in ascending order. Clusters are in the order of their first ranks.
  std::vector<std::vector<uint32_t>> clusters;
  std::vector<uint32_t> cluster_of;  // by rank
  std::vector<uint32_t> index_of;    // by rank: its position in its cluster
  // All ranks, cluster by cluster, so a ring in this order crosses few links between clusters.
  std::vector<uint32_t> ring;
  // By rank: its position in |ring|.
  std::vector<uint32_t> place_of;
  uint32_t largest = 0;  // number of ranks in the largest cluster
  uint32_t smallest = 0;
  bool contiguous = true;  // no cluster has another cluster's ranks between its own
  LinkCost inside;         // between ranks of one cluster
  LinkCost across;         // between clusters; |inside| if there is only one
};

}  // namespace hetcomm
