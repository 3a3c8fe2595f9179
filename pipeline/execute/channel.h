// Channel moves data in one direction of a boundary, and owns the buffers. It posts receives ahead,
// sends what a step has made, and knows which buffer a micro-batch has.
//
//   sender      acquire() waits for room -> the step writes -> send()
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

// ChannelPlace holds what all channels of a rank share.
struct ChannelPlace {
  hetcomm_context_t* context = nullptr;
  hetcomm_communicator_t* communicator = nullptr;
  int32_t device = 0;
  bool is_host_accessible = false;  // the CPU may touch the device's memory
  hetcomm_stream_t* stream = nullptr;
  // The reshard plans of a pipeline plan have tags of their own. Two plans of a pipeline take
  // turns, because both are there while one replaces the other. Tags are not used again after
  // channels could not be opened: ranks may have made different numbers of reshard plans with them.
  uint64_t generation = 0;
};

// Labels and bounds the operations of a run.
struct RunLimits {
  uint64_t step = 0;
  Terms* terms = nullptr;
  uint64_t deadline_ns = UINT64_MAX;  // of the run, by the steady clock; UINT64_MAX: none
  Patience patience;

  // Returns the time from now to the deadline; UINT64_MAX without one. kTimedOut: it has passed.
  Result<uint64_t> left_ns() const;
};

class Channel {
 public:
  // |programs| describe the channel in each kind of run. They differ only in items and buffers.
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

  // Begins a run. A receiver posts its first receives. |lengths| has to live until the run has
  // ended.
  Status begin(RunKind kind, const RunLimits& limits, const std::vector<uint8_t>& lengths);
  // Takes a buffer for |micro_batch|. A sender waits until it is free. Sender and local only.
  Status acquire(uint32_t micro_batch);
  Status send(uint32_t micro_batch);
  // Returns whether the data of |micro_batch| is here. Does not wait.
  Result<bool> look(uint32_t micro_batch);
  // Waits until the data of |micro_batch| is here.
  Status await(uint32_t micro_batch) {
    return limits_.terms->wait_for(buffers_[buffer_of_[micro_batch]].request, limits_.patience);
  }
  // Says that a step takes an item: a receiver posts its next receive.
  Status take();
  void release(uint32_t micro_batch);
  // Ends a run: waits until all data has left.
  Status settle();
  // Waits until no operation is under way. The communicator must have been aborted.
  void drain();

 private:
  // Says which parts of a buffer a micro-batch of one length uses. Both lists are by tensor.
  struct Share {
    std::vector<hetcomm_buffer_t> data;
    std::vector<hetcomm_pipeline_tensor_t> tensors;
  };
  struct Buffer {
    std::vector<Share> shares;             // by length
    hetcomm_request_t* request = nullptr;  // the operation that uses the buffer
  };
  // A length that micro-batches may have, or the only one.
  struct Length {
    std::vector<PlanTensor> tensors;            // of that length
    std::vector<std::vector<uint64_t>> shapes;  // of this rank, by tensor
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
  std::vector<Length> lengths_;        // by index in PlanPipeline::lengths, or one
  std::vector<OwnedMemory> memories_;  // by tensor
  const std::vector<uint8_t>* lengths_of_run_ = nullptr;
  hetcomm_stream_t* stream_ = nullptr;
  std::vector<Buffer> buffers_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> buffer_of_;  // by micro-batch
  RunLimits limits_;
  uint32_t posted_ = 0;
  uint64_t buffer_bytes_ = 0;
};

// Returns the steady clock in nanoseconds.
uint64_t clock_ns();

}  // namespace hetcomm::pipeline
