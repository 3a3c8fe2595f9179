#include "pipeline/joint/joint_outlook.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pipeline/outlook/question.h"
#include "pipeline/plan/plan_outline.h"
#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/simulate/events.h"
#include "pipeline/simulate/transfers.h"

namespace hetcomm::pipeline {
namespace {

Status check_size(const PipelinePlan& plan) {
  uint64_t stages = 0;
  uint64_t steps = 0;
  for (const PlanPipeline& each : plan.pipelines) {
    stages += each.stages.size();
    steps += each.stages.size() * uint64_t{each.micro_batches};
  }
  if (stages > kMaxStages) {
    return invalid(fmt::format("plan: {} stages, and {} are the most", stages, kMaxStages));
  }
  if (steps <= kMaxQuestionSteps) return {};
  return {Code::kOutOfResources,
          fmt::format("plan: {} steps, and {} are the most that are simulated", steps,
                      kMaxQuestionSteps)};
}

// The maximum total time of all transfers of a plan.
constexpr uint64_t kMaxNs = uint64_t{1} << 61;

// Adds the time of |times| transfers over |route| to |length_ns|, capped at kMaxNs.
void add_length(uint64_t& length_ns, const Route& route, uint64_t times) {
  for (const RouteHop& hop : route.hops) {
    for (const uint64_t each : {hop.busy_ns, hop.latency_ns}) {
      const bool fits = each == 0 || times <= (kMaxNs - length_ns) / each;
      length_ns = fits ? length_ns + each * times : kMaxNs;
    }
  }
}

Status check_routes(const PlanRoutes& routes, const std::vector<PipelineView>& views) {
  uint64_t length_ns = 0;
  for (size_t i = 0; i < routes.pipelines.size(); ++i) {
    const PlanRoutes::OfPipeline& own = routes.pipelines[i];
    for (const auto* each : {&own.forward, &own.backward, &own.gathers}) {
      for (const Route& route : *each) {
        add_length(length_ns, route, views[i].schedule.micro_batches);
      }
    }
    if (length_ns == kMaxNs) {
      return invalid(
          fmt::format("plan.pipelines[{}]: its transfers take longer than 2^61 ns together", i));
    }
  }
  for (const ReductionGroup& each : routes.reductions) add_length(length_ns, each.route, 1);
  if (length_ns < kMaxNs) return {};
  return invalid("items: the sums of their gradients take longer than 2^61 ns together");
}

// Returns for each boundary between consecutive stages whether no gradient is sent back over it.
std::vector<bool> one_way(const PlanPipeline& pipeline) {
  std::vector<bool> all(pipeline.stages.size() - 1);
  for (const PlanBoundary& each : pipeline.boundaries) {
    if (each.to != each.from + 1) continue;
    all[each.from] = !has_gradient(each);
  }
  return all;
}

// Makes a single outlook of all pipelines of a plan.
class Joint {
 public:
  explicit Joint(const ForecastQuestion& question) : question_(question) {}

  Result<Outlook> look() {
    HETCOMM_RETURN_IF_ERROR(check_size(question_.plan));
    HETCOMM_RETURN_IF_ERROR(make_input());
    Result<EventForecast> forecast = simulate_events(input_, true);
    if (!forecast.ok()) return forecast.status();
    outlook_.has_times = true;
    outlook_.times.stages = question_.stages;
    outlook_.times.overlap_ppm = question_.overlap_ppm;
    for (uint32_t i = 0; i < input_.pipelines.size(); ++i) add(i, forecast->pipelines[i]);
    outlook_.forecast.total_ns = forecast->total_ns;
    add_links(forecast.value());
    if (outlook_.pipelines.size() == 1) outlook_.pipelines.clear();
    return std::move(outlook_);
  }

 private:
  Status make_input() {
    PlanRoutes routes;
    routes.pipelines.resize(question_.plan.pipelines.size());
    if (question_.links) {
      Result<PlanRoutes> made =
          routes_of(question_.plan, question_.views, *question_.links, question_.items);
      if (!made.ok()) return made.status().annotate("plan");
      routes = std::move(made).value();
    }
    HETCOMM_RETURN_IF_ERROR(check_routes(routes, question_.views));
    auto stage = question_.stages.begin();
    for (size_t i = 0; i < question_.views.size(); ++i) {
      const PipelineView& view = question_.views[i];
      PlanRoutes::OfPipeline& own = routes.pipelines[i];
      EventPipeline& pipeline = input_.pipelines.emplace_back();
      pipeline.schedule = routes.reductions.empty() ? view.schedule : add_reductions(view.schedule);
      const auto end = stage + static_cast<ptrdiff_t>(view.schedule.stages());
      pipeline.stages.assign(stage, end);
      stage = end;
      pipeline.forward = std::move(own.forward);
      pipeline.backward = std::move(own.backward);
      pipeline.gathers = std::move(own.gathers);
      pipeline.in_flight = view.stage_in_flight;
      pipeline.one_way = one_way(question_.plan.pipelines[i]);
    }
    input_.reductions = std::move(routes.reductions);
    input_.resources = static_cast<uint32_t>(routes.resources.size());
    input_.overlap_ppm = question_.overlap_ppm;
    resources_ = std::move(routes.resources);
    return {};
  }

  // Appends pipeline |number| and its forecast to the outlook.
  void add(uint32_t number, Forecast& forecast) {
    const EventPipeline& own = input_.pipelines[number];
    const PipelineView& view = question_.views[number];
    Schedule& joint = outlook_.schedule;
    const uint32_t first_rank = joint.ranks();
    const uint32_t first_stage = joint.stages();
    outlook_.pipelines.push_back({first_rank, first_stage, own.schedule.micro_batches});
    joint.micro_batches = std::max(joint.micro_batches, own.schedule.micro_batches);
    for (const uint32_t rank : own.schedule.rank_of) joint.rank_of.push_back(first_rank + rank);
    for (std::vector<Action> actions : own.schedule.actions) {
      for (Action& each : actions) each.stage = static_cast<uint16_t>(first_stage + each.stage);
      joint.actions.push_back(std::move(actions));
    }
    for (const uint32_t stage : view.exposed) outlook_.exposed.push_back(first_stage + stage);
    // Nothing is transferred between pipelines.
    if (number > 0) outlook_.in_flight.push_back(0);
    outlook_.in_flight.insert(outlook_.in_flight.end(), own.in_flight.begin(), own.in_flight.end());
    for (const uint64_t each : view.peaks) outlook_.peaks.push_back(static_cast<int64_t>(each));
    for (const std::vector<uint32_t>& group : view.groups) {
      outlook_.rank_names.push_back(ranks_text(group));
    }
    Forecast& all = outlook_.forecast;
    all.busy_ns.insert(all.busy_ns.end(), forecast.busy_ns.begin(), forecast.busy_ns.end());
    std::move(forecast.actions.begin(), forecast.actions.end(), std::back_inserter(all.actions));
    std::move(forecast.bounds.begin(), forecast.bounds.end(), std::back_inserter(all.bounds));
  }

  void add_links(const EventForecast& forecast) {
    for (size_t i = 0; i < forecast.resource_busy_ns.size(); ++i) {
      if (forecast.resource_busy_ns[i] == 0) continue;
      outlook_.resources.push_back({std::move(resources_[i]), forecast.resource_busy_ns[i]});
    }
    std::stable_sort(outlook_.resources.begin(), outlook_.resources.end(),
                     [](const auto& a, const auto& b) { return a.busy_ns > b.busy_ns; });
    for (size_t i = 0; i < forecast.reductions.size(); ++i) {
      Outlook::Reduction& own = outlook_.reductions.emplace_back();
      own.span = forecast.reductions[i];
      own.alone_ns = alone_ns(input_.reductions[i].route);
      for (const ReductionGroup::Member& each : input_.reductions[i].members) {
        own.stages.push_back(outlook_.pipelines[each.pipeline].first_stage + each.stage);
      }
    }
  }

  const ForecastQuestion& question_;
  EventInput input_;
  std::vector<std::string> resources_;
  Outlook outlook_;
};

}  // namespace

Result<Outlook> look_at_plan(const ForecastQuestion& question) { return Joint(question).look(); }

}  // namespace hetcomm::pipeline
