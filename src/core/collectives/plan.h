// Plans of collective operations: the steps that a rank takes. Pure: the same problem gives plans
// that fit together on every rank.
//
// Large data is cut into segments, slices of it with a plan each, of which several are under way
// at once: one segment reduces while another one moves.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"
#include "src/core/plan/steps.h"

namespace hetcomm::collectives {

using plan::BufferKind;
using plan::Plan;
using plan::Range;
using plan::Step;
using plan::StepKind;

// The number of segments is the same on all ranks; at least 1.
uint64_t count_segments(const Problem& problem);
// Where the data of |segment| ends in each block; UINT64_MAX: with the block.
uint64_t end_of_segment(const Problem& problem, uint64_t segment);
// Makes the plan of one segment; |plan| is overwritten.
void make_plan(const Problem& problem, uint64_t segment, Plan* plan);

}  // namespace hetcomm::collectives
