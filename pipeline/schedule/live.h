// Counts the live activations of a schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// The maximum numbers of live activations, indexed by rank and by stage.
struct LivePeaks {
  std::vector<uint64_t> ranks;
  std::vector<uint64_t> stages;
  std::vector<size_t> steps;  // indexed by stage: index of its rank's action at the peak
};

// Returns the peaks of |schedule|. An activation is live until the gradient of the weights is
// complete. Without backward steps it is live only during its forward step. Activations that a step
// of a pair frees stay live until both steps have ended.
LivePeaks count_live(const Schedule& schedule);

}  // namespace hetcomm::pipeline
