// Lets all ranks determine whether every rank has succeeded, and whether all have the same plan.
#pragma once

#include <cstdint>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "pipeline/plan/plan_json.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The functions that all ranks have to call together.
enum class JointCall : uint32_t { kCreate, kSetSchedule, kSetGradients, kTotal };

// The outcome of an agreement among ranks.
struct Agreement {
  Status status;
  // True if every rank gets the same outcome. Otherwise the collective operation has failed here,
  // and another rank may believe that all have agreed.
  bool all_know = false;
};

// Collective. If |own| is a failure, the status is |own|. If another rank has failed, it is
// kAborted, and the text has that rank's status and reason. If ranks have different |call|s or
// |hash|es, it is kMismatch. |timeout_ns| is as in hetcomm_collective_options_t.
Agreement agree(hetcomm_communicator_t* communicator, JointCall call, const Status& own,
                const PlanHash& hash, uint64_t timeout_ns);

// Collective. Returns the words of all ranks, indexed by rank. |timeout_ns| bounds each of two
// exchanges.
Result<std::vector<std::vector<uint64_t>>> gather(hetcomm_communicator_t* communicator,
                                                  const std::vector<uint64_t>& own,
                                                  uint64_t timeout_ns);

}  // namespace hetcomm::pipeline
