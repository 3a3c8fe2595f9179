// Plans of reductions whose steps would round: every input comes as it is to the rank that combines
// it, in the order of ranks, and the result is rounded there.
//
// A sum that other ranks go on with is not rounded yet: it travels wide, from cluster to cluster
// where these come one after the other, and in long scans from rank to rank.
#pragma once

#include "src/core/collectives/plan_builder.h"
#include "src/core/collectives/segment_buffers.h"

namespace hetcomm::collectives {

void plan_rounding_reduce(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_rounding_allreduce(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_rounding_reduce_scatter(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_rounding_scan(const SegmentBuffers& buffers, PlanBuilder& plan);

}  // namespace hetcomm::collectives
