#include "src/core/job/rank_placement.h"

#include <algorithm>

namespace hetcomm {

RankPlacement::RankPlacement(const std::vector<uint32_t>& labels, Link inside_link,
                             Link across_link)
    : inside(inside_link), across(across_link) {
  const auto count = static_cast<uint32_t>(labels.size());
  group_of.resize(count);
  index_of.resize(count);
  place_of.resize(count);
  std::vector<uint32_t> label_of;  // by group
  for (uint32_t rank = 0; rank < count; ++rank) {
    const auto at = std::find(label_of.begin(), label_of.end(), labels[rank]);
    const auto group = static_cast<uint32_t>(at - label_of.begin());
    if (at == label_of.end()) {
      label_of.push_back(labels[rank]);
      groups.emplace_back();
    } else if (group_of[rank - 1] != group) {
      contiguous = false;
    }
    group_of[rank] = group;
    index_of[rank] = static_cast<uint32_t>(groups[group].size());
    groups[group].push_back(rank);
  }
  smallest = count;
  for (const std::vector<uint32_t>& group : groups) {
    largest = std::max(largest, static_cast<uint32_t>(group.size()));
    smallest = std::min(smallest, static_cast<uint32_t>(group.size()));
    for (const uint32_t rank : group) {
      place_of[rank] = static_cast<uint32_t>(ring.size());
      ring.push_back(rank);
    }
  }
  if (groups.size() < 2) across = inside;
}

}  // namespace hetcomm
