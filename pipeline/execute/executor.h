// Executor runs a pipeline plan on one rank. Its contract is that of hetcomm/pipeline.h.
//
// The calling thread executes the program (program.h) step by step: it waits for the input of a
// step and for free output buffers, posts the next receives, calls the trainer and sends the
// output. The executor has a separate communicator for its data, so an abort ends the pipeline on
// all ranks and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/execute/api.h"
#include "pipeline/execute/channel.h"
#include "pipeline/execute/gradients.h"
#include "pipeline/execute/loaded_plan.h"
#include "pipeline/execute/program.h"
#include "pipeline/execute/terms.h"
#include "pipeline/execute/trace.h"
#include "pipeline/execute/trainer.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

class Executor {
 public:
  // Collective over |communicator|. If it fails on one rank, it fails on all. |known| is the status
  // of the caller's own checks. If it is a failure, the call reports it to the other ranks.
  static Result<std::unique_ptr<Executor>> create(hetcomm_communicator_t* communicator,
                                                  std::string_view plan, Trainer trainer,
                                                  uint64_t timeout_ns, const Status& known);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs the plan once. Fails with kInvalidArgument, and begins no run, if |options| do not match
  // the plan.
  Status run(const hetcomm_pipeline_run_options_t& options);
  // Replaces the plan between two runs. Collective. If it fails on any rank, nothing changes on any
  // rank. If the ranks cannot agree on the outcome, it ends the pipeline. |known| is as for
  // create().
  Status set_schedule(std::string_view plan, uint64_t timeout_ns, const Status& known);
  // Replaces the gradients that runs add up. Collective, with the same rules as set_schedule().
  Status set_gradients(const hetcomm_pipeline_gradient_t* gradients, size_t count,
                       uint64_t timeout_ns, const Status& known);
  // Adds up |values| over all ranks, and computes the norm of the gradients unless |totals| is
  // null. Collective, with the same rules as set_schedule().
  Status total(double* values, size_t count, hetcomm_pipeline_totals_t* totals, uint64_t timeout_ns,
               const Status& known);
  Status cancel(const char* reason);
  // Fails with kForked in a forked child.
  Status check_process() const;

  hetcomm_pipeline_facts_t facts() const;
  // The program and the record of the last run that reached its first step.
  const Program& last_program() const { return loaded_->program(record_.kind); }
  const RunRecord& last_run() const { return record_; }

 private:
  Executor() = default;

  // The options of one run, as in hetcomm_pipeline_run_options_t.
  struct RunWish {
    RunTerms terms;
    uint64_t timeout_ns = 0;
    hetcomm_pipeline_interrupt_t interrupt = nullptr;
    void* interrupt_user_data = nullptr;
  };
  // The arguments of a callback. Each list has the tensors of several channels, channel by channel.
  struct Call {
    hetcomm_pipeline_action_t action;
    std::vector<hetcomm_pipeline_tensor_t> inputs;
    std::vector<hetcomm_pipeline_tensor_t> outputs;
    std::vector<hetcomm_pipeline_tensor_t> output_grads;
    std::vector<hetcomm_pipeline_tensor_t> input_grads;
  };

  Status prepare(hetcomm_communicator_t* communicator, std::string_view plan);
  Status find_wait_limit();
  Status find_place(hetcomm_communicator_t* communicator);
  void use(std::unique_ptr<LoadedPlan> loaded, RunRecord record);

  Result<RunWish> wish_of(const hetcomm_pipeline_run_options_t& options) const;
  Status run(const RunWish& wish);
  Status perform(const RunWish& wish);
  // Runs |count| steps beginning with |first|: one step, or the two steps of a pair.
  Status perform_steps(size_t first, size_t count);
  Status at_step(const Status& failure, size_t index) const;
  // Makes progress, and fails if the run has been cancelled or aborted, if its time limit has
  // passed, or if the ranks have been found to have different terms.
  Status check_run();
  Status check_waiting();
  Status wait_for(size_t index, StepRecord& record);
  Status wait_for_data(const std::vector<uint32_t>& taken, uint32_t micro_batch,
                       uint64_t& has_data_ns);
  Status wait_for_room(const std::vector<uint32_t>& made, uint32_t micro_batch);
  void begin_record();
  Status call(size_t first, size_t count, const StepRecord* records);
  void keep(StepRecord record, uint64_t start_ns);
  template <typename Body>
  Status status_of_callback(Body&& body) const;
  void fill(const ProgramStep& step, Call& call);
  uint64_t length_of(const Action& action) const;
  void gather(const std::vector<uint32_t>& channels, uint32_t micro_batch,
              std::vector<hetcomm_pipeline_tensor_t>& tensors) const;
  Status call_one(const ProgramStep& step, const Call& call);
  Status outcome(hetcomm_status_t status) const;
  Status finish(const ProgramStep& step);
  Status announce_sums(const ProgramStep& step);
  void release(const std::vector<uint32_t>& channels, uint32_t micro_batch);
  Status wait_for_end();
  // Waits until all ranks have reached the end of the run.
  Status meet_all();
  static Status asked(const RunWish& wish);
  Status told_here(const Status& failure) const;
  std::string describe_place() const;
  void announce(const Status& failure);
  Status fail(const Status& failure);
  Status fail_between_runs(const Status& failure);

  Trainer trainer_;
  OwnedCommunicator communicator_;
  ChannelPlace place_;
  std::unique_ptr<LoadedPlan> loaded_;
  std::unique_ptr<GradientSums> sums_;
  uint32_t rank_ = 0;
  RunKind kind_ = RunKind::kTrain;    // kind of the current run
  const Program* program_ = nullptr;  // program of the current run, or of the last one
  bool is_recorded_ = false;          // |record_| belongs to the current run
  Terms terms_;
  hetcomm_request_t* meeting_ = nullptr;  // the barrier at the end of a run
  Call calls_[2];
  char reason_[512] = {};
  RunRecord record_;
  uint64_t run_began_ns_ = 0;
  uint64_t wait_limit_ns_ = 0;  // the value of HETCOMM_TIMEOUT
  RunLimits limits_;
  size_t at_ = 0;  // index of the current step
  hetcomm_pipeline_facts_t facts_{};
  Status ended_;  // the failure that has ended the pipeline
  std::atomic<bool> is_cancelled_{false};
  std::mutex cancel_mutex_;
  std::string cancel_reason_;
};

}  // namespace hetcomm::pipeline
