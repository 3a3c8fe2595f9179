// Makes the outlook of a whole plan, in which all pipelines run at once over the links of a model.
#pragma once

#include "pipeline/joint/forecast_question.h"
#include "pipeline/outlook/outlook.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// Simulates the plan of |question|, with the items in flight that the plan specifies. A rank of the
// outlook is a group of ranks, named after its members. If there are several pipelines, their
// stages are numbered consecutively. Resources without load are omitted, and the busiest resource
// comes first. Fails as routes_of() and simulate_events() do, with kInvalidArgument if all
// transfers together take longer than 2^61 ns, or if the pipelines together have more than
// kMaxStages stages, and with kOutOfResources if stages times micro-batches exceed
// kMaxQuestionSteps.
Result<Outlook> look_at_plan(const ForecastQuestion& question);

}  // namespace hetcomm::pipeline
