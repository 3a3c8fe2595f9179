// GradientSums adds up the gradients that a rank has specified, over all ranks that hold the same
// gradients. It starts the sums as the stages of this rank finish their gradients.
//
// Each set of ranks (sum_plan.h) has a communicator. Its buckets are started in a fixed order. A
// rank starts a bucket once its stages have finished the gradients of that bucket and of all
// earlier ones.
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
  // Stores the gradients of this rank, and checks them against |plan|, which must stay valid until
  // open() has returned. The rank is program.rank. Plain pointers may refer to device memory of
  // |context|.
  Status give(const hetcomm_pipeline_gradient_t* gradients, size_t count,
              hetcomm_context_t* context, const PipelinePlan& plan, const Program& program);
  // Collective, after give() has succeeded on all ranks. Exchanges the lists of gradients, and
  // creates the sets.
  Status open(const ChannelPlace& place, uint64_t timeout_ns);

  // is_empty() returns true if this rank takes part in no sum. has_gradients() returns true if it
  // has specified any gradients.
  bool is_empty() const { return buckets_.empty(); }
  bool has_gradients() const { return !given_.empty(); }
  uint64_t buffer_bytes() const { return buffer_bytes_; }

  void begin();
  // Records that the steps of |chunk| have finished all its gradients. Starts the sums that are
  // ready.
  Status finish_chunk(uint32_t chunk, const RunLimits& limits);
  // Starts the remaining sums, and waits until all are complete. Calls |check| during the wait. A
  // failure of |check| ends the wait.
  Status settle(const RunLimits& limits, const std::function<Status()>& check);
  // Adds to |norm| the elements that are assigned to this rank. No run may be in progress.
  Status measure(GradientNorm& norm) const;
  // Waits until no operation is in progress. The communicator that was passed to open() must have
  // been aborted.
  void drain();

 private:
  struct Given {
    HeldGradient held;
    hetcomm_buffer_t buffer{};
    uint64_t chunks = 0;  // bit set: the chunks of this rank that hold the item
  };
  struct Bucket {
    const SumBucket* plan = nullptr;
    std::vector<std::byte> packed;  // empty: the sum is formed in place in the only piece
    uint64_t chunks = 0;            // bit set: the chunks that have to finish before it starts
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
  std::vector<Set> sets_;  // the sets that include this rank
  std::vector<Bucket> buckets_;
  uint64_t finished_ = 0;  // bit set: the chunks that have finished in this run
  uint64_t buffer_bytes_ = 0;
};

}  // namespace hetcomm::pipeline
