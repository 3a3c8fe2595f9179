// Lets all ranks find out whether every rank could do its part, and whether all have the same plan.
#pragma once

#include <cstdint>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "pipeline/plan/plan_json.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The functions that all ranks call together.
enum class JointCall : uint32_t { kCreate, kSetSchedule, kSetGradients, kTotal };

// The outcome of an agreement among ranks.
struct Agreement {
  Status status;
  // All ranks come to the same end. Otherwise the communicator's collective operations have failed,
  // and another rank may believe that all have agreed.
  bool all_know = false;
};

// Collective. The status is |own| if that is a failure. Otherwise it is kAborted if another rank
// has failed, with that rank's status and reason, and kMismatch if ranks have different |call|s or
// |hash|es. |timeout_ns| as in hetcomm_collective_options_t.
Agreement agree(hetcomm_communicator_t* communicator, JointCall call, const Status& own,
                const PlanHash& hash, uint64_t timeout_ns);

// Collective. Returns the words of all ranks, by rank. |timeout_ns| bounds each of two exchanges.
Result<std::vector<std::vector<uint64_t>>> gather(hetcomm_communicator_t* communicator,
                                                  const std::vector<uint64_t>& own,
                                                  uint64_t timeout_ns);

}  // namespace hetcomm::pipeline
