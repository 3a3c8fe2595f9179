#include "src/core/job/membership/rank_placement.h"

#include <algorithm>
#include <unordered_map>

namespace hetcomm {

RankPlacement::RankPlacement(const std::vector<uint32_t>& labels, LinkCost inside_link,
                             LinkCost across_link)
    : inside(inside_link), across(across_link) {
  const auto count = static_cast<uint32_t>(labels.size());
  cluster_of.resize(count);
  index_of.resize(count);
  place_of.resize(count);
  std::unordered_map<uint32_t, uint32_t> numbers;  // cluster numbers by label
  for (uint32_t rank = 0; rank < count; ++rank) {
    const auto [at, is_new] =
        numbers.try_emplace(labels[rank], static_cast<uint32_t>(clusters.size()));
    const uint32_t cluster = at->second;
    if (is_new) {
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
