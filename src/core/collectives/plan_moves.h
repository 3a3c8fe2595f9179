// Plans of operations that only move data: barriers, broadcast, allgather, alltoall, gather,
// scatter.
#pragma once

#include <cstdint>
#include <span>

#include "src/core/collectives/members.h"
#include "src/core/collectives/plan_builder.h"
#include "src/core/collectives/segment_buffers.h"

namespace hetcomm::collectives {

void plan_barrier(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_broadcast(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_allgather(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_alltoall(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_gather(const SegmentBuffers& buffers, PlanBuilder& plan);
void plan_scatter(const SegmentBuffers& buffers, PlanBuilder& plan);

// Brings |all| from the member of number |root| to all others, over a tree.
void broadcast_tree(const Members& among, uint32_t root, const Range& all, PlanBuilder& plan);
// Brings the block of each rank to its range of |targets| on all ranks, in two levels.
void allgather_two_level(const SegmentBuffers& buffers, std::span<const Range> targets,
                         PlanBuilder& plan);

}  // namespace hetcomm::collectives
