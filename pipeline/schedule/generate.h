// Generates the known schedules of level 1, by their shape. All generators are functions of counts
// alone. warmups.h turns times into counts. Invalid counts are refused with kInvalidArgument.
//
// A stage's steps for one micro-batch are F (forward) and B (backward). B may be split in I (input
// gradient) and W (weight gradient).
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// GPipe: all F, then all B, with one stage on each rank.
Result<Schedule> gpipe(uint32_t ranks, uint32_t micro_batches);
// All F, and nothing else. Rank r has the stages r, r + ranks, and so on, |chunks| in all.
Result<Schedule> forward_only(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);

// One stage on each rank: |warmups[s]| F, then B and F in turn, then the rest of B. This is 1F1B,
// Eager-1F1B, Virtual-1F1B or H-1F1B by its counts.
Result<Schedule> one_f_one_b(const std::vector<uint32_t>& warmups, uint32_t micro_batches);

// The order of one_f_one_b() with split B after I.
struct SplitOrder {
  // The number of W that a stage keeps back: W of a micro-batch follows I of a later one.
  std::vector<uint32_t> delays;  // by stage
  // True if the stage repeats F before I (R). The order F, R, I, W is H2's (section 5).
  std::vector<bool> recomputes;  // by stage
};
Result<Schedule> split_one_f_one_b(const std::vector<uint32_t>& warmups, const SplitOrder& order,
                                   uint32_t micro_batches);
// ZB-H1 and ZB-H2 of Qi et al. (Zero Bubble Pipeline Parallelism, section 2). H1 keeps as many
// activations as 1F1B, and H2 twice as many less one.
Result<Schedule> zero_bubble_h1(uint32_t ranks, uint32_t micro_batches);
Result<Schedule> zero_bubble_h2(uint32_t ranks, uint32_t micro_batches);
// H2's four phases F, R, I, W. |recomputes| tells which stages have R.
Result<Schedule> four_phase(const std::vector<uint32_t>& warmups,
                            const std::vector<bool>& recomputes, uint32_t micro_batches);

// Looped breadth-first (Lamy-Poirier): rank r has |chunks| stages; all F stage by stage, then all B
// in the opposite order.
Result<Schedule> looped_breadth_first(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);
// Interleaved 1F1B (Narayanan et al., section 2.2). Micro-batches go through the chunks of a rank
// in rounds of about |ranks|; their number must be a multiple of the number of rounds.
Result<Schedule> interleaved(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);
// As interleaved(), with B split and a shorter warm-up (PyTorch's InterleavedZeroBubble).
Result<Schedule> interleaved_zero_bubble(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);

// ZB-V of Qi et al. (Pipeline Parallelism with Controllable Memory): two stages on each rank, which
// turn back at the last rank.
Result<Schedule> zero_bubble_v(uint32_t ranks, uint32_t micro_batches);
// DualPipe-V (DeepSeek): ZB-V's stages; F and B of different stages overlap. Needs as many
// micro-batches as stages.
Result<Schedule> dual_pipe_v(uint32_t ranks, uint32_t micro_batches);

}  // namespace hetcomm::pipeline
