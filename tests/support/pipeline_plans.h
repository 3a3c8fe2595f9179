// Pipeline plans for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetcomm/datatype.h>

#include "pipeline/plan/plan.h"

namespace hetcomm::test {

// A stage by its ranks and degrees.
struct StageWish {
  std::vector<uint32_t> ranks;
  pipeline::StageDegrees degrees{};
};

inline pipeline::PlanTensor activations(std::string name, uint64_t batch, uint64_t sequence,
                                        uint64_t hidden) {
  pipeline::PlanTensor tensor;
  tensor.name = std::move(name);
  tensor.type = HETCOMM_UINT64;
  tensor.shape = {batch, sequence, hidden};
  tensor.data = 0;
  tensor.context = 1;
  tensor.tensor = 1;
  return tensor;
}

// Returns a plan of one pipeline with a boundary between any two neighbours.
inline pipeline::PipelinePlan plan_of(const std::vector<StageWish>& stages, std::string schedule,
                                      uint32_t micro_batches, uint64_t batch = 4,
                                      uint64_t sequence = 8, uint64_t hidden = 2) {
  pipeline::PipelinePlan plan;
  plan.cluster_hash = "0";
  plan.model_hash = "0";
  plan.items = static_cast<uint32_t>(stages.size());
  plan.training.global_batch = batch * micro_batches;
  plan.training.sequence = sequence;
  plan.training.precision = "float32";
  plan.training.optimizer = "sgd";
  pipeline::PlanPipeline pipeline;
  pipeline.micro_batches = micro_batches;
  pipeline.micro_batch_size = static_cast<uint32_t>(batch);
  pipeline.schedule.name = std::move(schedule);
  uint32_t ranks = 0;
  for (uint32_t i = 0; i < stages.size(); ++i) {
    pipeline::PlanStage stage;
    stage.items_begin = i;
    stage.items_end = i + 1;
    stage.ranks = stages[i].ranks;
    stage.degrees = stages[i].degrees;
    for (const pipeline::PlanStage& each : pipeline.stages)
      stage.chunk += each.ranks == stage.ranks;
    for (const uint32_t rank : stage.ranks) ranks = std::max(ranks, rank + 1);
    pipeline.stages.push_back(stage);
    if (i == 0) continue;
    pipeline::PlanBoundary boundary;
    boundary.from = i - 1;
    boundary.to = i;
    boundary.tensors = {activations("x", batch, sequence, hidden)};
    pipeline.boundaries.push_back(boundary);
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) plan.ranks.push_back({"host", 0});
  plan.pipelines.push_back(pipeline);
  return plan;
}

// Returns the stages of a schedule with one rank in each group.
inline std::vector<StageWish> on_ranks(const std::vector<uint32_t>& rank_of) {
  std::vector<StageWish> stages;
  for (const uint32_t rank : rank_of) stages.push_back({.ranks = {rank}});
  return stages;
}

// Returns |plan| with sequences of different |lengths|, which rise, in all activations.
inline pipeline::PipelinePlan with_lengths(pipeline::PipelinePlan plan,
                                           const std::vector<uint64_t>& lengths) {
  for (pipeline::PlanPipeline& each : plan.pipelines) {
    each.lengths = lengths;
    for (pipeline::PlanBoundary& boundary : each.boundaries) {
      for (pipeline::PlanTensor& tensor : boundary.tensors) {
        tensor.varies = 1;
        tensor.shape[1] = lengths.back();
      }
    }
  }
  return plan;
}

}  // namespace hetcomm::test
