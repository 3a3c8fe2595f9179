// Plans of reductions whose steps do not round: data is combined on its way, in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/collectives/members.h"
#include "src/core/collectives/plan_builder.h"
#include "src/core/collectives/segment_buffers.h"

namespace hetcomm::collectives {

void plan_reduce(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_allreduce(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_reduce_scatter(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_scan(const SegmentBuffers& buffers, PlanBuilder& plan);

// Every member has its own share of |all|, which goes round once.
void gather_ring(const SegmentBuffers& buffers, const Members& among, const Range& all,
                 PlanBuilder& plan);
// Exchanges the |shares| shares of this rank's cluster. Returns the cluster's inputs for the share
// of this rank's index, in the order of ranks; nothing where there is no such share.
std::vector<Range> collect_of_mates(const SegmentBuffers& buffers, uint32_t shares,
                                    PlanBuilder& plan);
// Exchanges the results of the |shares| shares within this rank's cluster.
void hand_to_mates(const SegmentBuffers& buffers, uint32_t shares, PlanBuilder& plan);
// Every rank gets its block from all others at once, and combines them in the order of ranks.
void reduce_scatter_at_once(const SegmentBuffers& buffers, PlanBuilder& plan);

}  // namespace hetcomm::collectives
