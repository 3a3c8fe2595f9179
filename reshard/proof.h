// Proves that a plan is correct by following every element. The proof shares no code with the
// strategies. It uses only the plans that they return.
#pragma once

#include <vector>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Fails with the first fault in |plan|, and names the hop, ranks and box. Faults are a destination
// element that is not written, is written twice, comes from a wrong element or lacks a term of the
// sum, a read before the write, or a write to the source. Cuts the tensor at the boundaries of all
// boxes, and fails with OUT_OF_RESOURCES if there are more than |most_cells| cells.
Status prove(const MovePlan& plan, uint64_t most_cells = uint64_t{1} << 24);

// Proves that all ranks finish if each executes its own plan move by move. The sender and the
// receiver of a move act at the same time. The proof shows that no cycle of ranks wait for each
// other, and that each move is in the plans of both its ranks. |plans| has the plan of each rank.
Status prove_progress(const std::vector<MovePlan>& plans);

}  // namespace hetcomm::reshard
