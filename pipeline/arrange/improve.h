// Improves a schedule by simulated annealing. Each trial moves one step of one rank, and simulates
// the result. A move that makes the schedule slower is kept only within a small tolerance, which
// falls to 0 over the trials.
#pragma once

#include <cstdint>

#include "pipeline/arrange/problem.h"
#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

struct ImproveOptions {
  uint64_t trials = 0;  // number of trials; each moves one step and simulates the schedule
  uint32_t seed = 1;
};

// Returns the best schedule that was found, which takes no longer than |schedule|. |schedule| must
// be within the limits and possible to simulate. If it contains pairs, or actions other than
// computations, it is returned unchanged. The same arguments give the same schedule on every
// machine.
Schedule improve(const ArrangeProblem& problem, const Schedule& schedule,
                 const ImproveOptions& options);

// Returns the time of an iteration, or UINT64_MAX if the schedule deadlocks.
uint64_t time_of(const ArrangeProblem& problem, const Schedule& schedule);

}  // namespace hetcomm::pipeline
