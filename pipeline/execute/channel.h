// Channel moves data in one direction across a boundary between stages, and owns the buffers. It
// posts receives ahead, sends the output of a step, and assigns buffers to micro-batches.
//
//   sender      acquire() waits for a free buffer -> the step writes -> send()
//   receiver    post() as many as are in flight -> await() -> take(), which posts the next
//               -> steps read -> release()
//   local       acquire() -> the step writes -> take() -> steps read -> release()
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/execute/api.h"
#include "pipeline/execute/program.h"
#include "pipeline/execute/terms.h"
#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// ChannelPlace holds the state that all channels of a rank share.
struct ChannelPlace {
  hetcomm_context_t* context = nullptr;
  hetcomm_communicator_t* communicator = nullptr;
  int32_t device = 0;
  bool is_host_accessible = false;  // true if the CPU can access the device's memory
  hetcomm_stream_t* stream = nullptr;
  // Selects the tags of the reshard plans of a pipeline plan. Two sets of tags alternate, because
  // both plans exist while one replaces the other. Tags are not reused after channels could not be
  // opened, since ranks may have made different numbers of reshard plans with them.
  uint64_t generation = 0;
};

// Labels and time limits for the operations of a run.
struct RunLimits {
  uint64_t step = 0;
  Terms* terms = nullptr;
  uint64_t deadline_ns = UINT64_MAX;  // deadline of the run on the steady clock; UINT64_MAX: none
  Patience patience;

  // Returns the time left until the deadline, or UINT64_MAX without one. Fails with kTimedOut if it
  // has passed.
  Result<uint64_t> left_ns() const;
};

class Channel {
 public:
  // |programs| describe the channel for each kind of run. They differ only in items and buffers.
  Channel(const std::array<const ProgramChannel*, kRunKinds>& programs,
          const PlanPipeline& pipeline)
      : programs_(programs), ends_(*programs.front()), pipeline_(pipeline) {}
  Channel(Channel&&) = default;

  // Allocates the buffers and makes the reshard plans.
  Status open(const ChannelPlace& place);

  ChannelRole role() const { return ends_.role; }
  uint32_t maker() const { return ends_.maker; }
  uint32_t taker() const { return ends_.taker; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  // Returns the tensors of |micro_batch|, which has a buffer.
  const std::vector<hetcomm_pipeline_tensor_t>& tensors(uint32_t micro_batch) const {
    return buffers_[buffer_of_[micro_batch]].shares[length_of(micro_batch)].tensors;
  }

  // Begins a run. A receiver posts its first receives. |lengths| must stay valid until the run has
  // ended.
  Status begin(RunKind kind, const RunLimits& limits, const std::vector<uint8_t>& lengths);
  // Assigns a buffer to |micro_batch|. A sender waits until it is free. For senders and local
  // channels only.
  Status acquire(uint32_t micro_batch);
  Status send(uint32_t micro_batch);
  // Returns whether the data of |micro_batch| has arrived. Does not wait.
  Result<bool> look(uint32_t micro_batch);
  // Waits until the data of |micro_batch| has arrived.
  Status await(uint32_t micro_batch) {
    return limits_.terms->wait_for(buffers_[buffer_of_[micro_batch]].request, limits_.patience);
  }
  // Records that a step has started to use an item. A receiver then posts its next receive.
  Status take();
  void release(uint32_t micro_batch);
  // Ends a run: waits until all data has been sent.
  Status settle();
  // Waits until no operation is in progress. The communicator must have been aborted.
  void drain();

 private:
  // Says which parts of a buffer a micro-batch of one length uses. Both lists are indexed by
  // tensor.
  struct Share {
    std::vector<hetcomm_buffer_t> data;
    std::vector<hetcomm_pipeline_tensor_t> tensors;
  };
  struct Buffer {
    std::vector<Share> shares;             // indexed by length
    hetcomm_request_t* request = nullptr;  // the operation that uses the buffer
  };
  // A length that micro-batches may have. There is a single one if PlanPipeline has no lengths.
  struct Length {
    std::vector<PlanTensor> tensors;            // the tensors with that length
    std::vector<std::vector<uint64_t>> shapes;  // the shapes on this rank, indexed by tensor
    OwnedReshard reshard;
  };

  void add_length(const PlanStage& own, const std::vector<const PlanTensor*>& tensors,
                  uint64_t length);
  Status make_reshard(const ChannelPlace& place, Length& length);
  Status allocate(const ChannelPlace& place);
  Status allocate_tensor(const ChannelPlace& place, size_t index);
  size_t length_of(uint32_t micro_batch) const {
    return lengths_of_run_->empty() ? 0 : (*lengths_of_run_)[micro_batch];
  }
  Status post();
  Status start(uint32_t micro_batch, Buffer& buffer);
  uint32_t pop_free();

  const std::array<const ProgramChannel*, kRunKinds> programs_;
  const ProgramChannel& ends_;
  const ProgramChannel* items_ = nullptr;  // the program of the current kind of run
  const PlanPipeline& pipeline_;
  std::vector<Length> lengths_;        // one for each of PlanPipeline::lengths, or one in all
  std::vector<OwnedMemory> memories_;  // indexed by tensor
  const std::vector<uint8_t>* lengths_of_run_ = nullptr;
  hetcomm_stream_t* stream_ = nullptr;
  std::vector<Buffer> buffers_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> buffer_of_;  // indexed by micro-batch
  RunLimits limits_;
  uint32_t posted_ = 0;
  uint64_t buffer_bytes_ = 0;
};

// Returns the time of the steady clock in nanoseconds.
uint64_t clock_ns();

}  // namespace hetcomm::pipeline
