#include "src/core/job/rank_placement.h"

#include <algorithm>

namespace hetcomm {

RankPlacement::RankPlacement(const std::vector<uint32_t>& labels, LinkCost inside_link,
                             LinkCost across_link)
    : inside(inside_link), across(across_link) {
  const auto count = static_cast<uint32_t>(labels.size());
  cluster_of.resize(count);
  index_of.resize(count);
  place_of.resize(count);
  std::vector<uint32_t> label_of;  // by cluster
  for (uint32_t rank = 0; rank < count; ++rank) {
    const auto at = std::find(label_of.begin(), label_of.end(), labels[rank]);
    const auto cluster = static_cast<uint32_t>(at - label_of.begin());
    if (at == label_of.end()) {
      label_of.push_back(labels[rank]);
      clusters.emplace_back();
    } else if (cluster_of[rank - 1] != cluster) {
      contiguous = false;
    }
    cluster_of[rank] = cluster;
    index_of[rank] = static_cast<uint32_t>(clusters[cluster].size());
    clusters[cluster].push_back(rank);
  }
  smallest = count;
  for (const std::vector<uint32_t>& cluster : clusters) {
    largest = std::max(largest, static_cast<uint32_t>(cluster.size()));
    smallest = std::min(smallest, static_cast<uint32_t>(cluster.size()));
    for (const uint32_t rank : cluster) {
      place_of[rank] = static_cast<uint32_t>(ring.size());
      ring.push_back(rank);
    }
  }
  if (clusters.size() < 2) across = inside;
}

}  // namespace hetcomm
