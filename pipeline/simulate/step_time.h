// Computes the length of each step of a schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipeline/schedule/action.h"
#include "pipeline/simulate/times.h"

namespace hetcomm::pipeline {

// Returns the length of |action|, or 0 if it is not a computation.
inline uint64_t step_ns(const std::vector<StageTime>& stages, const Action& action) {
  const StageTime& time = stages[action.stage];
  switch (action.kind) {
    case ActionKind::kForward:
      return time.forward_ns;
    case ActionKind::kBackward:
      return time.backward_ns;
    case ActionKind::kInputGrad:
      return time.input_grad_ns;
    case ActionKind::kWeightGrad:
      return time.weight_grad_ns;
    case ActionKind::kRecompute:
      return time.recompute_ns;
    default:
      return 0;
  }
}

// Returns the length of two actions that overlap. |overlap_ppm| millionths of the shorter one are
// hidden.
inline uint64_t pair_ns(const std::vector<StageTime>& stages, const Action& first,
                        const Action& second, uint32_t overlap_ppm) {
  const uint64_t one = step_ns(stages, first);
  const uint64_t other = step_ns(stages, second);
  const uint64_t shorter = std::min(one, other);
  constexpr uint64_t kMillion = 1'000'000;
  return one + other - shorter / kMillion * overlap_ppm -
         shorter % kMillion * overlap_ppm / kMillion;
}

}  // namespace hetcomm::pipeline
