// Adds the steps of reductions whose steps do not round. Data is combined in transit, in any order.
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

// Distributes every member's share of |all|. Each share travels round the ring once.
void gather_ring(const SegmentBuffers& buffers, const Members& among, const Range& all,
                 StepBuilder& steps);
// Exchanges the |shares| shares of this rank's cluster. Returns the cluster's inputs for the share
// with this rank's index, in the order of ranks; empty if there is no such share.
std::vector<Range> collect_of_mates(const SegmentBuffers& buffers, uint32_t shares,
                                    StepBuilder& steps);
// Exchanges the results of the |shares| shares within this rank's cluster.
void hand_to_mates(const SegmentBuffers& buffers, uint32_t shares, StepBuilder& steps);
// Sends the blocks to their ranks all at once, and combines this rank's blocks in the order of
// ranks.
void reduce_scatter_at_once(const SegmentBuffers& buffers, StepBuilder& steps);

}  // namespace hetcomm::collectives
