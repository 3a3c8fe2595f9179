// Makes schedules with a list scheduler. Whenever a rank is free, it takes the step that a rule
// prefers among those that can run soonest.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/arrange/problem.h"
#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// The rule for when a rank takes W. It always takes W if it has nothing else to do.
enum class WeightRule : uint8_t {
  kFillsGaps,    // when nothing else could run before W would have ended
  kFillsHalves,  // when nothing else could run before half of W's time
  kFreesMemory,  // as kFillsGaps, and when a forward step waits for memory
  kFirst,        // before a step that would have to wait, and when one waits for memory
};
struct ListRule {
  std::vector<uint32_t> warmups;  // by stage: a forward step comes first while fewer are alive
  WeightRule weight = WeightRule::kFillsGaps;
};

// Returns a schedule within all limits, or nothing if the rule comes to a point where no rank may
// take a step. |problem| has passed check_problem(). The order does not depend on
// |problem|.in_flight.
std::optional<Schedule> list_schedule(const ArrangeProblem& problem, const ListRule& rule);

}  // namespace hetcomm::pipeline
