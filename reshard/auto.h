// The quickest plan of all strategies, by forecast.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/forecast.h"
#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// One strategy that was looked at.
struct Considered {
  std::string strategy;
  uint64_t ns = 0;      // forecast; 0: refused
  std::string refused;  // why it is not used; empty: it could be
  bool operator==(const Considered&) const = default;
};

struct Choice {
  MovePlan plan;
  Forecast forecast;                   // of the plan of all ranks
  std::vector<Considered> considered;  // in the order in which ties are decided
};

// Considers every strategy that covers the two layouts. One that would send more than one copy of
// the tensor from one cluster to another is refused. |links| knows all ranks.
// |rank|: the plan that is returned has only its moves.
Result<Choice> plan_auto(const Layout& source, const Layout& destination, uint64_t element_bytes,
                         const Links& links, uint64_t slices = 8,
                         std::optional<int> rank = std::nullopt);

}  // namespace hetcomm::reshard
