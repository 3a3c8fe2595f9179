// Proves that a plan does what it is for, by following every element. It shares no code with the
// strategies beyond the data that they hand over.
#pragma once

#include <vector>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Fails with the first thing that is wrong with |plan|, which names hop, ranks and box: an element
// of the destination that is not written, is written twice, comes from a wrong element or lacks a
// term of the sum; something that is read before it was written; a write to the source.
// Cuts the tensor at the borders of all boxes: OUT_OF_RESOURCES where that gives more than
// |most_cells| cells.
Status prove(const MovePlan& plan, uint64_t most_cells = uint64_t{1} << 24);

// Proves that ranks which carry out their own plans one move after the other, each move by its
// sender and its receiver at the same time, all come to an end: no plan waits for another in a
// ring, and both sides of a move know it. |plans|: those of all ranks, by rank.
Status prove_progress(const std::vector<MovePlan>& plans);

}  // namespace hetcomm::reshard
