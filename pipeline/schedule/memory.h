// Computes the memory that the steps of a rank add and free.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// The memory that each step of a stage adds for one micro-batch, in activations or bytes. A
// negative number frees memory. By default, an activation is held from the beginning of F to the
// end of W. All numbers are between -kMaxStepMemory and kMaxStepMemory.
struct StepMemory {
  int64_t forward = 1;
  int64_t recompute = 0;
  int64_t input_grad = 0;
  int64_t weight_grad = -1;

  bool is_in_range() const;
};

inline constexpr int64_t kMaxStepMemory = int64_t{1} << 38;

// The memory that a rank holds while an action runs, and after it.
struct HeldMemory {
  int64_t during = 0;
  int64_t after = 0;
};

// Returns the memory that |rank| holds, indexed by action. |memory| is indexed by stage. If it is
// empty, the defaults are used for all. The memory that a step frees is available when the step and
// its pair have ended. On a rank without backward steps, a forward step frees what it has added.
std::vector<HeldMemory> memory_over_time(const Schedule& schedule, uint32_t rank,
                                         const std::vector<StepMemory>& memory);

}  // namespace hetcomm::pipeline
