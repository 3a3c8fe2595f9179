// Improves a schedule by simulated annealing. A trial moves a step of one rank, and is kept if the
// simulated time does not grow. Early trials may make the schedule a little slower.
#pragma once

#include <cstdint>

#include "pipeline/arrange/problem.h"
#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

struct ImproveOptions {
  uint64_t trials = 0;  // number of trials; each moves one step and simulates the schedule
  uint32_t seed = 1;
};

// Returns the best schedule that was found, which takes no longer than |schedule|. That one has
// steps only and no pairs, is within the limits, and can be simulated; another one is returned as
// it is. The same arguments give the same schedule on every machine.
Schedule improve(const ArrangeProblem& problem, const Schedule& schedule,
                 const ImproveOptions& options);

// Returns the time of an iteration, or UINT64_MAX if the schedule cannot go on.
uint64_t time_of(const ArrangeProblem& problem, const Schedule& schedule);

}  // namespace hetcomm::pipeline
