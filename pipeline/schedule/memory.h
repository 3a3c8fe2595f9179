// Tells how much memory the steps of a rank add and free.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// The steps of a stage for one micro-batch add so much to its memory, in activations or bytes. An
// activation lives from the beginning of F to the end of W. No number is above kMaxStepMemory, or
// below its negative.
struct StepMemory {
  int64_t forward = 1;
  int64_t recompute = 0;
  int64_t input_grad = 0;
  int64_t weight_grad = -1;

  bool is_in_range() const;
};

inline constexpr int64_t kMaxStepMemory = int64_t{1} << 38;

// A rank holds so much while an action runs, and when it has ended.
struct HeldMemory {
  int64_t during = 0;
  int64_t after = 0;
};

// Returns what |rank| holds, by action. |memory|: by stage; empty: the defaults for all. What a
// step frees is free at its end, and at the end of its pair. On a rank without backward steps a
// forward step frees what it has added.
std::vector<HeldMemory> memory_over_time(const Schedule& schedule, uint32_t rank,
                                         const std::vector<StepMemory>& memory);

}  // namespace hetcomm::pipeline
