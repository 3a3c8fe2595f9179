#include "pipeline/schedule/live.h"

#include <algorithm>

namespace hetcomm::pipeline {
namespace {

void count(const std::vector<Action>& actions, LivePeaks& peaks, uint64_t& peak) {
  const bool trains = std::any_of(actions.begin(), actions.end(),
                                  [](const Action& each) { return gives_weight_grad(each.kind); });
  std::vector<uint64_t> live(peaks.stages.size());
  std::vector<uint32_t> freed;  // stages whose activation is freed
  uint64_t all = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool is_forward = action.kind == ActionKind::kForward;
    if (is_forward) {
      peak = std::max(peak, ++all);
      if (++live[action.stage] > peaks.stages[action.stage]) {
        peaks.stages[action.stage] = live[action.stage];
        peaks.steps[action.stage] = i;
      }
    }
    if (trains ? gives_weight_grad(action.kind) : is_forward) freed.push_back(action.stage);
    if (action.overlaps_next) continue;
    for (const uint32_t stage : freed) --live[stage];
    all -= freed.size();
    freed.clear();
  }
}

}  // namespace

LivePeaks count_live(const Schedule& schedule) {
  LivePeaks peaks;
  peaks.ranks.assign(schedule.ranks(), 0);
  peaks.stages.assign(schedule.stages(), 0);
  peaks.steps.assign(schedule.stages(), 0);
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    count(schedule.actions[rank], peaks, peaks.ranks[rank]);
  }
  return peaks;
}

}  // namespace hetcomm::pipeline
