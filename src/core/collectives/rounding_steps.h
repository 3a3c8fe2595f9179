// Adds the steps of reductions whose steps would round. The inputs are sent to ranks that combine
// them in the order of ranks, and the result is rounded only once.
//
// A partial sum that another rank continues is not rounded, but sent with wide elements. Such sums
// are sent from cluster to cluster if clusters are contiguous, and from rank to rank in long scans.
#pragma once

#include "src/core/collectives/segment_buffers.h"
#include "src/core/collectives/step_builder.h"

namespace hetcomm::collectives {

void add_rounding_reduce(const SegmentBuffers& buffers, StepBuilder& steps);
void add_rounding_allreduce(const SegmentBuffers& buffers, StepBuilder& steps);
void add_rounding_reduce_scatter(const SegmentBuffers& buffers, StepBuilder& steps);
void add_rounding_scan(const SegmentBuffers& buffers, StepBuilder& steps);

}  // namespace hetcomm::collectives
