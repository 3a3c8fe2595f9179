// Arranges the steps of a pipeline under a memory limit. A limit below the warm-up of a schedule's
// rule calls for another order of steps. The rule's order with fewer warm-up steps would be slower
// than 1F1B.
#pragma once

#include <cstdint>

#include "pipeline/arrange/problem.h"
#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct ArrangeOptions {
  // Steps that the search may schedule or simulate: some 20 to 200 ns each. The search ends earlier
  // if nothing can be better: the slowest rank does not wait.
  uint64_t effort = 50'000'000;
  uint32_t seed = 1;
};

// Returns a sound schedule of level 1 within all limits. It takes no longer than the known
// schedules for the same stages of each rank, as far as these keep the limits: 1F1B, Eager-1F1B,
// ZB-H1 and ZB-H2; interleaved schedules; ZB-V. The same arguments give the same schedule on every
// machine. Fails as check_problem() does, and with kInvalidArgument if no order was found.
Result<Schedule> arrange(const ArrangeProblem& problem, const ArrangeOptions& options = {});

}  // namespace hetcomm::pipeline
