#include "pipeline/joint/plan_routes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "pipeline/joint/link_ways.h"
#include "reshard/mesh.h"
#include "reshard/plans.h"
#include "src/base/element_type.h"

namespace hetcomm::pipeline {
namespace {

using Member = ReductionGroup::Member;
using reshard::Messages;

// The maximum number of entries of all rings together. An entry is a rank that adds up a part of an
// item, or gathers a part of a stage.
constexpr uint64_t kMaxRingEntries = uint64_t{1} << 22;
// The maximum number of parts into which tensor degrees cut an item.
constexpr uint64_t kMaxParts = 1024;

// Returns the layout in which |stage| holds |tensor|.
Result<reshard::Layout> layout_of(const PlanTensor& tensor, const PlanStage& stage) {
  Result<TensorMesh> held = mesh_of(tensor, stage);
  if (!held.ok()) return held.status();
  return reshard::layout_of(tensor.shape, held->mesh, held->placements);
}

class RouteMaker {
 public:
  RouteMaker(const PipelinePlan& plan, const std::vector<PipelineView>& views,
             const reshard::Links& links, const std::vector<ItemBytes>& items)
      : plan_(plan), views_(views), links_(links), items_(items), ways_(links) {}

  Result<PlanRoutes> make() {
    for (uint32_t i = 0; i < plan_.pipelines.size(); ++i) {
      made_.pipelines.emplace_back();
      const Status status = add_boundaries(i);
      if (!status.ok()) return status.annotate(fmt::format("pipelines[{}]", i));
      add_gathers(i);
    }
    HETCOMM_RETURN_IF_ERROR(add_reductions());
    made_.resources = ways_.resources();
    return std::move(made_);
  }

 private:
  Status add_boundaries(uint32_t number) {
    const PlanPipeline& pipeline = plan_.pipelines[number];
    PlanRoutes::OfPipeline& own = made_.pipelines[number];
    own.forward.resize(pipeline.stages.size() - 1);
    own.backward.resize(pipeline.stages.size() - 1);
    for (size_t i = 0; i < pipeline.boundaries.size(); ++i) {
      const PlanBoundary& boundary = pipeline.boundaries[i];
      if (boundary.to != boundary.from + 1 || !views_[number].schedule.crosses(boundary.from)) {
        continue;
      }
      const std::string name = fmt::format("pipeline {} after stage {}", number, boundary.from);
      for (const bool is_backward : {false, true}) {
        Result<Route> route =
            route_of(pipeline, boundary, is_backward, name + (is_backward ? " back" : ""));
        if (!route.ok()) return route.status().annotate(fmt::format("boundaries[{}]", i));
        (is_backward ? own.backward : own.forward)[boundary.from] = std::move(route).value();
      }
    }
    return {};
  }

  Result<Route> route_of(const PlanPipeline& pipeline, const PlanBoundary& boundary,
                         bool is_backward, const std::string& name) {
    const PlanStage& from = pipeline.stages[is_backward ? boundary.to : boundary.from];
    const PlanStage& to = pipeline.stages[is_backward ? boundary.from : boundary.to];
    std::vector<std::pair<reshard::Layout, reshard::Layout>> layouts;
    std::vector<uint64_t> element_bytes;
    uint64_t bytes = 0;
    for (const PlanTensor& each : boundary.tensors) {
      if (is_backward && !each.has_gradient) continue;
      Result<reshard::Layout> source = layout_of(each, from);
      Result<reshard::Layout> destination = layout_of(each, to);
      if (!source.ok()) return source.status();
      if (!destination.ok()) return destination.status();
      layouts.emplace_back(std::move(source).value(), std::move(destination).value());
      element_bytes.push_back(size_of(static_cast<ElementType>(each.type)));
      bytes += bytes_of(each.type, each.shape);
    }
    if (layouts.empty()) return Route{};
    std::vector<reshard::Tensor> tensors;
    for (size_t i = 0; i < layouts.size(); ++i) {
      tensors.push_back({&layouts[i].first, &layouts[i].second, element_bytes[i]});
    }
    Result<std::vector<reshard::Choice>> choices = reshard::make_plans(
        tensors, {.strategy = static_cast<reshard::Strategy>(boundary.strategy),
                  .bundle_bytes = boundary.slice_bytes,
                  .slice_bytes = reshard::slice_bytes_or_default(boundary.slice_bytes),
                  .links = &links_});
    if (!choices.ok()) return choices.status();
    std::vector<Messages> hops;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const reshard::MovePlan& moves = choices.value()[i].plan;
      hops.resize(std::max(hops.size(), moves.hops.size()));
      for (size_t hop = 0; hop < moves.hops.size(); ++hop) {
        for (const auto& [ends, moved] : reshard::messages_of(moves, hop, element_bytes[i])) {
          hops[hop][ends] += moved;
        }
      }
    }
    const uint64_t slices = reshard::slices_for(bytes, hops.size(), boundary.slice_bytes);
    return ways_.way_of(hops, static_cast<uint32_t>(slices), name);
  }

  void add_gathers(uint32_t number) {
    const PlanPipeline& pipeline = plan_.pipelines[number];
    std::vector<Route>& gathers = made_.pipelines[number].gathers;
    gathers.resize(pipeline.stages.size());
    for (uint32_t i = 0; i < pipeline.stages.size(); ++i) {
      const PlanStage& stage = pipeline.stages[i];
      if (!has_action(views_[number].schedule, ActionKind::kUnshard, i)) continue;
      uint64_t bytes = 0;
      for (uint32_t item = stage.items_begin; item < stage.items_end; ++item) {
        bytes += items_[item].weight;
      }
      if (bytes == 0) continue;
      Messages messages;
      for (uint32_t part = 0; part < stage.degrees.tensor; ++part) {
        add_ring({{number, i}}, part, stage.degrees.tensor, bytes, 1, messages);
      }
      gathers[i] =
          ways_.way_of({messages}, 1, fmt::format("weights of pipeline {} stage {}", number, i));
    }
  }

  Status add_reductions() {
    const std::vector<std::vector<Member>> holders = holders_by_item();
    for (uint32_t begin = 0; begin < plan_.items;) {
      uint32_t end = begin;
      uint64_t bytes = 0;
      for (; end < plan_.items && holders[begin] == holders[end]; ++end) {
        bytes += items_[end].gradient;
      }
      if (bytes > 0) add_reduction(holders[begin], bytes);
      begin = end;
    }
    if (ring_entries_ <= kMaxRingEntries) return {};
    return {Code::kOutOfResources, "too many ranks take part in too many sums and gathers"};
  }

  std::vector<std::vector<Member>> holders_by_item() const {
    std::vector<std::vector<Member>> holders(plan_.items);
    for (uint32_t number = 0; number < plan_.pipelines.size(); ++number) {
      const std::vector<PlanStage>& stages = plan_.pipelines[number].stages;
      for (uint32_t stage = 0; stage < stages.size(); ++stage) {
        for (uint32_t i = stages[stage].items_begin; i < stages[stage].items_end; ++i) {
          holders[i].push_back({number, stage});
        }
      }
    }
    for (const SharedItem& shared : plan_.shared) {
      std::vector<Member>& own = holders[shared.item];
      for (const SharedItem::Holder& each : shared.holders) {
        own.push_back({each.pipeline, each.stage});
      }
      std::sort(own.begin(), own.end());
      own.erase(std::unique(own.begin(), own.end()), own.end());
    }
    return holders;
  }

  void add_reduction(const std::vector<Member>& members, uint64_t bytes) {
    uint64_t parts = 1;
    uint64_t finest = 1;
    for (const Member& each : members) {
      const uint64_t degree = stage_of(each).degrees.tensor;
      finest = std::max(finest, degree);
      if (parts <= kMaxParts) parts = std::lcm(parts, degree);
    }
    if (parts > kMaxParts) parts = finest;
    Messages messages;
    for (uint64_t part = 0; part < parts; ++part) {
      add_ring(members, part, parts, bytes, 2, messages);
    }
    if (messages.empty()) return;
    const std::string name = fmt::format("sum {}", made_.reductions.size());
    made_.reductions.push_back({.members = members, .route = ways_.way_of({messages}, 1, name)});
  }

  // Adds the messages of a ring to |messages|: the ranks that hold |part| of |parts| of |bytes|
  // send it around the ring |rounds| times. Ranks of a cluster, and of a location in it, are
  // consecutive.
  void add_ring(const std::vector<Member>& members, uint64_t part, uint64_t parts, uint64_t bytes,
                uint64_t rounds, Messages& messages) {
    if (ring_entries_ > kMaxRingEntries) return;
    std::set<std::pair<reshard::Links::Location, int>> ring;
    for (const Member& each : members) {
      const PlanStage& stage = stage_of(each);
      const uint64_t degree = stage.degrees.tensor;
      const std::vector<int>& ranks = ranks_by_axes(each);
      for (size_t i = part * degree / parts; i < ranks.size(); i += degree) {
        ring.insert({links_.location(ranks[i]), ranks[i]});
      }
    }
    ring_entries_ += members.size() + ring.size();
    if (ring.size() < 2) return;
    const uint64_t passed = (bytes / parts * rounds / ring.size() + 1) * (ring.size() - 1);
    int previous = ring.rbegin()->second;
    for (const auto& [location, rank] : ring) {
      messages[{previous, rank}] += passed;
      previous = rank;
    }
  }

  const PlanStage& stage_of(const Member& member) const {
    return plan_.pipelines[member.pipeline].stages[member.stage];
  }

  // Returns the ranks of a stage in the order of the axes data, context and tensor, with the last
  // axis fastest.
  const std::vector<int>& ranks_by_axes(const Member& member) {
    std::vector<int>& ranks = ranks_[{member.pipeline, member.stage}];
    if (ranks.empty()) ranks = mesh_of(PlanTensor{}, stage_of(member)).value().mesh.ranks;
    return ranks;
  }

  const PipelinePlan& plan_;
  const std::vector<PipelineView>& views_;
  const reshard::Links& links_;
  const std::vector<ItemBytes>& items_;
  LinkWays ways_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<int>> ranks_;  // keyed by pipeline and stage
  uint64_t ring_entries_ = 0;
  PlanRoutes made_;
};

}  // namespace

Result<PlanRoutes> routes_of(const PipelinePlan& plan, const std::vector<PipelineView>& views,
                             const reshard::Links& links, const std::vector<ItemBytes>& items) {
  return RouteMaker(plan, views, links, items).make();
}

}  // namespace hetcomm::pipeline
