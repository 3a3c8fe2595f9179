// Makes the steps of collective operations: what one rank does. The functions are pure: the same
// problem gives matching steps on every rank.
//
// Large data is cut into segments. Each is a slice with its own steps. Several are in progress at
// once: one segment reduces while another moves.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"
#include "src/core/collectives/steps.h"

namespace hetcomm::collectives {

// Returns the number of segments: at least 1, and the same on all ranks.
uint64_t count_segments(const Problem& problem);
// Returns where the data of |segment| ends in each block; UINT64_MAX: at the end of the block.
uint64_t end_of_segment(const Problem& problem, uint64_t segment);
// Overwrites |steps| with the steps of one segment.
void make_steps(const Problem& problem, uint64_t segment, Steps* steps);

}  // namespace hetcomm::collectives
