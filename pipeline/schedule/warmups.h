// Computes warm-up counts: the number of forward steps that a stage runs before its first backward
// step, in pipelines with one stage on each rank. With a higher count, gradients can arrive later
// without causing a wait, but more activations are live.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/boundary_time.h"

namespace hetcomm::pipeline {

// The counts of 1F1B (PipeDream-flush): |stages| - s.
std::vector<uint32_t> plain_warmups(uint32_t stages);
// The counts of Eager-1F1B: 2 * (|stages| - s) - 1. They hide transfers of up to half of a stage's
// time.
std::vector<uint32_t> eager_warmups(uint32_t stages);
// The counts of Virtual-1F1B (HetAuto, section 4), in which a slow boundary counts as one more
// stage. |is_slow| has an entry for each boundary between consecutive stages. The counts hide
// transfers of up to half of a stage's time over the slow boundaries.
std::vector<uint32_t> virtual_warmups(const std::vector<bool>& is_slow);

// Returns the number of items in transit over |boundary| if a step starts every |step_ns|. An item
// counts until the sender has been notified that it was taken.
uint32_t items_on_the_way(const BoundaryTime& boundary, uint64_t step_ns);

struct HidingWarmups {
  std::vector<uint32_t> counts;  // indexed by stage
  // The boundaries whose link is busy for longer than the slowest stage. No order of steps hides
  // them: a micro-batch takes at least the busy time of the slowest of these links.
  std::vector<uint32_t> exposed;
};
// The counts of H-1F1B (Hapt, section 5; Eq. 10 and 23). The count of a stage is one more than the
// sum of ceil(1 + 2 c / t) over its boundary and all later ones. c is the one-way time of the
// boundary. t is the time of the slowest stage, or the longest busy time of a link if that is
// longer. A c of at most |epsilon_ppm| millionths of t counts as 0 (Eq. 2). |stage_ns| has the
// forward and backward time of each stage, and |boundaries| has one entry less. The counts hide
// transfers of any length. Times must be below 2^60 ns.
HidingWarmups hiding_warmups(const std::vector<uint64_t>& stage_ns,
                             const std::vector<BoundaryTime>& boundaries, uint32_t epsilon_ppm);

}  // namespace hetcomm::pipeline
