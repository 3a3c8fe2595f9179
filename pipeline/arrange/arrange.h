// Arranges the steps of a pipeline under a memory limit. If the limit is too low for the warm-up
// steps that a schedule's rule requires, arrange() searches for another order of steps. The rule's
// order with fewer warm-up steps would be slower than 1F1B.
#pragma once

#include <cstdint>

#include "pipeline/arrange/problem.h"
#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct ArrangeOptions {
  // The number of steps that the search may schedule or simulate, at about 20 to 200 ns each. The
  // search ends early if the slowest rank never waits, since no schedule can then be faster.
  uint64_t effort = 50'000'000;
  uint32_t seed = 1;
};

// Returns a sound schedule of level 1 within all limits. It is at least as fast as each known
// schedule that has the same steps and the same stages on each rank, and is within the limits:
// 1F1B, Eager-1F1B, ZB-H1 and ZB-H2, interleaved schedules, and ZB-V. The same arguments give the
// same schedule on every machine. Fails as check_problem() does, and with kInvalidArgument if no
// order was found.
Result<Schedule> arrange(const ArrangeProblem& problem, const ArrangeOptions& options = {});

}  // namespace hetcomm::pipeline
