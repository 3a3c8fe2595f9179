// A rank placement says which ranks of a team are near each other, and what their messages cost.
// Collective algorithms are chosen by it. All ranks compute the same placement from what all have
// published.
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
  // Returns whether it pays to treat near and far ranks differently.
  bool has_levels() const { return clusters.size() > 1 && largest > 1; }

  // The ranks of each cluster, in ascending order. Clusters are in the order of their first ranks.
  std::vector<std::vector<uint32_t>> clusters;
  std::vector<uint32_t> cluster_of;  // by rank
  std::vector<uint32_t> index_of;    // by rank: its position in its cluster
  // All ranks, cluster by cluster, so that rings cross few links.
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
