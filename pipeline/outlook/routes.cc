#include "pipeline/outlook/routes.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"

namespace hetcomm::pipeline {
namespace {

using Use = QuestionRoute::Use;

class RouteMaker {
 public:
  RouteMaker(const Schedule& schedule, const PipelineTimes& times)
      : schedule_(schedule), times_(times) {}

  Result<RoutedInput> make(const std::vector<QuestionRoute>& routes) {
    const uint32_t stages = schedule_.stages();
    EventPipeline& own = made_.input.pipelines.emplace_back();
    own.schedule = schedule_;
    own.stages = times_.stages;
    own.forward.resize(stages - 1);
    own.backward.resize(stages - 1);
    made_.input.overlap_ppm = times_.overlap_ppm;
    for (size_t i = 0; i < routes.size(); ++i) {
      const Status added = add(routes[i]);
      if (!added.ok()) return added.annotate(fmt::format("routes[{}]", i));
    }
    for (uint32_t stage = 0; stage + 1 < stages; ++stage) {
      add_plain(own.forward[stage], times_.forward, stage, Use::kForward);
      add_plain(own.backward[stage], times_.backward, stage, Use::kBackward);
    }
    made_.input.resources = static_cast<uint32_t>(made_.resources.size());
    return std::move(made_);
  }

 private:
  Status add(const QuestionRoute& given) {
    EventPipeline& own = made_.input.pipelines.front();
    const uint32_t most = schedule_.stages() - (given.use < Use::kGather ? 1 : 0);
    for (const uint32_t stage : given.stages) {
      if (stage < most) continue;
      return invalid(fmt::format(
          "there is no {} {}", given.use < Use::kGather ? "boundary after stage" : "stage", stage));
    }
    HETCOMM_RETURN_IF_ERROR(add_length(given));
    const uint32_t stage = given.stages.front();
    switch (given.use) {
      case Use::kForward:
        return set(own.forward[stage], route_of(given, ""), Use::kForward, stage);
      case Use::kBackward:
        return set(own.backward[stage], route_of(given, ""), Use::kBackward, stage);
      case Use::kBothWays:
        HETCOMM_RETURN_IF_ERROR(
            set(own.forward[stage], route_of(given, " forward"), Use::kForward, stage));
        return set(own.backward[stage], route_of(given, " backward"), Use::kBackward, stage);
      case Use::kGather:
        own.gathers.resize(schedule_.stages());
        return set(own.gathers[stage], route_of(given, ""), Use::kGather, stage);
      default:
        return add_reduction(given);
    }
  }

  // All transfers, one after the other, end before 2^62 ns.
  Status add_length(const QuestionRoute& given) {
    for (const QuestionRoute::Hop& hop : given.hops) {
      length_ns_ += hop.busy_ns + hop.latency_ns;
      if (length_ns_ > (uint64_t{1} << 62) / schedule_.micro_batches) {
        return invalid("the hops of all micro-batches take longer than 2^62 ns");
      }
    }
    return {};
  }

  Status set(Route& place, Route route, Use use, uint32_t stage) {
    if (!known_.insert({use, stage}).second) {
      return invalid(fmt::format("stage {} has another route for the same", stage));
    }
    place = std::move(route);
    return {};
  }

  Status add_reduction(const QuestionRoute& given) {
    ReductionGroup& group = made_.input.reductions.emplace_back();
    for (const uint32_t stage : given.stages) {
      if (!known_.insert({Use::kReduce, stage}).second) {
        return invalid(fmt::format("stage {} has another route for the same", stage));
      }
      group.members.push_back({.pipeline = 0, .stage = stage});
    }
    group.route = route_of(given, "");
    made_.reduced.push_back(given.stages);
    return {};
  }

  // Gives a boundary without a route a link of its own.
  void add_plain(Route& place, const std::vector<BoundaryTime>& times, uint32_t stage, Use use) {
    if (times.empty() || known_.contains({use, stage})) return;
    const std::string name =
        fmt::format("boundary {} {}", stage, use == Use::kForward ? "forward" : "backward");
    place.hops.push_back({.busy_ns = times[stage].busy_ns,
                          .latency_ns = times[stage].latency_ns,
                          .resources = {number_of(name)}});
  }

  Route route_of(const QuestionRoute& given, std::string_view direction) {
    Route route;
    route.slices = given.slices;
    for (const QuestionRoute::Hop& hop : given.hops) {
      RouteHop& own = route.hops.emplace_back();
      own.busy_ns = hop.busy_ns;
      own.latency_ns = hop.latency_ns;
      for (const std::string& name : hop.resources) {
        own.resources.push_back(number_of(fmt::format("{}{}", name, direction)));
      }
    }
    return route;
  }

  uint32_t number_of(const std::string& name) {
    const auto [found, is_new] =
        numbers_.emplace(name, static_cast<uint32_t>(made_.resources.size()));
    if (is_new) made_.resources.push_back(name);
    return found->second;
  }

  const Schedule& schedule_;
  const PipelineTimes& times_;
  RoutedInput made_;
  std::map<std::string, uint32_t> numbers_;
  std::set<std::pair<Use, uint32_t>> known_;
  uint64_t length_ns_ = 0;
};

}  // namespace

Result<RoutedInput> routed_input(const Schedule& schedule, const PipelineTimes& times,
                                 const std::vector<QuestionRoute>& routes) {
  return RouteMaker(schedule, times).make(routes);
}

}  // namespace hetcomm::pipeline
