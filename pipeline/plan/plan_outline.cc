#include "pipeline/plan/plan_outline.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "pipeline/plan/plan_json.h"
#include "pipeline/schedule/cells_json.h"
#include "reshard/by_strategy.h"

namespace hetcomm::pipeline {
namespace {

using Json = nlohmann::json;

std::string written(const StageDegrees& degrees) {
  std::string text;
  const auto add = [&](const char* name, uint32_t degree) {
    if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, degree);
  };
  add("data", degrees.data);
  add("context", degrees.context);
  add("tensor", degrees.tensor);
  add("expert", degrees.expert);
  return text.empty() ? "-" : text;
}

// Returns the total bytes of a micro-batch's tensors, or with |is_backward| of its gradients.
uint64_t item_bytes(const PlanBoundary& boundary, bool is_backward) {
  uint64_t sum = 0;
  for (const PlanTensor& tensor : boundary.tensors) {
    if (!is_backward || tensor.has_gradient) sum += bytes_of(tensor.type, tensor.shape);
  }
  return sum;
}

std::string pipeline_text(const PlanPipeline& pipeline, const PipelineView& view) {
  std::string text = fmt::format("{:>5}  {:<13} {:<12} {:<24} {:>10}\n", "stage", "items", "ranks",
                                 "degrees", "activations");
  for (size_t i = 0; i < pipeline.stages.size(); ++i) {
    const PlanStage& stage = pipeline.stages[i];
    text += fmt::format("{:>5}  {:<13} {:<12} {:<24} {:>10}\n", i,
                        fmt::format("[{}, {})", stage.items_begin, stage.items_end),
                        ranks_text(stage.ranks), written(stage.degrees), view.stage_peaks[i]);
  }
  for (size_t group = 0; group < view.groups.size(); ++group) {
    const auto chunks =
        std::count(view.schedule.rank_of.begin(), view.schedule.rank_of.end(), group);
    if (chunks == 1) continue;
    text += fmt::format("  ranks {} keep {} activations of their {} stages\n",
                        ranks_text(view.groups[group]), view.peaks[group], chunks);
  }
  for (size_t i = 0; i < pipeline.boundaries.size(); ++i) {
    const PlanBoundary& boundary = pipeline.boundaries[i];
    const bool is_local =
        view.schedule.rank_of[boundary.from] == view.schedule.rank_of[boundary.to];
    text += fmt::format(
        "  {} -> {}  {} bytes, back {} bytes, {}\n", boundary.from, boundary.to,
        item_bytes(boundary, false), item_bytes(boundary, true),
        is_local
            ? std::string("on the same ranks")
            : fmt::format("{} in flight, {}", view.in_flight[i],
                          reshard::name_of(static_cast<reshard::Strategy>(boundary.strategy))));
  }
  if (!view.exposed.empty()) {
    text += fmt::format("  no schedule hides the boundaries behind the stages {}\n",
                        fmt::join(view.exposed, ", "));
  }
  return text;
}

}  // namespace

std::string ranks_text(const std::vector<uint32_t>& ranks) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] != ranks[i - 1] + 1) return fmt::format("{}", fmt::join(ranks, ","));
  }
  return ranks.size() == 1 ? std::to_string(ranks[0])
                           : fmt::format("{}-{}", ranks.front(), ranks.back());
}

std::string outline_text(const PipelinePlan& plan, const std::vector<PipelineView>& views) {
  std::string text = fmt::format("pipeline plan {}: {} ranks, {} items, {} samples a step\n",
                                 to_text(hash_of(plan)), plan.ranks.size(), plan.items,
                                 plan.training.global_batch);
  for (size_t i = 0; i < views.size(); ++i) {
    const PlanPipeline& pipeline = plan.pipelines[i];
    text += fmt::format(
        "\npipeline {}: {} micro-batches of {} samples, {}\n", i, pipeline.micro_batches,
        pipeline.micro_batch_size,
        pipeline.schedule.name.empty() ? "schedule given as actions" : pipeline.schedule.name);
    if (!pipeline.lengths.empty()) {
      text +=
          fmt::format("  micro-batches have lengths of {}\n", fmt::join(pipeline.lengths, ", "));
    }
    text += pipeline_text(pipeline, views[i]);
  }
  return text;
}

std::string outline_json(const PipelinePlan& plan, const std::vector<PipelineView>& views) {
  Json pipelines = Json::array();
  for (const PipelineView& view : views) {
    Json actions = Json::array();
    for (const std::vector<Action>& of_group : view.schedule.actions) {
      actions.push_back(cells_of(of_group));
    }
    pipelines.push_back({{"groups", view.groups},
                         {"group_of_stage", view.schedule.rank_of},
                         {"actions", std::move(actions)},
                         {"peaks", view.peaks},
                         {"stage_peaks", view.stage_peaks},
                         {"in_flight", view.in_flight},
                         {"stage_in_flight", view.stage_in_flight},
                         {"exposed", view.exposed}});
  }
  const Json document = {{"format", "hetcomm pipeline outline"},
                         {"version", 1},
                         {"hash", to_text(hash_of(plan))},
                         {"pipelines", std::move(pipelines)}};
  return document.dump(1) + "\n";
}

}  // namespace hetcomm::pipeline
