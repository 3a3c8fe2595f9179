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

// The strategies to choose from. On a tie, the earlier one wins.
inline constexpr std::array<Strategy, 5> kCandidates = {
    Strategy::kDirect, Strategy::kLeader, Strategy::kGatherP2pScatter, Strategy::kSendrecvAllgather,
    Strategy::kBsr};

// A strategy that was considered, with the result.
struct Considered {
  std::string strategy;
  uint64_t ns = 0;      // the forecast; 0 if the strategy makes no plan
  std::string refused;  // the reason for refusal; empty if the strategy can be used
  bool operator==(const Considered&) const = default;
};

// If |plan| sends more than one copy of the tensor from one cluster to another, returns a string
// that names the two clusters. Otherwise returns nullopt.
std::optional<std::string> find_second_copy(const MovePlan& plan, const Links& links);

// Fails with INVALID_ARGUMENT if |links| lacks a rank that holds a part.
Status check_known(const Layout& source, const Layout& destination, const Links& links);

struct Choice {
  MovePlan plan;
  Forecast forecast;                   // of the plan of all ranks
  std::vector<Considered> considered;  // in the order of kCandidates
};

// Makes a plan with every strategy that covers the two layouts, and chooses the one with the
// shortest forecast. Refuses a strategy that would send more than one copy of the tensor from one
// cluster to another, unless every strategy that covers the layouts would. If |rank| is given, the
// returned plan has only the moves of that rank. |slice_bytes| is as in plan_bsr(). Fails with
// INVALID_ARGUMENT if |links| lacks a rank, and with UNSUPPORTED if no strategy covers the layouts.
Result<Choice> plan_auto(const Layout& source, const Layout& destination, uint64_t element_bytes,
                         const Links& links, uint64_t slices = 8,
                         std::optional<int> rank = std::nullopt, uint64_t slice_bytes = 0);
// Chooses the plan of |tensor|, for the slices that |wishes| specifies. |wishes.links| is not null.
Result<Choice> plan_auto(const Tensor& tensor, const Wishes& wishes, std::optional<int> rank);

}  // namespace hetcomm::reshard
