#include "pipeline/execute/loaded_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "pipeline/execute/api.h"
#include "pipeline/plan/check_plan.h"
#include "pipeline/schedule/faults.h"

namespace hetcomm::pipeline {
namespace {

// Returns a copy of |pipeline| with the schedule, live limits and transfer settings of |kept|. A
// replacement plan may change only these.
PlanPipeline with_course_of(PlanPipeline pipeline, const PlanPipeline& kept) {
  pipeline.schedule = kept.schedule;
  for (size_t i = 0; i < pipeline.stages.size() && i < kept.stages.size(); ++i) {
    pipeline.stages[i].live_limit = kept.stages[i].live_limit;
  }
  for (size_t i = 0; i < pipeline.boundaries.size() && i < kept.boundaries.size(); ++i) {
    PlanBoundary& boundary = pipeline.boundaries[i];
    boundary.strategy = kept.boundaries[i].strategy;
    boundary.in_flight = kept.boundaries[i].in_flight;
    boundary.slice_bytes = kept.boundaries[i].slice_bytes;
  }
  return pipeline;
}

}  // namespace

Result<std::unique_ptr<LoadedPlan>> LoadedPlan::load(std::string_view json, uint32_t rank,
                                                     uint32_t ranks) {
  Result<PipelinePlan> parsed = parse_plan(json);
  if (!parsed.ok()) return parsed.status().annotate("plan");
  std::unique_ptr<LoadedPlan> loaded(new LoadedPlan());
  loaded->plan_ = std::move(parsed).value();
  if (loaded->plan_.ranks.size() != ranks) {
    return invalid(fmt::format("plan: it is for {} ranks, and the communicator has {}",
                               loaded->plan_.ranks.size(), ranks));
  }
  Result<std::vector<PipelineView>> views = check_plan(loaded->plan_);
  if (!views.ok()) return views.status().annotate("plan");
  for (const RunKind kind : {RunKind::kTrain, RunKind::kEvaluate}) {
    loaded->programs_[static_cast<size_t>(kind)] =
        program_of(loaded->plan_, views.value(), rank, kind);
  }
  loaded->hash_ = hash_of(loaded->plan_);
  for (const PipelineView& view : views.value()) {
    for (const std::vector<Action>& actions : view.schedule.actions) {
      loaded->trains_ |= std::any_of(actions.begin(), actions.end(), [](const Action& each) {
        return gives_weight_grad(each.kind);
      });
    }
  }
  return loaded;
}

Status LoadedPlan::check_trainer(const Trainer& trainer) const {
  const uint32_t rank = program().rank;
  if (trainer.chunks.size() != program().chunks.size()) {
    return invalid(fmt::format("chunks: there are {} for rank {}, which has {} stages",
                               trainer.chunks.size(), rank, program().chunks.size()));
  }
  for (const ProgramStep& step : program().steps) {
    if (!is_computation(step.action.kind)) continue;
    if (callback_of(trainer.chunks[step.chunk], step.action.kind)->function != nullptr) continue;
    return invalid(fmt::format("chunks[{}]: rank {} has no callback for the {}", step.chunk, rank,
                               describe(step.action)));
  }
  return check_stream(trainer);
}

Status LoadedPlan::check_stream(const Trainer& trainer) const {
  if (trainer.stream == nullptr) return {};
  int32_t device = -1;
  uint32_t flags = 0;
  HETCOMM_RETURN_IF_ERROR(
      of_call(hetcomm_stream_info(trainer.stream, &device, &flags)).annotate("stream"));
  if ((flags & HETCOMM_STREAM_NOT_HELD) == 0) {
    return invalid("stream: it has to be made with HETCOMM_STREAM_NOT_HELD");
  }
  const uint32_t rank = program().rank;
  const uint32_t wanted = plan_.ranks[rank].device;
  if (static_cast<uint32_t>(device) == wanted) return {};
  return invalid(fmt::format("stream: it belongs to device {}, and rank {} has device {}", device,
                             rank, wanted));
}

Status LoadedPlan::check_sums(const Trainer& trainer) const {
  if (trainer.stream == nullptr) return {};
  for (uint32_t chunk = 0; chunk < program().chunks.size(); ++chunk) {
    if (trainer.chunks[chunk].reduce_grad.function != nullptr) continue;
    return invalid(fmt::format(
        "stage {} of rank {} works in a stream, and has no callback reduce_grad that waits for it",
        program().chunks[chunk].stage, program().rank));
  }
  return {};
}

Status LoadedPlan::check_like(const LoadedPlan& other) const {
  const PipelinePlan& kept = other.plan_;
  const auto differs = [](const std::string& what) {
    return invalid(
        fmt::format("plan: {} from the pipeline's, and only schedules, limits of "
                    "activations and how boundaries move their data may",
                    what));
  };
  if (plan_.ranks != kept.ranks) return differs("ranks differ");
  if (plan_.pipelines.size() != kept.pipelines.size()) return differs("pipelines differ");
  for (size_t i = 0; i < plan_.pipelines.size(); ++i) {
    const PlanPipeline own = with_course_of(plan_.pipelines[i], kept.pipelines[i]);
    if (own.stages != kept.pipelines[i].stages) {
      return differs(fmt::format("pipelines[{}].stages differ", i));
    }
    if (own.boundaries != kept.pipelines[i].boundaries) {
      return differs(fmt::format("pipelines[{}].boundaries differ", i));
    }
    if (own != kept.pipelines[i]) {
      return differs(fmt::format("micro-batches of pipelines[{}] differ", i));
    }
  }
  PipelinePlan own = plan_;
  own.pipelines = kept.pipelines;
  own.provenance = kept.provenance;
  return own == kept ? Status() : differs("its model, its training or its gradients differ");
}

Status LoadedPlan::open_channels(const ChannelPlace& place) {
  channels_.reserve(program().channels.size());
  for (size_t i = 0; i < program().channels.size(); ++i) {
    std::array<const ProgramChannel*, kRunKinds> programs{};
    for (size_t kind = 0; kind < kRunKinds; ++kind) {
      programs[kind] = &programs_[kind].channels[i];
    }
    HETCOMM_RETURN_IF_ERROR(channels_.emplace_back(programs, pipeline()).open(place));
  }
  return {};
}

uint64_t LoadedPlan::buffer_bytes() const {
  uint64_t bytes = 0;
  for (const Channel& each : channels_) bytes += each.buffer_bytes();
  return bytes;
}

}  // namespace hetcomm::pipeline
