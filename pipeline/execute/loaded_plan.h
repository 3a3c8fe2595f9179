// LoadedPlan holds one rank's view of a pipeline plan: its programs and its channels.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "pipeline/execute/channel.h"
#include "pipeline/execute/program.h"
#include "pipeline/execute/trainer.h"
#include "pipeline/plan/plan.h"
#include "pipeline/plan/plan_json.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

class LoadedPlan {
 public:
  // Reads and checks the document |json| for |rank| of |ranks|.
  static Result<std::unique_ptr<LoadedPlan>> load(std::string_view json, uint32_t rank,
                                                  uint32_t ranks);
  LoadedPlan(const LoadedPlan&) = delete;
  LoadedPlan& operator=(const LoadedPlan&) = delete;

  // Fails if |trainer| has the wrong number of chunks or lacks a callback, or if its stream is of
  // another device or is held.
  Status check_trainer(const Trainer& trainer) const;
  // Fails if this plan differs from |other| in more than schedules, live limits, transfer settings
  // of boundaries, and provenance.
  Status check_like(const LoadedPlan& other) const;
  // Fails if sums could start before the gradients are complete on the stream of |trainer|.
  Status check_sums(const Trainer& trainer) const;
  // Creates the buffers and the reshard plans. All ranks of place.communicator call it together.
  Status open_channels(const ChannelPlace& place);

  const PipelinePlan& plan() const { return plan_; }
  const PlanHash& hash() const { return hash_; }
  const PlanPipeline& pipeline() const { return plan_.pipelines[program().pipeline]; }
  const Program& program(RunKind kind = RunKind::kTrain) const {
    return programs_[static_cast<size_t>(kind)];
  }
  std::vector<Channel>& channels() { return channels_; }
  const std::vector<Channel>& channels() const { return channels_; }
  uint64_t buffer_bytes() const;
  // Returns whether any pipeline has backward steps.
  bool trains() const { return trains_; }

 private:
  LoadedPlan() = default;
  Status check_stream(const Trainer& trainer) const;

  PipelinePlan plan_;
  PlanHash hash_{};
  bool trains_ = false;
  std::array<Program, kRunKinds> programs_;
  std::vector<Channel> channels_;  // one for each entry of Program::channels, in the same order
};

}  // namespace hetcomm::pipeline
