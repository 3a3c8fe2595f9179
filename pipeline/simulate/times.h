// The times of a pipeline's steps and boundaries, which are the input of the simulators.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/boundary_time.h"
#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The time of each step of a stage for one micro-batch.
struct StageTime {
  uint64_t forward_ns = 0;
  uint64_t backward_ns = 0;  // the whole backward step, if a schedule does not split it
  uint64_t input_grad_ns = 0;
  uint64_t weight_grad_ns = 0;
  uint64_t recompute_ns = 0;
};

struct PipelineTimes {
  std::vector<StageTime> stages;
  // Indexed by the stage before the boundary: one entry less than |stages|, or empty if transfers
  // take no time. A boundary between stages of one rank never takes time.
  std::vector<BoundaryTime> forward;
  std::vector<BoundaryTime> backward;
  // The fraction of the shorter of two overlapping steps that is hidden, in millionths.
  uint32_t overlap_ppm = 0;
};

// The length of each action of a schedule, indexed by rank and action, if steps of the same kind
// differ. The first action of a pair has the length of both.
using StepLengths = std::vector<std::vector<uint64_t>>;

// Fails with kInvalidArgument if |lengths| does not have the ranks and actions of |schedule|, or if
// all lengths together exceed 2^62 ns.
Status check_lengths(const StepLengths& lengths, const Schedule& schedule);
// Fails with kInvalidArgument if all steps and transfers of |micro_batches| together take longer
// than 2^62 ns.
Status check_length(const std::vector<StageTime>& stages, uint64_t micro_batches);
Status check_length(const PipelineTimes& times, uint64_t micro_batches);

}  // namespace hetcomm::pipeline
