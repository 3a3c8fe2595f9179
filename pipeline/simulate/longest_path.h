// Simulates a schedule by longest paths (Hapt, section 5.2). The nodes are steps and transfers. The
// edges are the order of a rank, the order of a link, and the data dependencies.
//
// Every boundary has a separate link for each direction, over which items are transferred in the
// order in which they are sent. events.h simulates shared links and NICs, and staging.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/forecast.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct SimulateOptions {
  // For level 1: as CheckOptions::in_flight (check.h), except that an empty list means no bound, so
  // data is sent as soon as it is ready. The sender is notified that an item was taken after the
  // latency of the other direction. At the higher levels, a transfer starts when both its send and
  // its receive have been reached.
  std::vector<uint32_t> in_flight;
  StepLengths lengths;       // empty: steps take the times of their stages in |times|
  bool keeps_spans = false;  // true: fills in Forecast::actions and Forecast::bounds
};

// Fails with kInvalidArgument if |times| has another number of stages or boundaries, or times that
// are too long.
Status check_times(const Schedule& schedule, const PipelineTimes& times);

// Simulates a sound schedule (check.h) of any level. Fails as check_times() does. Fails with
// kInvalidArgument if the schedule deadlocks, because it is not sound, or because receives are
// posted in another order than the items are sent.
Result<Forecast> simulate(const Schedule& schedule, const PipelineTimes& times,
                          const SimulateOptions& options = {});

}  // namespace hetcomm::pipeline
