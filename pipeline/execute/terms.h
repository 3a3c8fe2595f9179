// The terms of a run are the values that all ranks have to agree on. Each rank sends its terms when
// its run begins, and computes until the answers arrive. The terms are compared as soon as all
// ranks have sent theirs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "pipeline/execute/patience.h"
#include "pipeline/execute/program.h"
#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The terms of a run on one rank.
struct RunTerms {
  uint64_t step = 0;
  RunKind kind = RunKind::kTrain;
  // lengths[m] is the index in PlanPipeline::lengths of the length of micro-batch m. Empty if this
  // rank does not know the lengths.
  std::vector<uint8_t> lengths;
};

class Terms {
 public:
  // Sends the terms |own| of a rank of |pipeline| to all ranks of |communicator|. Collective. Does
  // not wait.
  Status tell(hetcomm_communicator_t* communicator, const PipelinePlan& plan, uint32_t pipeline,
              const RunTerms& own, uint64_t timeout_ns);

  // Compares the terms if those of all ranks have arrived. Does not wait. Fails with kMismatch if
  // they differ, or if no rank has the length of a micro-batch.
  Status look();
  // Waits until the terms have been compared.
  Status settle(const Patience& patience);
  // Waits for |request|, and compares the terms during the wait, since ranks with different terms
  // could wait for each other forever. Sets |request| to nullptr, unless the wait fails.
  Status wait_for(hetcomm_request_t*& request, const Patience& patience);
  // Waits until no operation is in progress. The communicator must have been aborted.
  void drain();

  // Returns the lengths of this rank's pipeline, indexed by micro-batch. Empty if the plan has
  // none. Valid once the terms have been compared.
  const std::vector<uint8_t>& lengths() const { return lengths_; }

 private:
  std::optional<Status> wait_any(hetcomm_request_t*& request, uint64_t timeout_ns);
  Status compare();
  Status compare_lengths(uint32_t pipeline, size_t first);

  const PipelinePlan* plan_ = nullptr;
  uint32_t pipeline_ = 0;
  hetcomm_request_t* request_ = nullptr;
  std::vector<uint64_t> own_;
  std::vector<uint64_t> most_;  // the maximum of each word over all ranks
  std::vector<uint8_t> lengths_;
};

}  // namespace hetcomm::pipeline
