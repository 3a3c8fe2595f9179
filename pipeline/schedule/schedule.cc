#include "pipeline/schedule/schedule.h"

#include <algorithm>
#include <utility>

namespace hetcomm::pipeline {

std::vector<uint32_t> deal_stages(uint32_t ranks, uint32_t stages, StageOrder order) {
  std::vector<uint32_t> rank_of(stages);
  for (uint32_t stage = 0; stage < stages; ++stage) {
    const uint32_t at = stage % ranks;
    const bool is_back = order == StageOrder::kV && stage / ranks % 2 == 1;
    rank_of[stage] = is_back ? ranks - 1 - at : at;
  }
  return rank_of;
}

bool has_action(const Schedule& schedule, ActionKind kind, uint32_t stage) {
  const std::vector<Action>& actions = schedule.actions[schedule.rank_of[stage]];
  return std::any_of(actions.begin(), actions.end(),
                     [&](const Action& each) { return each.kind == kind && each.stage == stage; });
}

Level level_of(const Schedule& schedule) {
  Level level = Level::kCompute;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) {
      if (is_wait(action.kind)) return Level::kWaits;
      if (is_send(action.kind) || is_receive(action.kind)) level = Level::kTransfers;
    }
  }
  return level;
}

std::vector<std::vector<uint32_t>> stages_by_rank(const Schedule& schedule) {
  std::vector<std::vector<uint32_t>> stages(schedule.ranks());
  for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
    stages[schedule.rank_of[stage]].push_back(stage);
  }
  return stages;
}

Schedule without_bubbles(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.actions) {
    std::erase_if(actions, [](const Action& each) { return each.kind == ActionKind::kBubble; });
  }
  return schedule;
}

}  // namespace hetcomm::pipeline
