// The input of arrange(): the steps of a pipeline, their times, and the memory limit of each rank.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/check.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct ArrangeProblem {
  uint32_t micro_batches = 0;
  std::vector<uint32_t> rank_of;  // indexed by stage
  PipelineTimes times;
  std::vector<StepMemory> memory;   // indexed by stage; empty: the defaults for all
  std::vector<int64_t> limits;      // indexed by rank: the most memory that it may hold
  std::vector<uint32_t> in_flight;  // as in SimulateOptions::in_flight (longest_path.h)
  bool splits_backward = true;      // true: separate steps I and W; false: B
  std::vector<bool> recomputes;     // indexed by stage: true if R precedes I or B; empty: no stage

  uint32_t stages() const { return static_cast<uint32_t>(rank_of.size()); }
  uint32_t ranks() const { return static_cast<uint32_t>(limits.size()); }
  bool has_recompute(uint32_t stage) const { return !recomputes.empty() && recomputes[stage]; }
  StepMemory memory_of(uint32_t stage) const {
    return memory.empty() ? StepMemory() : memory[stage];
  }
};

// Fails with kInvalidArgument if the lengths of the lists do not match, and with kOutOfRange if the
// limit of a rank is below the memory for one micro-batch. No order meets such a limit.
Status check_problem(const ArrangeProblem& problem);

}  // namespace hetcomm::pipeline
