// The problem of an arrangement: the steps of a pipeline, their times, and what each rank may hold.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/check.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct ArrangeProblem {
  uint32_t micro_batches = 0;
  std::vector<uint32_t> rank_of;  // by stage
  PipelineTimes times;
  std::vector<StepMemory> memory;   // by stage; empty: the defaults for all
  std::vector<int64_t> limits;      // by rank: the most that it may hold
  std::vector<uint32_t> in_flight;  // as SimulateOptions::in_flight (longest_path.h)
  bool splits_backward = true;      // I and W apart; false: B
  std::vector<bool> recomputes;     // by stage: whether R comes before I or B; empty: for none

  uint32_t stages() const { return static_cast<uint32_t>(rank_of.size()); }
  uint32_t ranks() const { return static_cast<uint32_t>(limits.size()); }
  bool has_recompute(uint32_t stage) const { return !recomputes.empty() && recomputes[stage]; }
  StepMemory memory_of(uint32_t stage) const {
    return memory.empty() ? StepMemory() : memory[stage];
  }
};

// Fails with kInvalidArgument if the lists do not fit together, and with kOutOfRange if a rank may
// not hold what one micro-batch needs: no order meets that limit.
Status check_problem(const ArrangeProblem& problem);

}  // namespace hetcomm::pipeline
