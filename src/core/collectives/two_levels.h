// The ranks of a problem in two levels: groups of ranks that are near each other, and one leader
// for each group.
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

  // The groups, in the order of their first ranks.
  uint32_t count() const { return placement_.group_count(); }
  const std::vector<uint32_t>& ranks_of(uint32_t group) const { return placement_.groups[group]; }
  uint32_t group_of(uint32_t rank) const { return placement_.group_of[rank]; }
  // Place of |rank| in its group.
  uint32_t index_of(uint32_t rank) const { return placement_.index_of[rank]; }
  // Ranks of the smallest group.
  uint32_t smallest() const { return placement_.smallest; }

  // This rank's group, this rank's place in it, and the group's ranks.
  uint32_t group() const { return group_of(problem_.rank); }
  uint32_t index() const { return index_of(problem_.rank); }
  const std::vector<uint32_t>& mates() const { return ranks_of(group()); }
  Members own_group() const { return {static_cast<uint32_t>(mates().size()), index(), mates()}; }

  // The rank that speaks for |group|.
  uint32_t leader_of(uint32_t group) const {
    const bool of_root = has_root(problem_.kind) && group_of(problem_.root) == group;
    return of_root ? problem_.root : ranks_of(group)[0];
  }
  uint32_t leader() const { return leader_of(group()); }
  bool leads() const { return leader() == problem_.rank; }

  // One rank of each group: the leaders, the last ones, or those with this rank's index, which
  // every group must have.
  std::vector<uint32_t> leaders() const {
    return one_of_each([this](uint32_t group) { return leader_of(group); });
  }
  std::vector<uint32_t> last_ranks() const {
    return one_of_each([this](uint32_t group) { return ranks_of(group).back(); });
  }
  std::vector<uint32_t> peers() const {
    return one_of_each([this](uint32_t group) { return ranks_of(group)[index()]; });
  }
  // |ranks|, one of each group and this rank among them, as members.
  Members between_groups(std::span<const uint32_t> ranks) const {
    return {count(), group(), ranks};
  }

  // The rank of |group| that is the other end of |rank|'s traffic with it.
  uint32_t counterpart(uint32_t rank, uint32_t group) const {
    const std::vector<uint32_t>& ranks = ranks_of(group);
    return ranks[index_of(rank) % ranks.size()];
  }
  // The rank of |group| that gathers what the group has for |rank|.
  uint32_t collector(uint32_t rank, uint32_t group) const {
    return group_of(rank) == group ? rank : counterpart(rank, group);
  }

 private:
  template <typename RankOf>
  std::vector<uint32_t> one_of_each(RankOf&& rank_of) const {
    std::vector<uint32_t> ranks;
    for (uint32_t group = 0; group < count(); ++group) ranks.push_back(rank_of(group));
    return ranks;
  }

  const Problem& problem_;
  const RankPlacement& placement_;
};

}  // namespace hetcomm::collectives
