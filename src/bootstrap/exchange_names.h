// Names exchanges and formats lists of ranks, for all kinds of bootstraps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/bootstrap/rank_group.h"

namespace hetcomm {

// Returns "rank 3 of 12" or "ranks 3, 7-9 of 12". |ranks| are ascending. Long lists are cut.
std::string format_ranks(const std::vector<int>& ranks, int size);

// The ranks that take part in an exchange: all ranks, blocks of consecutive ranks, the leaders of
// blocks, or a group that receives its first rank's value.
enum class ExchangeKind : uint8_t { kAll, kBlocks, kLeaders, kBroadcast };

// Returns the kind of an exchange to which all members of |group| contribute values.
constexpr ExchangeKind kind_of(const RankGroup& group) {
  return group.step > 1 ? ExchangeKind::kLeaders : ExchangeKind::kBlocks;
}

// Gives each use of a scope its own name, so that a repeated exchange (for example when a
// communicator is created again after a failure) never reads values of an earlier one. Ranks agree
// on the names because exchanges are collective. Uses are counted for each |kind| of exchange,
// because some ranks take no part in some kinds. Long scopes are shortened with a hash.
class ScopeNames {
 public:
  std::string next(const std::string& scope, ExchangeKind kind = ExchangeKind::kAll);

 private:
  std::map<std::pair<std::string, ExchangeKind>, uint32_t> uses_;
};

}  // namespace hetcomm
