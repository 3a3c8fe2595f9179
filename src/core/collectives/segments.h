// Steps of collective operations: what one rank does. Pure: the same problem gives steps
// that fit together on every rank.
//
// Large data is cut into segments. Each is a slice with steps of its own. Several are under way
// at once: one segment reduces while another one moves.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"
#include "src/core/collectives/steps.h"

namespace hetcomm::collectives {

// The number of segments is the same on all ranks; at least 1.
uint64_t count_segments(const Problem& problem);
// Where the data of |segment| ends in each block; UINT64_MAX: with the block.
uint64_t end_of_segment(const Problem& problem, uint64_t segment);
// Makes the steps of one segment; |steps| is overwritten.
void make_steps(const Problem& problem, uint64_t segment, Steps* steps);

}  // namespace hetcomm::collectives
