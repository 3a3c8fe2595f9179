// Makes schedules with a list scheduler. Whenever a rank is free, it runs the step that a rule
// prefers among those that can run soonest.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/arrange/problem.h"
#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// The rule for when a rank runs a weight-gradient step (W). If nothing else can run, it always runs
// W.
enum class WeightRule : uint8_t {
  kFillsGaps,    // if no other step can start before W would end
  kFillsHalves,  // if no other step can start in the first half of W
  kFreesMemory,  // as kFillsGaps, or if a forward step is waiting for memory
  kFirst,        // if the next step would have to wait, or a forward step is waiting for memory
};
struct ListRule {
  // Indexed by stage. If a forward and a backward step could start at the same time, the forward
  // step runs first as long as fewer than this number of micro-batches are between the two.
  std::vector<uint32_t> warmups;
  WeightRule weight = WeightRule::kFillsGaps;
};

// Returns a schedule within all limits, or nullopt if the rule leads to a point where no rank can
// run a step. |problem| has passed check_problem(). The order does not depend on
// |problem|.in_flight.
std::optional<Schedule> list_schedule(const ArrangeProblem& problem, const ListRule& rule);

}  // namespace hetcomm::pipeline
