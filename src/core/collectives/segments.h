// Steps of collective operations: what one rank does. Pure: the same problem gives matching steps
// on every rank.
//
// Large data is cut into segments. Each is a slice with steps of its own. Several are in progress
// at once: one segment reduces while another moves.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"
#include "src/core/collectives/steps.h"

namespace hetcomm::collectives {

// The number of segments is the same on all ranks; at least 1.
uint64_t count_segments(const Problem& problem);
// End of the data of |segment| in each block; UINT64_MAX: the end of the block.
uint64_t end_of_segment(const Problem& problem, uint64_t segment);
// Makes the steps of one segment; |steps| is overwritten.
void make_steps(const Problem& problem, uint64_t segment, Steps* steps);

}  // namespace hetcomm::collectives
