// Executor: performs a pipeline plan on one rank. Its contract is that of hetcomm/pipeline.h.
//
// The calling thread goes through the program (program.h): it waits for what a step reads and for
// room for what it writes, posts the next receives, calls the trainer and sends what was made. Data
// moves in a communicator of the executor's own, so that an abort ends the pipeline on all ranks and
// nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/execute/api.h"
#include "pipeline/execute/channel.h"
#include "pipeline/execute/program.h"
#include "pipeline/execute/trace.h"
#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The trainer's side: copies of what hetcomm_pipeline_create() got.
struct Trainer {
  std::vector<hetcomm_pipeline_chunk_t> chunks;
  hetcomm_stream_t* stream = nullptr;
  hetcomm_pipeline_pair_t pair = nullptr;
  void* pair_user_data = nullptr;
};

class Executor {
 public:
  // Collective over |communicator|; fails on all ranks if it fails on one. |known| is the status of
  // what the caller has checked before: the call tells the other ranks if it is a failure.
  static Result<std::unique_ptr<Executor>> create(hetcomm_communicator_t* communicator,
                                                  std::string_view plan, Trainer trainer,
                                                  uint64_t timeout_ns, const Status& known);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Status run(uint64_t step, uint64_t timeout_ns);
  Status cancel(const char* reason);
  // Fails with kForked in a forked child.
  Status check_process() const;

  hetcomm_pipeline_facts_t facts() const;
  const Program& program() const { return program_; }
  const RunRecord& last_run() const { return record_; }

 private:
  Executor() = default;

  // The next callback gets this: the tensors of its channels, one behind the other.
  struct Call {
    hetcomm_pipeline_action_t action;
    std::vector<hetcomm_pipeline_tensor_t> inputs;
    std::vector<hetcomm_pipeline_tensor_t> outputs;
    std::vector<hetcomm_pipeline_tensor_t> output_grads;
    std::vector<hetcomm_pipeline_tensor_t> input_grads;
  };

  Status prepare(hetcomm_communicator_t* communicator, std::string_view plan);
  Status check_callbacks() const;
  Status check_stream() const;
  Status find_wait_limit();
  Status open_channels(hetcomm_communicator_t* communicator);

  Status perform();
  // Performs |count| steps from |first| on: one, or a pair.
  Status perform_steps(size_t first, size_t count);
  // Fails if the run has ended meanwhile.
  Status check_run() const;
  Status wait_for(size_t index, StepRecord& record);
  Status call(size_t first, size_t count, const StepRecord* records);
  void keep(StepRecord record, uint64_t start_ns);
  template <typename Body>
  Status status_of_callback(Body&& body) const;
  void fill(const ProgramStep& step, Call& call);
  void gather(const std::vector<uint32_t>& channels, uint32_t micro_batch,
              std::vector<hetcomm_pipeline_tensor_t>& tensors) const;
  Status call_one(const ProgramStep& step, const Call& call);
  Status outcome(hetcomm_status_t status) const;
  Status finish(const ProgramStep& step);
  void release(const std::vector<uint32_t>& channels, uint32_t micro_batch);
  Status end();
  // Waits until all ranks have come here, and compares their numbers of the training step.
  Status meet_all();
  Status told_here(const Status& failure) const;
  std::string describe_place() const;
  Status fail(const Status& failure);

  PipelinePlan plan_;
  Program program_;
  Trainer trainer_;
  hetcomm_context_t* context_ = nullptr;
  OwnedCommunicator communicator_;
  std::vector<Channel> channels_;  // as Program::channels
  Call calls_[2];
  char reason_[512] = {};
  RunRecord record_;
  uint64_t run_began_ns_ = 0;
  uint64_t wait_limit_ns_ = 0;  // HETCOMM_TIMEOUT
  RunLimits limits_;
  size_t at_ = 0;  // the step that is performed
  hetcomm_pipeline_facts_t facts_{};
  Status ended_;  // why the pipeline has ended
  std::atomic<bool> is_cancelled_{false};
  std::mutex cancel_mutex_;
  std::string cancel_reason_;
};

}  // namespace hetcomm::pipeline
