#include "pipeline/plan/plan_json.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pipeline/schedule/cells_json.h"
#include "pipeline/schedule/parameters_json.h"
#include "reshard/by_strategy.h"
#include "reshard/element_types.h"
#include "src/base/mix64.h"
#include "src/base/text.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {
namespace {

using present::Fields;
using present::Json;

constexpr std::string_view kPlanFormat = "hetcomm pipeline plan";
constexpr uint64_t kPlanVersion = 1;
constexpr int kNesting = 16;
constexpr uint64_t kMaxRanks = uint64_t{1} << 20;
constexpr uint64_t kMaxItems = uint64_t{1} << 24;
constexpr uint64_t kMaxBytes = uint64_t{1} << 48;
constexpr uint64_t kMaxNs = uint64_t{1} << 53;  // 104 days
constexpr size_t kMaxTensors = 256;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kLongestWord = 255;
constexpr const char* kWeightWords[] = {"samples", "tokens"};

class PlanReader {
 public:
  Result<PipelinePlan> read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "cluster", "model", "training", "ranks", "pipelines",
                       "shared", "gradients", "provenance"});
    object(fields, "cluster", {"hash"},
           [&](Fields& cluster) { plan_.cluster_hash = word(cluster, "hash"); });
    object(fields, "model", {"hash", "items"}, [&](Fields& model) {
      plan_.model_hash = word(model, "hash");
      plan_.items = number32(model, "items", kMaxItems);
    });
    object(fields, "training", {"global_batch", "sequence", "precision", "optimizer"},
           [&](Fields& training) {
             plan_.training.global_batch = needed(training, "global_batch", kMaxBytes);
             plan_.training.sequence = needed(training, "sequence", kMaxBytes);
             plan_.training.precision = word(training, "precision");
             plan_.training.optimizer = word(training, "optimizer");
           });
    list(fields, "ranks", kMaxRanks, [&](const Json& json, const std::string& path) {
      Fields rank(json, path, failure_);
      rank.allow_only({"host", "device"});
      plan_.ranks.push_back({word(rank, "host"), number32(rank, "device", UINT16_MAX)});
    });
    list(fields, "pipelines", kMaxRanks, [&](const Json& json, const std::string& path) {
      read_pipeline(Fields(json, path, failure_), plan_.pipelines.emplace_back());
    });
    fields.each(
        "shared",
        [&](const Json& json, const std::string& path) {
          read_shared(Fields(json, path, failure_));
        },
        kMaxItems);
    object(fields, "gradients", {"weight"}, [&](Fields& gradients) {
      plan_.gradient_weight = gradients.word("weight", kWeightWords, GradientWeight::kSamples);
    });
    if (const Json* const provenance = fields.find("provenance"); provenance != nullptr) {
      if (provenance->is_object()) {
        plan_.provenance = provenance->dump();
      } else {
        fields.fail("provenance", "is no object");
      }
    }
    if (!failure_.ok()) return failure_;
    return std::move(plan_);
  }

 private:
  // Reads the object |name|, which must be present.
  template <class Read>
  void object(Fields& fields, const char* name, std::initializer_list<std::string_view> names,
              Read&& read) {
    const Json* const json = must(fields, name);
    if (json == nullptr) return;
    Fields inner(*json, name, failure_);
    inner.allow_only(names);
    read(inner);
  }

  const Json* must(Fields& fields, const char* name) {
    const Json* const json = fields.find(name);
    if (json == nullptr) fields.fail(name, "is missing");
    return json;
  }

  template <class Read>
  void list(Fields& fields, const char* name, size_t most, Read&& read) {
    if (must(fields, name) != nullptr) fields.each(name, std::forward<Read>(read), most);
  }

  uint64_t needed(Fields& fields, const char* name, uint64_t most) {
    return must(fields, name) == nullptr ? 0 : fields.number(name, most);
  }
  uint32_t number32(Fields& fields, const char* name, uint64_t most) {
    return static_cast<uint32_t>(needed(fields, name, most));
  }
  uint32_t number_or(Fields& fields, const char* name, uint32_t absent, uint64_t most) {
    return fields.has(name) ? static_cast<uint32_t>(fields.number(name, most)) : absent;
  }

  std::string word(Fields& fields, const char* name) {
    if (must(fields, name) == nullptr) return {};
    std::string text = fields.text(name);
    if (text.size() > kLongestWord || printable(text) != text) {
      fields.fail(name, fmt::format("is no text of at most {} printable bytes", kLongestWord));
    }
    return text;
  }

  template <class Number>
  std::vector<Number> numbers(Fields& fields, const char* name, size_t most_numbers,
                              uint64_t most) {
    std::vector<Number> all;
    fields.each(
        name,
        [&](const Json& json, const std::string& path) {
          all.push_back(static_cast<Number>(fields.number_at(json, path, most)));
        },
        most_numbers);
    return all;
  }

  void read_pipeline(Fields fields, PlanPipeline& pipeline) {
    fields.allow_only(
        {"micro_batches", "micro_batch_size", "lengths", "stages", "schedule", "boundaries"});
    pipeline.micro_batches = number32(fields, "micro_batches", kMaxMicroBatches);
    pipeline.micro_batch_size = number32(fields, "micro_batch_size", UINT32_MAX);
    pipeline.lengths = numbers<uint64_t>(fields, "lengths", kMaxLengths, kMaxBytes);
    list(fields, "stages", kMaxStages, [&](const Json& json, const std::string& path) {
      read_stage(Fields(json, path, failure_), pipeline.stages.emplace_back());
    });
    if (const Json* const json = must(fields, "schedule"); json != nullptr) {
      read_schedule(Fields(*json, fields.path_of("schedule"), failure_), pipeline.schedule);
    }
    list(fields, "boundaries", size_t{kMaxStages} * 4,
         [&](const Json& json, const std::string& path) {
           read_boundary(Fields(json, path, failure_), pipeline.boundaries.emplace_back());
         });
  }

  void read_stage(Fields fields, PlanStage& stage) {
    fields.allow_only({"items", "chunk", "ranks", "degrees", "zero", "recompute", "live_limit"});
    must(fields, "items");
    const auto items = numbers<uint32_t>(fields, "items", 2, kMaxItems);
    if (failure_.ok() && items.size() != 2) {
      return fields.fail("items", "is no list of the first item and the one behind the last");
    }
    if (!failure_.ok()) return;
    stage.items_begin = items[0];
    stage.items_end = items[1];
    stage.chunk = number_or(fields, "chunk", 0, kMaxStages);
    must(fields, "ranks");
    stage.ranks = numbers<uint32_t>(fields, "ranks", kMaxRanks, kMaxRanks);
    if (const Json* const json = fields.find("degrees"); json != nullptr) {
      Fields degrees(*json, fields.path_of("degrees"), failure_);
      degrees.allow_only({"data", "context", "tensor", "expert", "order", "zigzag"});
      stage.degrees.data = number_or(degrees, "data", 1, kMaxRanks);
      stage.degrees.context = number_or(degrees, "context", 1, kMaxRanks);
      stage.degrees.tensor = number_or(degrees, "tensor", 1, kMaxRanks);
      stage.degrees.expert = number_or(degrees, "expert", 1, kMaxRanks);
      if (degrees.has("order")) stage.degrees.order = degrees.text("order");
      stage.degrees.zigzag = degrees.flag("zigzag");
    }
    stage.zero = number_or(fields, "zero", 0, 3);
    stage.recompute = fields.flag("recompute");
    stage.live_limit = fields.number("live_limit", kMaxBytes);
  }

  void read_schedule(Fields fields, PlanSchedule& schedule) {
    fields.allow_only({"name", "parameters", "actions"});
    if (fields.has("name") == fields.has("actions")) {
      return fields.fail("", fields.has("name") ? "has a name and actions; one of them belongs here"
                                                : "has to have a name, or actions");
    }
    if (fields.has("actions")) {
      if (fields.has("parameters")) return fields.fail("parameters", "belong to a name");
      fields.each(
          "actions",
          [&](const Json& json, const std::string& path) {
            read_cells(fields, json, path, schedule.actions.emplace_back());
          },
          kMaxStages);
      return;
    }
    schedule.name = word(fields, "name");
    if (failure_.ok() && schedule.name.empty()) return fields.fail("name", "is empty");
    const Json* const json = fields.find("parameters");
    if (json == nullptr) return;
    Fields parameters(*json, fields.path_of("parameters"), failure_);
    parameters.allow_only({"warmups", "slow_boundaries", "recomputed_stages", "epsilon_ppm",
                           "stage_ns", "boundaries"});
    ScheduleParameters& out = schedule.parameters;
    out.warmups = numbers<uint32_t>(parameters, "warmups", kMaxStages, kMaxMicroBatches);
    out.slow_boundaries = numbers<uint32_t>(parameters, "slow_boundaries", kMaxStages, kMaxStages);
    out.recomputed_stages =
        numbers<uint32_t>(parameters, "recomputed_stages", kMaxStages, kMaxStages);
    out.epsilon_ppm = number_or(parameters, "epsilon_ppm", 0, 1'000'000);
    out.stage_ns = numbers<uint64_t>(parameters, "stage_ns", kMaxStages, kMaxNs);
    parameters.each(
        "boundaries",
        [&](const Json& boundary, const std::string& path) {
          Fields times(boundary, path, failure_);
          times.allow_only({"busy_ns", "latency_ns"});
          out.boundaries.push_back({.busy_ns = times.number("busy_ns", kMaxNs),
                                    .latency_ns = times.number("latency_ns", kMaxNs)});
        },
        kMaxStages);
  }

  void read_boundary(Fields fields, PlanBoundary& boundary) {
    fields.allow_only({"from", "to", "tensors", "strategy", "in_flight", "slice_bytes"});
    boundary.from = number32(fields, "from", kMaxStages);
    boundary.to = number32(fields, "to", kMaxStages);
    list(fields, "tensors", kMaxTensors, [&](const Json& json, const std::string& path) {
      read_tensor(Fields(json, path, failure_), boundary.tensors.emplace_back());
    });
    if (fields.has("strategy")) {
      const std::string name = fields.text("strategy");
      const std::optional<reshard::Strategy> strategy = reshard::strategy_named(name);
      if (failure_.ok() && !strategy) {
        fields.fail("strategy", fmt::format("is '{}', which is no strategy", printable(name)));
      }
      boundary.strategy = static_cast<int32_t>(strategy.value_or(reshard::Strategy::kAuto));
    }
    boundary.in_flight = number_or(fields, "in_flight", 0, kMaxInFlight);
    boundary.slice_bytes = fields.number("slice_bytes", kMaxBytes);
  }

  void read_tensor(Fields fields, PlanTensor& tensor) {
    fields.allow_only({"name", "type", "shape", "cut", "varies", "gradient"});
    tensor.name = word(fields, "name");
    must(fields, "type");
    tensor.type = static_cast<int32_t>(
        fields.word("type", reshard::kElementTypeWords, ElementType::kFloat32));
    must(fields, "shape");
    tensor.shape = numbers<uint64_t>(fields, "shape", kMaxDimensions, kMaxBytes);
    const Json* const json = must(fields, "cut");
    if (json == nullptr) return;
    Fields cut(*json, fields.path_of("cut"), failure_);
    cut.allow_only({"data", "context", "tensor"});
    const auto dimension = [&](const char* name) -> std::optional<uint32_t> {
      if (!cut.has(name)) return std::nullopt;
      return static_cast<uint32_t>(cut.number(name, kMaxDimensions - 1));
    };
    tensor.data = dimension("data");
    tensor.context = dimension("context");
    tensor.tensor = dimension("tensor");
    if (fields.has("varies")) {
      tensor.varies = static_cast<uint32_t>(fields.number("varies", kMaxDimensions - 1));
    }
    tensor.has_gradient = !fields.has("gradient") || fields.flag("gradient");
  }

  void read_shared(Fields fields) {
    fields.allow_only({"item", "holders"});
    SharedItem& shared = plan_.shared.emplace_back();
    shared.item = number32(fields, "item", kMaxItems);
    list(fields, "holders", kMaxRanks, [&](const Json& json, const std::string& path) {
      Fields holder(json, path, failure_);
      holder.allow_only({"pipeline", "stage"});
      shared.holders.push_back(
          {number_or(holder, "pipeline", 0, kMaxRanks), number32(holder, "stage", kMaxStages)});
    });
  }

  PipelinePlan plan_;
  Status failure_;
};

Json json_of(const PlanStage& stage) {
  return {{"items", {stage.items_begin, stage.items_end}},
          {"chunk", stage.chunk},
          {"ranks", stage.ranks},
          {"degrees",
           {{"data", stage.degrees.data},
            {"context", stage.degrees.context},
            {"tensor", stage.degrees.tensor},
            {"expert", stage.degrees.expert},
            {"order", stage.degrees.order},
            {"zigzag", stage.degrees.zigzag}}},
          {"zero", stage.zero},
          {"recompute", stage.recompute},
          {"live_limit", stage.live_limit}};
}

Json json_of(const PlanSchedule& schedule) {
  Json json = Json::object();
  if (schedule.name.empty()) {
    Json& ranks = json["actions"] = Json::array();
    for (const std::vector<Action>& actions : schedule.actions) {
      ranks.push_back(cells_of(actions));
    }
    return json;
  }
  json["name"] = schedule.name;
  json["parameters"] = json_of(schedule.parameters);
  return json;
}

Json json_of(const PlanTensor& tensor) {
  Json cut = Json::object();
  if (tensor.data) cut["data"] = *tensor.data;
  if (tensor.context) cut["context"] = *tensor.context;
  if (tensor.tensor) cut["tensor"] = *tensor.tensor;
  Json json = {{"name", tensor.name},
               {"type", reshard::kElementTypeWords[tensor.type]},
               {"shape", tensor.shape},
               {"cut", std::move(cut)},
               {"gradient", tensor.has_gradient}};
  if (tensor.varies) json["varies"] = *tensor.varies;
  return json;
}

Json json_of(const PlanBoundary& boundary) {
  Json tensors = Json::array();
  for (const PlanTensor& each : boundary.tensors) tensors.push_back(json_of(each));
  return {{"from", boundary.from},
          {"to", boundary.to},
          {"tensors", std::move(tensors)},
          {"strategy", reshard::name_of(static_cast<reshard::Strategy>(boundary.strategy))},
          {"in_flight", boundary.in_flight},
          {"slice_bytes", boundary.slice_bytes}};
}

Json json_of(const PlanPipeline& pipeline) {
  Json stages = Json::array();
  for (const PlanStage& each : pipeline.stages) stages.push_back(json_of(each));
  Json boundaries = Json::array();
  for (const PlanBoundary& each : pipeline.boundaries) boundaries.push_back(json_of(each));
  Json json = {{"micro_batches", pipeline.micro_batches},
               {"micro_batch_size", pipeline.micro_batch_size},
               {"stages", std::move(stages)},
               {"schedule", json_of(pipeline.schedule)},
               {"boundaries", std::move(boundaries)}};
  if (!pipeline.lengths.empty()) json["lengths"] = pipeline.lengths;
  return json;
}

// Returns the document without the provenance. The Json class sorts the fields of objects.
Json json_of(const PipelinePlan& plan) {
  Json ranks = Json::array();
  for (const PlanRank& each : plan.ranks) {
    ranks.push_back({{"host", each.host}, {"device", each.device}});
  }
  Json pipelines = Json::array();
  for (const PlanPipeline& each : plan.pipelines) pipelines.push_back(json_of(each));
  Json shared = Json::array();
  for (const SharedItem& each : plan.shared) {
    Json holders = Json::array();
    for (const SharedItem::Holder& holder : each.holders) {
      holders.push_back({{"pipeline", holder.pipeline}, {"stage", holder.stage}});
    }
    shared.push_back({{"item", each.item}, {"holders", std::move(holders)}});
  }
  return {{"format", kPlanFormat},
          {"version", kPlanVersion},
          {"cluster", {{"hash", plan.cluster_hash}}},
          {"model", {{"hash", plan.model_hash}, {"items", plan.items}}},
          {"training",
           {{"global_batch", plan.training.global_batch},
            {"sequence", plan.training.sequence},
            {"precision", plan.training.precision},
            {"optimizer", plan.training.optimizer}}},
          {"ranks", std::move(ranks)},
          {"pipelines", std::move(pipelines)},
          {"shared", std::move(shared)},
          {"gradients", {{"weight", kWeightWords[static_cast<size_t>(plan.gradient_weight)]}}}};
}

}  // namespace

Result<PipelinePlan> parse_plan(std::string_view json) {
  if (json.size() > kMaxPlanBytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the plan is longer than {} MiB", kMaxPlanBytes >> 20));
  }
  Result<Json> document = present::parse_document(json, kPlanFormat, kPlanVersion, kNesting);
  if (!document.ok()) return document.status();
  return PlanReader().read(document.value());
}

std::string to_json(const PipelinePlan& plan) {
  Json json = json_of(plan);
  if (!plan.provenance.empty()) json["provenance"] = Json::parse(plan.provenance);
  return json.dump(1) + "\n";
}

PlanHash hash_of(const PipelinePlan& plan) {
  const std::string text = json_of(plan).dump();
  PlanHash hash = {text.size(), ~uint64_t{text.size()}};
  for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    const size_t end = std::min(text.size(), at + sizeof(uint64_t));
    for (size_t i = at; i < end; ++i) {
      word = word << 8 | static_cast<unsigned char>(text[i]);
    }
    hash[0] = mix64(hash[0], word);
    hash[1] = mix64(hash[1], word + hash[0]);
  }
  return hash;
}

std::string to_text(const PlanHash& hash) {
  return fmt::format("{:016x}{:016x}", hash[0], hash[1]);
}

}  // namespace hetcomm::pipeline
