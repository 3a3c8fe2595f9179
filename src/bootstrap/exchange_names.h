// Names of exchanges and lists of ranks, shared by the ways to bootstrap.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/bootstrap/rank_group.h"

namespace hetcomm {

// "rank 3 of 12" or "ranks 3, 7-9 of 12". |ranks| ascending; long lists are cut.
std::string format_ranks(const std::vector<int>& ranks, int size);

// Who meets in an exchange: all ranks, each of them in one block of consecutive ranks, the leaders
// of blocks, or a group that hears its first rank.
enum class ExchangeKind : uint8_t { kAll, kBlocks, kLeaders, kBroadcast };

// The kind of an exchange in which all members of |group| have values.
constexpr ExchangeKind kind_of(const RankGroup& group) {
  return group.step > 1 ? ExchangeKind::kLeaders : ExchangeKind::kBlocks;
}

// Gives each use of a scope a name of its own, so that an exchange that is repeated (a communicator
// made again after a failure) never meets what an earlier one left behind. Ranks agree, because
// exchanges are collective. Exchanges of one scope that not all of its ranks take part in are
// counted by |kind|. Long scopes are shortened by a hash.
class ScopeNames {
 public:
  std::string next(const std::string& scope, ExchangeKind kind = ExchangeKind::kAll);

 private:
  std::map<std::pair<std::string, ExchangeKind>, uint32_t> uses_;
};

}  // namespace hetcomm
