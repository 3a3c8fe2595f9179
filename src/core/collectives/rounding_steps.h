// Adds the steps of reductions whose steps would round. Every input arrives unchanged at the rank
// that combines the inputs in the order of ranks and rounds the result.
//
// A sum that other ranks continue is not rounded yet. It travels with wide elements: from cluster
// to cluster where clusters are contiguous, and from rank to rank in long scans.
#pragma once

#include "src/core/collectives/segment_buffers.h"
#include "src/core/collectives/step_builder.h"

namespace hetcomm::collectives {

void add_rounding_reduce(const SegmentBuffers& buffers, StepBuilder& steps);
void add_rounding_allreduce(const SegmentBuffers& buffers, StepBuilder& steps);
void add_rounding_reduce_scatter(const SegmentBuffers& buffers, StepBuilder& steps);
void add_rounding_scan(const SegmentBuffers& buffers, StepBuilder& steps);

}  // namespace hetcomm::collectives
