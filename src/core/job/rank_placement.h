// Who is near whom in a team, and what it costs to send a message: what algorithms are chosen by.
// The same on all ranks, since it is made of what all have published.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/job/link_model.h"

namespace hetcomm {

struct RankPlacement {
  RankPlacement() = default;
  // |labels|: of the ranks, in their order; those that have the same one are a group.
  RankPlacement(const std::vector<uint32_t>& labels, Link inside, Link across);

  uint32_t group_count() const { return static_cast<uint32_t>(groups.size()); }
  // There is something to gain by telling near ranks from far ones.
  bool has_levels() const { return groups.size() > 1 && largest > 1; }

  // In the order of their first ranks; the ranks of each in order.
  std::vector<std::vector<uint32_t>> groups;
  std::vector<uint32_t> group_of;  // by rank
  std::vector<uint32_t> index_of;  // by rank: its place in its group
  // All ranks, group by group, and where each of them stands there: rings cross few links so.
  std::vector<uint32_t> ring;
  std::vector<uint32_t> place_of;
  uint32_t largest = 0;  // ranks of a group
  uint32_t smallest = 0;
  bool contiguous = true;  // no group has ranks of another one between its own
  Link inside;             // between ranks of one group
  Link across;             // between groups; |inside| where there is one group
};

}  // namespace hetcomm
