// Members are a set of ranks that communicate with each other, including this rank. They are
// numbered from 0.
#pragma once

#include <cstdint>
#include <span>

#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

struct Members {
  uint32_t count;
  uint32_t me;                        // this rank's number
  std::span<const uint32_t> ranks{};  // by number; empty: each number is the rank itself

  uint32_t rank_of(uint32_t number) const { return ranks.empty() ? number : ranks[number]; }
  // Returns the rank |distance| positions after this one, modulo the number of members.
  uint32_t after(uint32_t distance) const { return rank_of((me + distance) % count); }
  uint32_t before(uint32_t distance) const { return rank_of(number_before(distance)); }
  uint32_t number_before(uint32_t distance) const {
    return (me + count - distance % count) % count;
  }
  // Returns the number of positions by which this rank follows member |number|.
  uint32_t distance_from(uint32_t number) const { return (me + count - number) % count; }
};

// Returns all ranks of |problem|. A ring passes through one cluster after another. All other
// algorithms use the order of ranks.
inline Members all_ranks(const Problem& problem) {
  if (problem.algorithm != Algorithm::kRing) return {problem.ranks, problem.rank};
  const RankPlacement& placement = *problem.placement;
  return {problem.ranks, placement.place_of[problem.rank], placement.ring};
}

}  // namespace hetcomm::collectives
