// Chooses the plan with the shortest forecast time over all strategies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/by_strategy.h"
#include "reshard/forecast.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The strategies that can be chosen, in the order that decides ties.
inline constexpr std::array<Strategy, 5> kCandidates = {
    Strategy::kDirect, Strategy::kLeader, Strategy::kGatherP2pScatter, Strategy::kSendrecvAllgather,
    Strategy::kBsr};

// A strategy that was considered.
struct Considered {
  std::string strategy;
  uint64_t ns = 0;      // forecast; 0: the strategy makes no plan
  std::string refused;  // reason for refusal; empty: usable
  bool operator==(const Considered&) const = default;
};

// Returns a text that names two clusters between which |plan| sends more than the whole tensor, if
// there are any.
std::optional<std::string> find_second_copy(const MovePlan& plan, const Links& links);

// Fails with INVALID_ARGUMENT if |links| lacks a rank that holds a part.
Status check_known(const Layout& source, const Layout& destination, const Links& links);

struct Choice {
  MovePlan plan;
  Forecast forecast;                   // forecast of the plan of all ranks
  std::vector<Considered> considered;  // in the order that decides ties
};

// Considers every strategy that covers the two layouts. Refuses a strategy that would send more
// than one copy of the tensor from one cluster to another. If it refuses all of them, takes the
// quickest one. If |rank| is given, the returned plan has only the moves of that rank.
// |slice_bytes|: as in plan_bsr(). Fails with INVALID_ARGUMENT if |links| lacks a rank, and with
// UNSUPPORTED if no strategy covers the layouts.
Result<Choice> plan_auto(const Layout& source, const Layout& destination, uint64_t element_bytes,
                         const Links& links, uint64_t slices = 8,
                         std::optional<int> rank = std::nullopt, uint64_t slice_bytes = 0);
// The same for |tensor|, with the slices that |wishes| ask for. |wishes| has links.
Result<Choice> plan_auto(const Tensor& tensor, const Wishes& wishes, std::optional<int> rank);

}  // namespace hetcomm::reshard
