#include "pipeline/plan/check_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/live.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"
#include "reshard/layout.h"
#include "src/base/element_type.h"

namespace hetcomm::pipeline {
namespace {

Result<reshard::Mesh> mesh_of_stage(const PlanStage& stage) {
  const StageDegrees& degrees = stage.degrees;
  return reshard::mesh_of({.data = degrees.data,
                           .context = degrees.context,
                           .tensor = degrees.tensor,
                           .order = degrees.order,
                           .zigzag = degrees.zigzag},
                          std::vector<int>(stage.ranks.begin(), stage.ranks.end()));
}

class PlanCheck {
 public:
  explicit PlanCheck(const PipelinePlan& plan) : plan_(plan), is_used_(plan.ranks.size()) {}

  Result<std::vector<PipelineView>> run() {
    if (plan_.ranks.empty()) return invalid("ranks: there is none");
    if (plan_.pipelines.empty()) return invalid("pipelines: there is none");
    std::vector<PipelineView> views;
    uint64_t samples = 0;
    uint64_t work = 0;
    for (size_t i = 0; i < plan_.pipelines.size(); ++i) {
      const PlanPipeline& pipeline = plan_.pipelines[i];
      work +=
          uint64_t{pipeline.micro_batches} * (pipeline.stages.size() + pipeline.boundaries.size());
      if (work > kMaxSteps) {
        return invalid(
            fmt::format("pipelines[{}]: too many stages, boundaries and micro-batches", i));
      }
      Result<PipelineView> view = check_pipeline(pipeline);
      if (!view.ok()) return view.status().annotate(fmt::format("pipelines[{}]", i));
      views.push_back(std::move(view).value());
      samples += uint64_t{pipeline.micro_batches} * pipeline.micro_batch_size;
      if (samples > plan_.training.global_batch) break;  // prevents an overflow of the sum
    }
    if (samples != plan_.training.global_batch) {
      return invalid(fmt::format("training.global_batch is {}, and the pipelines take {} samples",
                                 plan_.training.global_batch, samples));
    }
    const auto unused = std::find(is_used_.begin(), is_used_.end(), false);
    if (unused != is_used_.end()) {
      return invalid(fmt::format("ranks[{}] is in no stage", unused - is_used_.begin()));
    }
    HETCOMM_RETURN_IF_ERROR(check_shared());
    return views;
  }

 private:
  Result<PipelineView> check_pipeline(const PlanPipeline& pipeline) {
    if (pipeline.stages.empty()) return invalid("stages: there is none");
    if (pipeline.micro_batches == 0) return invalid("micro_batches is 0");
    if (pipeline.micro_batch_size == 0) return invalid("micro_batch_size is 0");
    if (pipeline.stages.size() > kMaxStages) return invalid("stages: there are too many");
    uint32_t next_item = 0;
    for (size_t i = 0; i < pipeline.stages.size(); ++i) {
      const Status status = check_stage(pipeline, pipeline.stages[i], next_item);
      if (!status.ok()) return status.annotate(fmt::format("stages[{}]", i));
      next_item = pipeline.stages[i].items_end;
    }
    if (next_item != plan_.items) {
      return invalid(
          fmt::format("the stages have {} items, and the model has {}", next_item, plan_.items));
    }
    HETCOMM_RETURN_IF_ERROR(check_lengths(pipeline));
    PipelineView view;
    std::vector<uint32_t> group_of;
    HETCOMM_RETURN_IF_ERROR(find_groups(pipeline, view, group_of));
    HETCOMM_RETURN_IF_ERROR(make(pipeline, group_of, view));
    HETCOMM_RETURN_IF_ERROR(check_boundaries(pipeline, view));
    HETCOMM_RETURN_IF_ERROR(check_live_limits(pipeline, view));
    return view;
  }

  Status check_stage(const PlanPipeline& pipeline, const PlanStage& stage,
                     uint32_t next_item) const {
    if (stage.items_begin != next_item || stage.items_end <= stage.items_begin ||
        stage.items_end > plan_.items) {
      return invalid(fmt::format("items: [{}, {}) does not follow item {} of {}", stage.items_begin,
                                 stage.items_end, next_item, plan_.items));
    }
    std::set<uint32_t> seen;
    for (const uint32_t rank : stage.ranks) {
      if (rank >= plan_.ranks.size())
        return invalid(fmt::format("ranks: there is no rank {}", rank));
      if (!seen.insert(rank).second) return invalid(fmt::format("ranks: {} is there twice", rank));
    }
    const StageDegrees& degrees = stage.degrees;
    Result<reshard::Mesh> mesh = mesh_of_stage(stage);
    if (!mesh.ok()) return mesh.status().annotate("degrees");
    if (pipeline.micro_batch_size % degrees.data != 0) {
      return invalid(fmt::format("degrees.data is {}, and a micro-batch has {} samples",
                                 degrees.data, pipeline.micro_batch_size));
    }
    if (degrees.expert == 0 || stage.ranks.size() % degrees.expert != 0) {
      return invalid(
          fmt::format("degrees.expert is {} on {} ranks", degrees.expert, stage.ranks.size()));
    }
    return {};
  }

  static Status check_lengths(const PlanPipeline& pipeline) {
    uint64_t last = 0;
    for (const uint64_t length : pipeline.lengths) {
      if (length <= last) {
        return invalid(
            fmt::format("lengths: {} follows {}; they have to ascend from 1", length, last));
      }
      last = length;
    }
    return {};
  }

  // Groups the stages that are on the same ranks. Fails if a rank is in two groups, or if the
  // stages of a group have different degrees or wrong chunk numbers.
  Status find_groups(const PlanPipeline& pipeline, PipelineView& view,
                     std::vector<uint32_t>& group_of) {
    std::map<std::vector<uint32_t>, uint32_t> known;
    std::vector<uint32_t> chunks;  // number of chunks, indexed by group
    std::vector<const StageDegrees*> degrees;
    for (size_t i = 0; i < pipeline.stages.size(); ++i) {
      const PlanStage& stage = pipeline.stages[i];
      const auto [found, is_new] =
          known.emplace(stage.ranks, static_cast<uint32_t>(view.groups.size()));
      const uint32_t group = found->second;
      if (is_new) {
        for (const uint32_t rank : stage.ranks) {
          if (is_used_[rank]) {
            return invalid(fmt::format(
                "stages[{}].ranks: rank {} is in a stage with other ranks, or in another order", i,
                rank));
          }
          is_used_[rank] = true;
        }
        view.groups.push_back(stage.ranks);
        chunks.push_back(0);
        degrees.push_back(&stage.degrees);
      }
      if (*degrees[group] != stage.degrees) {
        return invalid(fmt::format(
            "stages[{}].degrees differ from those of another stage of the same ranks", i));
      }
      if (stage.chunk != chunks[group]) {
        return invalid(
            fmt::format("stages[{}].chunk is {}, and has to be {}, the number of the stages of its "
                        "ranks before it",
                        i, stage.chunk, chunks[group]));
      }
      ++chunks[group];
      group_of.push_back(group);
    }
    return {};
  }

  // Makes the schedule of |view|, in which each group of ranks counts as one rank.
  static Status make(const PlanPipeline& pipeline, const std::vector<uint32_t>& group_of,
                     PipelineView& view) {
    const auto groups = static_cast<uint32_t>(view.groups.size());
    const auto stages = static_cast<uint32_t>(group_of.size());
    if (!pipeline.schedule.name.empty()) {
      if (stages % groups != 0) {
        return invalid(fmt::format("schedule: {} stages on {} groups of ranks", stages, groups));
      }
      ScheduleParameters parameters = pipeline.schedule.parameters;
      parameters.ranks = groups;
      parameters.chunks = stages / groups;
      parameters.micro_batches = pipeline.micro_batches;
      Result<NamedSchedule> named = make_schedule(pipeline.schedule.name, parameters);
      if (!named.ok()) return named.status().annotate("schedule");
      view.schedule = std::move(named->schedule);
      view.exposed = std::move(named->exposed);
      for (uint32_t stage = 0; stage < stages; ++stage) {
        if (view.schedule.rank_of[stage] == group_of[stage]) continue;
        return invalid(fmt::format(
            "schedule: {} wants stage {} on the ranks of stage {}", pipeline.schedule.name, stage,
            std::find(group_of.begin(), group_of.end(), view.schedule.rank_of[stage]) -
                group_of.begin()));
      }
    } else {
      if (pipeline.schedule.actions.size() != groups) {
        return invalid(fmt::format("schedule.actions has {} lists for {} groups of ranks",
                                   pipeline.schedule.actions.size(), groups));
      }
      view.schedule = {.micro_batches = pipeline.micro_batches,
                       .rank_of = group_of,
                       .actions = pipeline.schedule.actions};
    }
    // The transfers of an executed schedule are derived from its computations.
    HETCOMM_RETURN_IF_ERROR(check_unlimited(view.schedule).annotate("schedule"));
    view.schedule = computations_of(std::move(view.schedule));
    view.evaluation = forward_steps_of(view.schedule);
    return {};
  }

  Status check_boundaries(const PlanPipeline& pipeline, PipelineView& view) const {
    const uint32_t stages = view.schedule.stages();
    std::vector<uint32_t> given(stages - 1);  // indexed by the stage before the boundary
    for (const PlanBoundary& each : pipeline.boundaries) {
      if (each.to == each.from + 1 && each.to < stages) given[each.from] = each.in_flight;
    }
    Result<std::vector<uint32_t>> needed = needed_in_flight(view.schedule, given);
    if (!needed.ok()) return needed.status().annotate("schedule");
    uint64_t step_ns = 0;
    for (const uint64_t each : pipeline.schedule.parameters.stage_ns) {
      step_ns = std::max(step_ns, each);
    }
    view.stage_in_flight.assign(stages - 1, 0);  // 0 means that there is no boundary
    std::set<std::pair<uint32_t, uint32_t>> seen;
    view.in_flight.assign(pipeline.boundaries.size(), 0);
    for (size_t i = 0; i < pipeline.boundaries.size(); ++i) {
      const PlanBoundary& boundary = pipeline.boundaries[i];
      const auto fail = [&](std::string_view why) {
        return invalid(fmt::format("boundaries[{}] {}", i, why));
      };
      if (boundary.from >= boundary.to || boundary.to >= stages) {
        return fail(
            fmt::format("goes from stage {} to {} of {}", boundary.from, boundary.to, stages));
      }
      if (!seen.emplace(boundary.from, boundary.to).second) return fail("is there twice");
      const Status tensors = check_tensors(pipeline, boundary);
      if (!tensors.ok()) return tensors.annotate(fmt::format("boundaries[{}]", i));
      if (boundary.to != boundary.from + 1) continue;
      if (needed.value()[boundary.from] > kMaxInFlight) {
        return fail(fmt::format("needs {} items in flight, and {} are the most",
                                needed.value()[boundary.from], kMaxInFlight));
      }
      view.in_flight[i] =
          boundary.in_flight != 0
              ? boundary.in_flight
              : enough_in_flight(needed.value()[boundary.from], pipeline, boundary.from, step_ns);
      view.stage_in_flight[boundary.from] = view.in_flight[i];
    }
    const auto first = view.stage_in_flight.begin();
    const auto missing = std::find(first, view.stage_in_flight.end(), 0u);
    if (missing != view.stage_in_flight.end()) {
      return invalid(fmt::format("boundaries: there is none from stage {} to {}", missing - first,
                                 missing - first + 1));
    }
    return check_skips(pipeline, view);
  }

  // Returns a number of items in flight that costs no time at the boundary after |stage|, according
  // to the times in the plan. It is |needed| plus the items that are in transit on a slow link,
  // plus one. While the next item is sent, the sender can then be notified that an item was taken.
  // |step_ns| is the longest time of any stage, or 0 if no times are given.
  static uint32_t enough_in_flight(uint32_t needed, const PlanPipeline& pipeline, uint32_t stage,
                                   uint64_t step_ns) {
    const std::vector<BoundaryTime>& boundaries = pipeline.schedule.parameters.boundaries;
    uint64_t enough = uint64_t{needed} + 1;
    if (stage < boundaries.size() && !pipeline.schedule.parameters.stage_ns.empty()) {
      const uint32_t more = items_on_the_way(boundaries[stage], std::max<uint64_t>(step_ns, 1));
      enough = std::max(enough, std::min<uint64_t>(enough + more, pipeline.micro_batches));
    }
    return static_cast<uint32_t>(std::min<uint64_t>(enough, kMaxInFlight));
  }

  // Sets the items in flight of each boundary between stages that are not consecutive, so that no
  // step waits for a free buffer there. Between its stages there can be at most the items in flight
  // and kept at the boundaries in between, and one item in each stage. Fails if the plan specifies
  // fewer.
  static Status check_skips(const PlanPipeline& pipeline, PipelineView& view) {
    for (size_t i = 0; i < pipeline.boundaries.size(); ++i) {
      const PlanBoundary& boundary = pipeline.boundaries[i];
      if (view.in_flight[i] != 0) continue;
      view.in_flight[i] = 1;
      if (view.schedule.rank_of[boundary.from] == view.schedule.rank_of[boundary.to]) continue;
      uint64_t most = 1;
      for (uint32_t stage = boundary.from; stage < boundary.to; ++stage) {
        most += 2 * uint64_t{view.stage_in_flight[stage]} + 1;
        // The number of items between stages on the same ranks is not limited.
        if (!view.schedule.crosses(stage)) most = kMaxMicroBatches;
      }
      most = std::min<uint64_t>(most, pipeline.micro_batches);
      if (most > kMaxInFlight || (boundary.in_flight != 0 && boundary.in_flight < most)) {
        return invalid(fmt::format("boundaries[{}].in_flight: {} are needed", i, most));
      }
      view.in_flight[i] = std::max(static_cast<uint32_t>(most), boundary.in_flight);
    }
    return {};
  }

  static Status check_tensors(const PlanPipeline& pipeline, const PlanBoundary& boundary) {
    if (boundary.tensors.empty()) return invalid("tensors: there is none");
    std::set<std::string_view> names;
    for (size_t i = 0; i < boundary.tensors.size(); ++i) {
      const PlanTensor& tensor = boundary.tensors[i];
      Status status = check_tensor(tensor, pipeline);
      if (status.ok() && !names.insert(tensor.name).second) status = invalid("name is there twice");
      for (const uint32_t stage : {boundary.from, boundary.to}) {
        if (!status.ok()) break;
        status = check_layouts(tensor, pipeline, pipeline.stages[stage])
                     .annotate(fmt::format("in stage {}", stage));
      }
      if (!status.ok()) return status.annotate(fmt::format("tensors[{}]", i));
    }
    return {};
  }

  // Checks that |stage| can hold |tensor| at every length.
  static Status check_layouts(const PlanTensor& tensor, const PlanPipeline& pipeline,
                              const PlanStage& stage) {
    Result<TensorMesh> mesh = mesh_of(tensor, stage);
    if (!mesh.ok()) return mesh.status();
    if (!tensor.varies) {
      return reshard::layout_of(tensor.shape, mesh->mesh, mesh->placements).status();
    }
    for (const uint64_t length : pipeline.lengths) {
      const Status status =
          reshard::layout_of(at_length(tensor, length).shape, mesh->mesh, mesh->placements)
              .status();
      if (!status.ok()) return status.annotate(fmt::format("at a length of {}", length));
    }
    return {};
  }

  static Status check_tensor(const PlanTensor& tensor, const PlanPipeline& pipeline) {
    for (const auto& cut : {tensor.data, tensor.context, tensor.tensor}) {
      if (cut && *cut >= tensor.shape.size()) {
        return invalid(fmt::format("cut: there is no dimension {}", *cut));
      }
    }
    uint64_t elements = 1;
    for (const uint64_t length : tensor.shape) {
      if (length == 0) return invalid("shape has a dimension of 0");
      if (length > reshard::kMaxElements / elements) return invalid("shape has too many elements");
      elements *= length;
    }
    if (tensor.data && tensor.shape[*tensor.data] % pipeline.micro_batch_size != 0) {
      return invalid(
          fmt::format("shape: dimension {} has a length of {}, and a micro-batch {} samples",
                      *tensor.data, tensor.shape[*tensor.data], pipeline.micro_batch_size));
    }
    return check_varying(tensor, pipeline);
  }

  static Status check_varying(const PlanTensor& tensor, const PlanPipeline& pipeline) {
    if (!tensor.varies) return {};
    if (pipeline.lengths.empty()) return invalid("varies: the pipeline has no lengths");
    if (*tensor.varies >= tensor.shape.size()) {
      return invalid(fmt::format("varies: there is no dimension {}", *tensor.varies));
    }
    if (tensor.varies == tensor.data) {
      return invalid("varies: it is the dimension of the samples");
    }
    if (tensor.shape[*tensor.varies] == pipeline.lengths.back()) return {};
    return invalid(fmt::format("shape: dimension {} has a length of {}, and the greatest is {}",
                               *tensor.varies, tensor.shape[*tensor.varies],
                               pipeline.lengths.back()));
  }

  // Counts the live activations, and compares those of each stage with its limit.
  static Status check_live_limits(const PlanPipeline& pipeline, PipelineView& view) {
    LivePeaks peaks = count_live(view.schedule);
    view.peaks = std::move(peaks.ranks);
    view.stage_peaks = std::move(peaks.stages);
    for (size_t i = 0; i < pipeline.stages.size(); ++i) {
      const uint64_t limit = pipeline.stages[i].live_limit;
      if (limit == 0 || view.stage_peaks[i] <= limit) continue;
      const std::vector<Action>& actions = view.schedule.actions[view.schedule.rank_of[i]];
      return {Code::kOutOfRange,
              fmt::format("stages[{}].live_limit is {}, and the schedule keeps {} activations from "
                          "{} on",
                          i, limit, view.stage_peaks[i], to_text(actions[peaks.steps[i]]))};
    }
    return {};
  }

  Status check_shared() const {
    std::set<uint32_t> items;
    for (size_t i = 0; i < plan_.shared.size(); ++i) {
      Status status = check_holders(plan_.shared[i]);
      if (status.ok() && !items.insert(plan_.shared[i].item).second) {
        status = invalid(fmt::format("item {} is there twice", plan_.shared[i].item));
      }
      if (!status.ok()) return status.annotate(fmt::format("shared[{}]", i));
    }
    return {};
  }

  Status check_holders(const SharedItem& shared) const {
    if (shared.item >= plan_.items) return invalid(fmt::format("there is no item {}", shared.item));
    std::set<std::pair<uint32_t, uint32_t>> seen;
    bool is_owned = false;
    for (const SharedItem::Holder& holder : shared.holders) {
      if (holder.pipeline >= plan_.pipelines.size() ||
          holder.stage >= plan_.pipelines[holder.pipeline].stages.size()) {
        return invalid(
            fmt::format("there is no stage {} in pipeline {}", holder.stage, holder.pipeline));
      }
      if (!seen.emplace(holder.pipeline, holder.stage).second) {
        return invalid(fmt::format("stage {} is there twice", holder.stage));
      }
      const PlanStage& stage = plan_.pipelines[holder.pipeline].stages[holder.stage];
      is_owned |= stage.items_begin <= shared.item && shared.item < stage.items_end;
    }
    if (seen.size() < 2) return invalid("an item that is shared has two holders at least");
    if (!is_owned) return invalid(fmt::format("no holder has item {} among its own", shared.item));
    return {};
  }

  const PipelinePlan& plan_;
  std::vector<bool> is_used_;  // indexed by rank
};

// Divides dimension |cut| of |shape|, if there is one, by |degree|.
void divide(std::vector<uint64_t>& shape, const std::optional<uint32_t>& cut, uint32_t degree) {
  if (cut) shape[*cut] /= degree;
}

}  // namespace

Result<std::vector<PipelineView>> check_plan(const PipelinePlan& plan) {
  return PlanCheck(plan).run();
}

bool has_gradient(const PlanBoundary& boundary) {
  return std::any_of(boundary.tensors.begin(), boundary.tensors.end(),
                     [](const PlanTensor& each) { return each.has_gradient; });
}

PlanTensor at_length(PlanTensor tensor, uint64_t length) {
  if (tensor.varies) tensor.shape[*tensor.varies] = length;
  return tensor;
}

Result<TensorMesh> mesh_of(const PlanTensor& tensor, const PlanStage& stage) {
  Result<reshard::Mesh> mesh = mesh_of_stage(stage);
  if (!mesh.ok()) return mesh.status();
  const auto cut = [](const std::optional<uint32_t>& dimension) {
    return dimension ? reshard::shard(*dimension) : reshard::replicate();
  };
  TensorMesh held;
  held.mesh = std::move(mesh).value();
  held.placements = {cut(tensor.data),
                     stage.degrees.zigzag && tensor.context ? reshard::zigzag(*tensor.context)
                                                            : cut(tensor.context),
                     cut(tensor.tensor)};
  return held;
}

uint64_t bytes_of(int32_t type, const std::vector<uint64_t>& shape) {
  uint64_t bytes = size_of(static_cast<ElementType>(type));
  for (const uint64_t length : shape) bytes *= length;
  return bytes;
}

std::vector<uint64_t> local_shape(const PlanTensor& tensor, const PlanStage& stage) {
  std::vector<uint64_t> shape = tensor.shape;
  divide(shape, tensor.data, stage.degrees.data);
  divide(shape, tensor.context, stage.degrees.context);
  divide(shape, tensor.tensor, stage.degrees.tensor);
  return shape;
}

}  // namespace hetcomm::pipeline
