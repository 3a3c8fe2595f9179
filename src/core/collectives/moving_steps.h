// Adds the steps of operations that only move data: barriers, broadcast, allgather, alltoall,
// gather, scatter.
#pragma once

#include <cstdint>
#include <span>

#include "src/core/collectives/members.h"
#include "src/core/collectives/segment_buffers.h"
#include "src/core/collectives/step_builder.h"

namespace hetcomm::collectives {

void add_barrier(const SegmentBuffers& buffers, StepBuilder& steps);
void add_broadcast(const SegmentBuffers& buffers, StepBuilder& steps);
void add_allgather(const SegmentBuffers& buffers, StepBuilder& steps);
void add_alltoall(const SegmentBuffers& buffers, StepBuilder& steps);
void add_gather(const SegmentBuffers& buffers, StepBuilder& steps);
void add_scatter(const SegmentBuffers& buffers, StepBuilder& steps);

// Sends |all| from member number |root| to all other members, over a tree.
void broadcast_tree(const Members& among, uint32_t root, const Range& all, StepBuilder& steps);
// Gathers the block of each rank in its range of |targets| on all ranks, in two levels.
void allgather_two_level(const SegmentBuffers& buffers, std::span<const Range> targets,
                         StepBuilder& steps);

}  // namespace hetcomm::collectives
