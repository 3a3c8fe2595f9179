#include "pipeline/schedule/memory.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace hetcomm::pipeline {
namespace {

int64_t change_of(const StepMemory& memory, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return memory.forward;
    case ActionKind::kRecompute:
      return memory.recompute;
    case ActionKind::kInputGrad:
      return memory.input_grad;
    case ActionKind::kWeightGrad:
      return memory.weight_grad;
    case ActionKind::kBackward:
      return memory.input_grad + memory.weight_grad;
    default:
      return 0;
  }
}

}  // namespace

bool StepMemory::is_in_range() const {
  for (const int64_t each : {forward, recompute, input_grad, weight_grad}) {
    if (each > kMaxStepMemory || each < -kMaxStepMemory) return false;
  }
  return true;
}

std::vector<HeldMemory> memory_over_time(const Schedule& schedule, uint32_t rank,
                                         const std::vector<StepMemory>& memory) {
  const std::vector<Action>& actions = schedule.actions[rank];
  const bool trains = std::any_of(actions.begin(), actions.end(),
                                  [](const Action& each) { return gives_weight_grad(each.kind); });
  std::vector<HeldMemory> held;
  held.reserve(actions.size());
  int64_t now = 0;
  int64_t freed_later = 0;
  for (const Action& action : actions) {
    const StepMemory& own = memory.empty() ? StepMemory() : memory[action.stage];
    const int64_t change = change_of(own, action.kind);
    if (change > 0) now += change;
    if (change < 0 || !trains) freed_later -= std::abs(change);
    const int64_t during = now;
    if (!action.overlaps_next) now += std::exchange(freed_later, 0);
    held.push_back({.during = during, .after = now});
  }
  return held;
}

}  // namespace hetcomm::pipeline
