#include "src/core/plan/runner.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "src/base/baton_role.h"
#include "src/base/copy.h"

namespace hetcomm::plan {
namespace {

// The part of a tag that tells pipelines apart.
constexpr uint64_t kPipelineMask = 0xff;

}  // namespace

class Runner::PipelineAddresses final : public Addresses {
 public:
  PipelineAddresses(const Runner& runner, const Pipeline& pipeline)
      : runner_(runner), pipeline_(pipeline) {}
  std::byte* of(const Range& range) const override HETCOMM_UNDER_BATON {
    if (range.buffer == BufferKind::kScratch) return pipeline_.scratch + range.offset;
    return range.length == 0 ? nullptr : runner_.client_->user_address(range);
  }

 private:
  const Runner& runner_;
  const Pipeline& pipeline_;
};

void Runner::start(CommunicatorBase& communicator, RunnerClient& client, uint64_t pipelines,
                   uint64_t tag) {
  communicator_ = &communicator;
  client_ = &client;
  tag_ = tag;
  pipelines_ = pipelines;
  next_pipeline_ = pipelines_done_ = 0;
  for (Pipeline& pipeline : slots_) pipeline.reset();
  const uint64_t at_once = std::min<uint64_t>(pipelines, kPipelinesAtOnce);
  if (slots_.size() < at_once) slots_.resize(at_once);
  running_ = true;
}

void Runner::advance() {
  bool again = true;
  while (again && running_) {
    again = false;
    for (size_t slot = 0; slot < slots_.size() && running_; ++slot) {
      Pipeline& pipeline = slots_[slot];
      if (!pipeline.active && next_pipeline_ < pipelines_ &&
          next_pipeline_ - oldest_pipeline() <= kPipelineMask &&
          client_->may_begin(next_pipeline_)) {
        open_pipeline(pipeline, slot);
      }
      if (!pipeline.active || pipeline.pending > 0) continue;
      advance(pipeline, slot);
      again = again || (!pipeline.active && next_pipeline_ < pipelines_ &&
                        client_->may_begin(next_pipeline_));
    }
  }
}

void Runner::open_pipeline(Pipeline& pipeline, size_t slot) {
  pipeline.index = next_pipeline_++;
  client_->make_plan(pipeline.index, &pipeline.plan);
  if (pipeline.plan.scratch_bytes > 0) {
    pipeline.scratch = client_->take_scratch(slot, pipeline.plan.scratch_bytes);
    if (pipeline.scratch == nullptr) throw std::bad_alloc();
  }
  pipeline.active = true;
}

// The oldest pipeline under way. Tags tell apart only it and the kPipelineMask pipelines after it.
uint64_t Runner::oldest_pipeline() const {
  uint64_t oldest = next_pipeline_;
  for (const Pipeline& pipeline : slots_) {
    if (pipeline.active) oldest = std::min(oldest, pipeline.index);
  }
  return oldest;
}

void Runner::advance(Pipeline& pipeline, size_t slot) {
  const std::vector<Step>& steps = pipeline.plan.steps;
  while (running_) {
    if (pipeline.next == steps.size()) {
      client_->finish_pipeline(pipeline.plan, PipelineAddresses(*this, pipeline));
      if (pipeline.scratch != nullptr) client_->give_scratch(slot);
      pipeline.reset();
      ++pipelines_done_;
      return;
    }
    if (!pipeline.posted) {
      post_round(pipeline, slot);
      if (pipeline.pending > 0) return;
      continue;  // stops if one of them has failed
    }
    if (!run_locals(pipeline, slot)) return;
    pipeline.next = pipeline.local = end_of_round(pipeline);
    pipeline.posted = false;
  }
}

size_t Runner::end_of_round(const Pipeline& pipeline) {
  const std::vector<Step>& steps = pipeline.plan.steps;
  size_t end = pipeline.next;
  while (end < steps.size() && steps[end].round == steps[pipeline.next].round) ++end;
  return end;
}

// Posts receives first, so that messages which come at once find them.
void Runner::post_round(Pipeline& pipeline, size_t slot) {
  pipeline.posted = true;
  const size_t end = end_of_round(pipeline);
  const PipelineAddresses addresses(*this, pipeline);
  ++pipeline.pending;  // keeps the round open until all are posted
  for (const StepKind kind : {StepKind::kReceive, StepKind::kSend}) {
    for (size_t i = pipeline.next; i < end && running_; ++i) {
      const Step& step = pipeline.plan.steps[i];
      if (step.kind != kind) continue;
      messages_.reserve(messages_.size() + 1);
      Operation* message = communicator_->make_internal(
          {.kind = kind == StepKind::kSend ? OperationKind::kSend : OperationKind::kReceive,
           .peer = client_->job_rank(step.peer),
           .tag = tag_ | (pipeline.index & kPipelineMask),
           .bytes = {addresses.of(step.to), step.to.length},
           .handler = this});
      if (message == nullptr) throw std::bad_alloc();
      message->access.id = slot;
      messages_.push_back(message);
      ++pipeline.pending;
      communicator_->start_internal(*message);
    }
  }
  --pipeline.pending;
}

// Does the local steps that are left of the round. False: one of them goes on.
bool Runner::run_locals(Pipeline& pipeline, size_t slot) {
  const size_t end = end_of_round(pipeline);
  while (pipeline.local < end) {
    if (run_step(pipeline, slot, pipeline.plan.steps[pipeline.local++])) continue;
    ++pipeline.pending;
    ++locals_;
    return false;
  }
  return true;
}

void Runner::end_local(size_t slot) {
  --locals_;
  --slots_[slot].pending;
  client_->runner_ready();
}

// False: it goes on.
bool Runner::run_step(const Pipeline& pipeline, size_t slot, const Step& step) {
  if (step.kind == StepKind::kSend || step.kind == StepKind::kReceive) return true;
  const PipelineAddresses addresses(*this, pipeline);
  if (step.kind != StepKind::kCopy) {
    return client_->run_local(slot, pipeline.plan, step, addresses);
  }
  std::byte* const to = addresses.of(step.to);
  const std::byte* const from = addresses.of(step.first);
  if (to != from && step.to.length > 0) copy_long(to, from, step.to.length);
  return true;
}

void Runner::on_end(Operation& message) {
  std::erase(messages_, &message);
  Pipeline& pipeline = slots_[message.access.id];
  const bool whole =
      message.kind == OperationKind::kSend || message.outcome.bytes_sent == message.length;
  const bool failed = running_ && (message.outcome.code != Code::kOk || !whole);
  if (!failed) --pipeline.pending;
  if (failed) {
    client_->message_failed(message);
  } else if (!running_ || pipeline.pending == 0) {
    client_->runner_ready();
  }
}

void Runner::stop() {
  running_ = false;
  // A message that ends takes itself out of the list; some end at once.
  for (size_t i = messages_.size(); i-- > 0;) {
    if (i >= messages_.size()) continue;
    communicator_->end(*messages_[i], Code::kCancelled,
                       "the collective operation that it belongs to has failed");
  }
}

std::vector<int> Runner::awaited() const {
  std::vector<int> ranks;
  for (const Operation* message : messages_) {
    if (message->kind == OperationKind::kReceive) ranks.push_back(message->peer);
  }
  return ranks;
}

}  // namespace hetcomm::plan
