// Generates the known schedules of level 1. All generators depend only on counts. warmups.h
// computes counts from times. Invalid counts are rejected with kInvalidArgument.
//
// The steps of a stage for one micro-batch are F (forward) and B (backward). B can be split into I
// (input gradient) and W (weight gradient).
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// GPipe: all F, then all B, with one stage on each rank.
Result<Schedule> gpipe(uint32_t ranks, uint32_t micro_batches);
// Only forward steps. Rank r has the |chunks| stages r, r + ranks, r + 2 * ranks and so on.
Result<Schedule> forward_only(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);

// One stage on each rank: |warmups[s]| F, then B and F alternate, then the remaining B. Depending
// on the counts, this is 1F1B, Eager-1F1B, Virtual-1F1B or H-1F1B.
Result<Schedule> one_f_one_b(const std::vector<uint32_t>& warmups, uint32_t micro_batches);

// The order of one_f_one_b() with B split into I and W.
struct SplitOrder {
  // The number of micro-batches by which a stage delays W after I.
  std::vector<uint32_t> delays;  // indexed by stage
  // True if the stage repeats F before I (R). The order F, R, I, W comes from H2 (section 5).
  std::vector<bool> recomputes;  // indexed by stage
};
Result<Schedule> split_one_f_one_b(const std::vector<uint32_t>& warmups, const SplitOrder& order,
                                   uint32_t micro_batches);
// ZB-H1 and ZB-H2 of Qi et al. (Zero Bubble Pipeline Parallelism, section 2). H1 keeps as many
// activations as 1F1B, and H2 keeps twice as many less one.
Result<Schedule> zero_bubble_h1(uint32_t ranks, uint32_t micro_batches);
Result<Schedule> zero_bubble_h2(uint32_t ranks, uint32_t micro_batches);
// The four phases F, R, I, W of H2. |recomputes| says which stages have R.
Result<Schedule> four_phase(const std::vector<uint32_t>& warmups,
                            const std::vector<bool>& recomputes, uint32_t micro_batches);

// Looped breadth-first (Lamy-Poirier). Each rank has |chunks| stages. It runs all F stage by stage,
// then all B in the opposite order.
Result<Schedule> looped_breadth_first(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);
// Interleaved 1F1B (Narayanan et al., section 2.2). Micro-batches pass through the chunks of a rank
// in rounds of about |ranks|. Their number must be a multiple of the number of rounds.
Result<Schedule> interleaved(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);
// Like interleaved(), with B split and a shorter warm-up (PyTorch's InterleavedZeroBubble).
Result<Schedule> interleaved_zero_bubble(uint32_t ranks, uint32_t chunks, uint32_t micro_batches);

// ZB-V of Qi et al. (Pipeline Parallelism with Controllable Memory). Each rank has two stages. The
// order of stages runs from the first rank to the last and back.
Result<Schedule> zero_bubble_v(uint32_t ranks, uint32_t micro_batches);
// DualPipe-V (DeepSeek). It has the stages of ZB-V, and overlaps F and B of different stages.
// Requires at least as many micro-batches as stages.
Result<Schedule> dual_pipe_v(uint32_t ranks, uint32_t micro_batches);

}  // namespace hetcomm::pipeline
