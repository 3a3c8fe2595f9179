// Adds the steps of reductions whose steps do not round. Ranks combine the data that they forward,
// in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/collectives/members.h"
#include "src/core/collectives/segment_buffers.h"
#include "src/core/collectives/step_builder.h"

namespace hetcomm::collectives {

void add_reduce(const SegmentBuffers& buffers, StepBuilder& steps);
void add_allreduce(const SegmentBuffers& buffers, StepBuilder& steps);
void add_reduce_scatter(const SegmentBuffers& buffers, StepBuilder& steps);
void add_scan(const SegmentBuffers& buffers, StepBuilder& steps);

// Sends every member's share of |all| to all members. Each share goes around the ring once.
void gather_ring(const SegmentBuffers& buffers, const Members& among, const Range& all,
                 StepBuilder& steps);
// Exchanges the |shares| shares within this rank's cluster. Returns the cluster's inputs for the
// share with this rank's index, in the order of ranks. Returns an empty list if there is no such
// share.
std::vector<Range> collect_of_mates(const SegmentBuffers& buffers, uint32_t shares,
                                    StepBuilder& steps);
// Exchanges the results of the |shares| shares within this rank's cluster.
void hand_to_mates(const SegmentBuffers& buffers, uint32_t shares, StepBuilder& steps);
// Sends all blocks to their ranks in one round, and combines the blocks for this rank in the order
// of ranks.
void reduce_scatter_at_once(const SegmentBuffers& buffers, StepBuilder& steps);

}  // namespace hetcomm::collectives
