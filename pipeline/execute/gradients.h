// GradientSums: adds up the gradients that a rank has given over the ranks that hold the same, as
// the stages of this rank finish theirs.
//
// Each set of ranks (sum_plan.h) has a communicator. Its buckets are started in their order, by
// each rank as soon as its stages have made them and those before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/execute/api.h"
#include "pipeline/execute/channel.h"
#include "pipeline/execute/norm.h"
#include "pipeline/execute/program.h"
#include "pipeline/execute/sum_plan.h"
#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

class GradientSums {
 public:
  // Reads what this rank gives, and checks it against |plan|. |plan| must live until open() has
  // returned. The rank is program.rank. Plain pointers may lead to memory of a device of |context|.
  Status give(const hetcomm_pipeline_gradient_t* gradients, size_t count,
              hetcomm_context_t* context, const PipelinePlan& plan, const Program& program);
  // Collective, after give() has succeeded on all ranks: learns what the other ranks hold, and
  // makes the sets.
  Status open(const ChannelPlace& place, uint64_t timeout_ns);

  // Return whether this rank adds up nothing, and whether it has given any gradient at all.
  bool is_empty() const { return buckets_.empty(); }
  bool has_gradients() const { return !given_.empty(); }
  uint64_t buffer_bytes() const { return buffer_bytes_; }

  void begin();
  // Says that the steps of chunk |chunk| have made all its gradients. Starts the sums that can
  // start.
  Status finish_chunk(uint32_t chunk, const RunLimits& limits);
  // Starts what was not started, and waits until all sums are there. In the wait, check() tells
  // whether the run has ended.
  Status settle(const RunLimits& limits, const std::function<Status()>& check);
  // Adds the elements that count on this rank to |norm|. No run may be under way.
  Status measure(GradientNorm& norm) const;
  // Waits until no operation is under way. The communicator that open() got must have been aborted.
  void drain();

 private:
  struct Given {
    HeldGradient held;
    hetcomm_buffer_t buffer{};
    uint64_t chunks = 0;  // bits: chunks of this rank that hold the item
  };
  struct Bucket {
    const SumBucket* plan = nullptr;
    std::vector<std::byte> packed;  // empty: the sum is formed in the buffer of the only piece
    uint64_t chunks = 0;            // bits: chunks that have to finish before it starts
    hetcomm_request_t* request = nullptr;
  };
  struct Set {
    OwnedCommunicator communicator;
    std::vector<size_t> buckets;  // in the order in which they start
    size_t started = 0;
  };

  Status check_complete(const std::vector<std::vector<HeldGradient>>& held) const;
  Status exchange(const ChannelPlace& place, uint64_t timeout_ns,
                  std::vector<std::vector<HeldGradient>>& held) const;
  Status split(const ChannelPlace& place);
  Status start_ready(const RunLimits& limits);
  std::string describe(const Bucket& bucket) const;
  Status start(Set& set, Bucket& bucket, const RunLimits& limits);
  bool is_dense(const SumBucket& bucket) const;
  Status move_piece(const SumPiece& piece, std::byte* packed, bool to_packed) const;

  const PipelinePlan* of_ = nullptr;
  std::vector<Given> given_;
  SumPlan plan_;
  std::vector<Set> sets_;  // the sets that this rank is in
  std::vector<Bucket> buckets_;
  uint64_t finished_ = 0;  // bits: chunks that have finished in this run
  uint64_t buffer_bytes_ = 0;
};

}  // namespace hetcomm::pipeline
