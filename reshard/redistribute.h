// Computes the moves that take a tensor from one layout to another in a single hop.
#pragma once

#include <optional>
#include <vector>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Returns the moves in the order of the parts of |to|. A rank copies data that it already holds
// from its own memory. The rest of a part comes from one complete copy of |from|. The parts of |to|
// use the complete copies in turn, which spreads the load over the senders. |turn| selects the copy
// to begin with, so that the tensors of a list can begin with different copies. Terms of a sum are
// added in order, unless |to| has the same number of terms. If |rank| is given, returns only the
// moves in which it takes part, in the same order. Fails with INVALID_ARGUMENT if the shapes
// differ. Fails with UNSUPPORTED if |to| has neither one term nor as many terms as |from|, or if it
// has several terms and another divisor.
Result<std::vector<Move>> moves_between(const Layout& from, const Layout& to,
                                        std::optional<int> rank = std::nullopt, uint64_t turn = 0);

}  // namespace hetcomm::reshard
