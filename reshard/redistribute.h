// The moves that take a tensor from one layout to another in one step.
#pragma once

#include <optional>
#include <vector>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Returns the moves in the order of the parts of |to|. What a rank holds already it copies from
// itself. The rest of a part comes from one copy of |from| that is whole; the parts of |to| take
// such copies in turn, so that all senders have alike to do. Terms of a sum are added in their
// order, unless |to| has as many terms.
// |rank|: only the moves in which it takes part, in the same order.
// UNSUPPORTED: the shapes differ, or |to| has another number of terms that is not 1.
Result<std::vector<Move>> moves_between(const Layout& from, const Layout& to,
                                        std::optional<int> rank = std::nullopt);

}  // namespace hetcomm::reshard
