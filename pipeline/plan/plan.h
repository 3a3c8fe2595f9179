// A pipeline plan says how pipelines of stages train a model. It contains decisions, but no steps:
// layouts, reshard plans and schedules are derived from it by pure functions.
//
// check_plan.h defines the conditions that a sound plan meets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/schedule/action.h"
#include "pipeline/schedule/named.h"

namespace hetcomm::pipeline {

// The maximum number of items that a boundary can have in flight in each direction.
inline constexpr uint32_t kMaxInFlight = 1024;
// The maximum number of different lengths of a pipeline's micro-batches.
inline constexpr size_t kMaxLengths = 64;

// A process of the job, and the device whose memory its stages use.
struct PlanRank {
  std::string host;
  uint32_t device = 0;  // number in the context of the process
  bool operator==(const PlanRank&) const = default;
};

// The degrees that define how the ranks of a stage divide its work.
struct StageDegrees {
  uint32_t data = 1;
  uint32_t context = 1;
  uint32_t tensor = 1;
  uint32_t expert = 1;
  std::string order = "dct";  // axes in the order in which ranks are numbered, slowest first
  bool zigzag = false;        // context parallelism with paired pieces
  bool operator==(const StageDegrees&) const = default;
};

struct PlanStage {
  uint32_t items_begin = 0;  // the stage has the model's items [items_begin, items_end)
  uint32_t items_end = 0;
  uint32_t chunk = 0;  // index of this stage among the stages on the same ranks
  std::vector<uint32_t> ranks;
  StageDegrees degrees;
  uint32_t zero = 0;        // stage of ZeRO, 0 to 3
  bool recompute = false;   // activations are recomputed before the backward step
  uint64_t live_limit = 0;  // maximum number of live activations; 0: no limit
  bool operator==(const PlanStage&) const = default;
};

// A schedule, given by its name or by all its actions.
struct PlanSchedule {
  std::string name;  // empty: |actions| is used
  // |ranks|, |chunks| and |micro_batches| are derived from the pipeline.
  ScheduleParameters parameters;
  std::vector<std::vector<Action>> actions;  // indexed by group of ranks
  bool operator==(const PlanSchedule&) const = default;
};

// A tensor that is sent from one stage to another for each micro-batch. Its gradient has the same
// shape, and is sent back unless |has_gradient| is false.
struct PlanTensor {
  std::string name;
  int32_t type = 0;  // one of HETCOMM_BOOL to HETCOMM_COMPLEX128
  std::vector<uint64_t> shape;
  // The dimension that each degree of a stage cuts. nullopt: all ranks along that degree hold the
  // same elements.
  std::optional<uint32_t> data;
  std::optional<uint32_t> context;
  std::optional<uint32_t> tensor;
  // The dimension whose length differs between micro-batches. The length is one of
  // PlanPipeline::lengths, and |shape| has the greatest.
  std::optional<uint32_t> varies;
  bool has_gradient = true;
  bool operator==(const PlanTensor&) const = default;
};

struct PlanBoundary {
  uint32_t from = 0;  // the stage that produces the tensors
  uint32_t to = 0;
  std::vector<PlanTensor> tensors;
  int32_t strategy = 0;      // one of HETCOMM_STRATEGY_*
  uint32_t in_flight = 0;    // items in flight in each direction; 0: enough for the schedule
  uint64_t slice_bytes = 0;  // as in hetcomm_reshard_options_t
  bool operator==(const PlanBoundary&) const = default;
};

struct PlanPipeline {
  uint32_t micro_batches = 0;
  uint32_t micro_batch_size = 0;  // number of samples in a micro-batch, over all ranks of a stage
  std::vector<uint64_t> lengths;  // possible lengths of a micro-batch, ascending; empty: only one
  std::vector<PlanStage> stages;
  PlanSchedule schedule;
  std::vector<PlanBoundary> boundaries;
  bool operator==(const PlanPipeline&) const = default;
};

// An item of the model that several stages hold, such as tied embeddings.
struct SharedItem {
  struct Holder {
    uint32_t pipeline = 0;
    uint32_t stage = 0;
    bool operator==(const Holder&) const = default;
  };
  uint32_t item = 0;
  std::vector<Holder> holders;
  bool operator==(const SharedItem&) const = default;
};

enum class GradientWeight : uint8_t { kSamples, kTokens };

struct PipelinePlan {
  std::string cluster_hash;
  std::string model_hash;
  uint32_t items = 0;  // operators, blocks or layers of the model
  struct Training {
    uint64_t global_batch = 0;
    uint64_t sequence = 0;
    std::string precision;
    std::string optimizer;
    bool operator==(const Training&) const = default;
  } training;
  std::vector<PlanRank> ranks;
  std::vector<PlanPipeline> pipelines;
  std::vector<SharedItem> shared;
  GradientWeight gradient_weight = GradientWeight::kSamples;
  // The origin of the plan: a JSON object that the library does not interpret. Empty: unknown.
  std::string provenance;
  bool operator==(const PipelinePlan&) const = default;
};

}  // namespace hetcomm::pipeline
