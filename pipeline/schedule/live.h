// Counts the activations that live at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// The most activations that live at any time, by rank and by stage.
struct LivePeaks {
  std::vector<uint64_t> ranks;
  std::vector<uint64_t> stages;
  std::vector<size_t> steps;  // by stage: the index of its rank's action at which it peaks
};

// An activation lives until the gradient of the weights is there. Without backward steps it ends
// with its step. Activations that a step of a pair frees live until both steps have ended.
LivePeaks count_live(const Schedule& schedule);

}  // namespace hetcomm::pipeline
