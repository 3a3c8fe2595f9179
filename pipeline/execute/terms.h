// Terms of a run: what all ranks have to agree on. Each rank tells its terms when its run begins,
// and computes until it has the answers. They are compared as soon as all ranks have told theirs.
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

// Describes a run as one rank knows it.
struct RunTerms {
  uint64_t step = 0;
  RunKind kind = RunKind::kTrain;
  // By micro-batch, as indices of PlanPipeline::lengths. Empty: this rank does not know them.
  std::vector<uint8_t> lengths;
};

class Terms {
 public:
  // Tells all ranks of |communicator| the terms of a rank of |pipeline|. Collective; does not wait.
  Status tell(hetcomm_communicator_t* communicator, const PipelinePlan& plan, uint32_t pipeline,
              const RunTerms& own, uint64_t timeout_ns);

  // Compares the terms if all ranks have told theirs. Does not wait. Fails with kMismatch if they
  // differ, or if no rank knows the length of a micro-batch.
  Status look();
  // Waits until the terms are compared.
  Status settle(const Patience& patience);
  // Waits for |request|, and compares the terms during the wait: ranks whose terms differ may wait
  // for each other without end. |request| is nullptr afterwards, unless the wait has failed.
  Status wait_for(hetcomm_request_t*& request, const Patience& patience);
  // Waits until no operation is under way. The communicator must have been aborted.
  void drain();

  // Returns the lengths of this rank's pipeline, by micro-batch. Empty if the plan has none. Valid
  // once the terms were compared.
  const std::vector<uint8_t>& lengths() const { return lengths_; }

 private:
  std::optional<Status> wait_any(hetcomm_request_t*& request, uint64_t timeout_ns);
  Status compare();
  Status compare_lengths(uint32_t pipeline, size_t first);

  const PipelinePlan* plan_ = nullptr;
  uint32_t pipeline_ = 0;
  hetcomm_request_t* request_ = nullptr;
  std::vector<uint64_t> own_;
  std::vector<uint64_t> most_;  // the greatest value of each word, over all ranks
  std::vector<uint8_t> lengths_;
};

}  // namespace hetcomm::pipeline
