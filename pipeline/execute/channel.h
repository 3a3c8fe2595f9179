// Channel: one direction of a boundary, with its buffers. Posts receives ahead, sends what a step
// has made, and knows which buffer a micro-batch has.
//
//   sender      acquire() waits for room -> the step writes -> send()
//   receiver    post() as many as are in flight -> await() -> take(), which posts the next
//               -> steps read -> release()
//   local       acquire() -> the step writes -> take() -> steps read -> release()
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/execute/api.h"
#include "pipeline/execute/program.h"
#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The channels of a rank share these.
struct ChannelPlace {
  hetcomm_context_t* context = nullptr;
  hetcomm_communicator_t* communicator = nullptr;
  int32_t device = 0;
  bool is_host_accessible = false;  // the CPU may touch the device's memory
  hetcomm_stream_t* stream = nullptr;
};

// Labels and bounds the operations of a run.
struct RunLimits {
  uint64_t step = 0;
  uint64_t deadline_ns = UINT64_MAX;  // of the run, by the steady clock; UINT64_MAX: none
  uint64_t wait_ns = UINT64_MAX;      // of each wait

  // Returns how long something may take that begins now: kTimedOut when the deadline has passed.
  Result<uint64_t> left_ns() const;
};

class Channel {
 public:
  Channel(const ProgramChannel& channel, const PlanPipeline& pipeline)
      : program_(channel), pipeline_(pipeline) {}
  Channel(Channel&&) = default;

  // Allocates the buffers and makes the reshard plan.
  Status open(const ChannelPlace& place);

  ChannelRole role() const { return program_.role; }
  const ProgramChannel& program() const { return program_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  // The tensors of |micro_batch|, which has a buffer.
  const std::vector<hetcomm_pipeline_tensor_t>& tensors(uint32_t micro_batch) const {
    return buffers_[buffer_of_[micro_batch]].tensors;
  }

  // Begins a run. A receiver posts its first receives.
  Status begin(const RunLimits& limits);
  // Waits until a buffer for |micro_batch| is free. Sender and local only.
  Status acquire(uint32_t micro_batch);
  Status send(uint32_t micro_batch);
  // Waits until the data of |micro_batch| is here.
  Status await(uint32_t micro_batch) { return wait_for(buffers_[buffer_of_[micro_batch]]); }
  // Takes the item: the receiver posts its next receive.
  Status take();
  void release(uint32_t micro_batch);
  // Waits until all data has left, at the end of a run.
  Status settle();
  // Waits until no operation is under way. The communicator was aborted.
  void drain();

 private:
  struct Buffer {
    std::vector<hetcomm_buffer_t> data;  // by tensor
    std::vector<hetcomm_pipeline_tensor_t> tensors;
    hetcomm_request_t* request = nullptr;  // the operation that uses the buffer
  };

  Status make_reshard(const ChannelPlace& place);
  Status allocate(const ChannelPlace& place);
  Status wait_for(Buffer& buffer);
  Status post();
  Status start(uint32_t micro_batch, Buffer& buffer);
  uint32_t pop_free();

  const ProgramChannel& program_;
  const PlanPipeline& pipeline_;
  std::vector<const PlanTensor*> tensors_;
  std::vector<std::vector<uint64_t>> shapes_;  // of this rank, by tensor
  OwnedReshard reshard_;
  std::vector<OwnedMemory> memories_;  // by tensor
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
