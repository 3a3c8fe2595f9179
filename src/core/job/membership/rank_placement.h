// Which ranks of a team are near each other, and what it costs to send a message. Algorithms are
// chosen by it. All ranks have the same placement, since it is made from what all have published.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/job/membership/transport_costs.h"

namespace hetcomm {

struct RankPlacement {
  RankPlacement() = default;
  // |labels|: one for each rank. The ranks with the same label are a cluster.
  RankPlacement(const std::vector<uint32_t>& labels, LinkCost inside, LinkCost across);

  uint32_t cluster_count() const { return static_cast<uint32_t>(clusters.size()); }
  // Whether it pays to tell near ranks from far ones.
  bool has_levels() const { return clusters.size() > 1 && largest > 1; }

  // The ranks of each cluster, in order; clusters are in the order of their first ranks.
  std::vector<std::vector<uint32_t>> clusters;
  std::vector<uint32_t> cluster_of;  // by rank
  std::vector<uint32_t> index_of;    // by rank: its place in its cluster
  // All ranks, cluster by cluster, so that rings cross few links; and where each rank stands there.
  std::vector<uint32_t> ring;
  std::vector<uint32_t> place_of;
  uint32_t largest = 0;  // ranks of the largest cluster
  uint32_t smallest = 0;
  bool contiguous = true;  // no cluster has ranks of another one between its own
  LinkCost inside;         // between ranks of one cluster
  LinkCost across;         // between clusters; |inside| where there is one cluster
};

}  // namespace hetcomm
