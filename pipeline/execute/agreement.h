// Lets all ranks find out whether each of them could do its part, and with the same plan.
#pragma once

#include <cstdint>

#include <hetcomm/hetcomm.h>

#include "pipeline/plan/plan_json.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// Collective. Returns |own| if it is a failure. Otherwise fails with kAborted if another rank has
// failed, with that rank's status and reason, and with kMismatch if ranks have different |hash|es.
// |timeout_ns| as in hetcomm_collective_options_t.
Status agree(hetcomm_communicator_t* communicator, const Status& own, const PlanHash& hash,
             uint64_t timeout_ns);

}  // namespace hetcomm::pipeline
