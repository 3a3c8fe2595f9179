// Makes the outlook of a whole plan: all its pipelines at once, over the links of a model.
#pragma once

#include "pipeline/joint/forecast_question.h"
#include "pipeline/outlook/outlook.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// Simulates the plan of |question|, with its items in flight. A rank of the outlook is a group of
// ranks, by whose ranks it is called. With several pipelines their stages are numbered on.
// Resources that carry nothing are left out, and the busiest comes first. Fails as routes_of() and
// simulate_events() do, with kInvalidArgument if all transfers together take longer than 2^61 ns,
// or the pipelines have more than kMaxStages stages together, and with kOutOfResources if stages
// times micro-batches are more than kMaxQuestionSteps.
Result<Outlook> look_at_plan(const ForecastQuestion& question);

}  // namespace hetcomm::pipeline
