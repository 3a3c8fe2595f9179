// Simulates a schedule by longest paths (Hapt, section 5.2): nodes are the steps and transfers, and
// edges are the order of a rank, the order of a link, and the data.
//
// Every boundary has a link of its own for each direction, on which the items go in the order in
// which they are sent. events.h simulates shared links and NICs, and staging.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/forecast.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct SimulateOptions {
  // For level 1: as CheckOptions::in_flight (check.h), except that an empty list sets no bound.
  // Data then goes as soon as it is there. The sender learns that an item was taken after the
  // latency of the other direction. At the higher levels a transfer starts when both its send and
  // its receive have been reached.
  std::vector<uint32_t> in_flight;
  StepLengths lengths;       // empty: steps take what |times| say of their stages
  bool keeps_spans = false;  // whether the forecast has Forecast::actions
};

// Fails with kInvalidArgument if |times| are for another number of stages or boundaries, or too
// long.
Status check_times(const Schedule& schedule, const PipelineTimes& times);

// Simulates a sound schedule (check.h) of any level. Fails as check_times() does, and with
// kInvalidArgument if the schedule cannot go on: it is not sound, or receives are posted in another
// order than the items are sent.
Result<Forecast> simulate(const Schedule& schedule, const PipelineTimes& times,
                          const SimulateOptions& options = {});

}  // namespace hetcomm::pipeline
