// Makes the steps of collective operations for one rank. The functions are pure, so all ranks make
// matching steps for the same operation.
//
// Large data is divided into segments, each with its own steps. Several segments are in progress at
// once, so that one is reduced while another is sent.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"
#include "src/core/collectives/steps.h"

namespace hetcomm::collectives {

// Returns the number of segments, which is at least 1 and the same on all ranks.
uint64_t count_segments(const Problem& problem);
// Returns the offset in each block at which the data of |segment| ends, or UINT64_MAX if it ends at
// the end of the block.
uint64_t end_of_segment(const Problem& problem, uint64_t segment);
// Overwrites |steps| with the steps of one segment.
void make_steps(const Problem& problem, uint64_t segment, Steps* steps);

}  // namespace hetcomm::collectives
