// A Schedule holds the actions of all ranks of one pipeline, in the order in which each rank runs
// them.
//
// A schedule has one of three levels. Level 1 has only computations, reductions and bubbles.
// Transfers between stages are implicit. Level 2 adds sends and receives, and a computation waits
// for its data. Level 3 adds waits. lower.h converts a schedule from one level to the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/action.h"

namespace hetcomm::pipeline {

enum class Level : uint8_t { kCompute = 1, kTransfers = 2, kWaits = 3 };

struct Schedule {
  uint32_t micro_batches = 0;
  std::vector<uint32_t> rank_of;             // indexed by stage
  std::vector<std::vector<Action>> actions;  // indexed by rank
  bool operator==(const Schedule&) const = default;

  uint32_t stages() const { return static_cast<uint32_t>(rank_of.size()); }
  uint32_t ranks() const { return static_cast<uint32_t>(actions.size()); }
  // Returns whether the output of |stage| is sent to another rank.
  bool crosses(uint32_t stage) const {
    return stage + 1 < stages() && rank_of[stage] != rank_of[stage + 1];
  }
};

// The order in which stages are assigned to ranks.
enum class StageOrder : uint8_t {
  kLoop,  // stage s is on rank s % ranks
  kV,     // as kLoop, but every second round of stages goes from the last rank to the first
};
std::vector<uint32_t> deal_stages(uint32_t ranks, uint32_t stages, StageOrder order);

// Returns the highest level of any action.
Level level_of(const Schedule& schedule);
// Returns whether the rank of |stage| has an action of |kind| for it.
bool has_action(const Schedule& schedule, ActionKind kind, uint32_t stage);
// Returns the stages of each rank, in ascending order.
std::vector<std::vector<uint32_t>> stages_by_rank(const Schedule& schedule);
// Returns the schedule without bubbles.
Schedule without_bubbles(Schedule schedule);

}  // namespace hetcomm::pipeline
