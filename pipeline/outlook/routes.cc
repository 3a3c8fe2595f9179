#include "pipeline/outlook/routes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;
using Use = QuestionRoute::Use;
using Hop = QuestionRoute::Hop;

// Returns the resources that have two directions.
std::set<std::string> two_way_names(const std::vector<QuestionRoute>& routes) {
  std::set<std::string> names;
  for (const QuestionRoute& route : routes) {
    if (route.use != Use::kBothWays) continue;
    for (const Hop& hop : route.hops) names.insert(hop.resources.begin(), hop.resources.end());
  }
  return names;
}

// Returns the names of the resources of |hop| that a transfer with |use| occupies.
std::vector<std::string> occupied(const Hop& hop, Use use, const std::set<std::string>& two_ways) {
  std::vector<std::string> names;
  for (const std::string& name : hop.resources) {
    if (!two_ways.contains(name)) {
      names.push_back(name);
      continue;
    }
    if (use != Use::kBackward) names.push_back(name + " forward");
    if (use != Use::kForward) names.push_back(name + " backward");
  }
  return names;
}

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
    two_ways_ = two_way_names(routes);
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
        return set(own.forward[stage], route_of(given, Use::kForward), Use::kForward, stage);
      case Use::kBackward:
        return set(own.backward[stage], route_of(given, Use::kBackward), Use::kBackward, stage);
      case Use::kBothWays:
        HETCOMM_RETURN_IF_ERROR(
            set(own.forward[stage], route_of(given, Use::kForward), Use::kForward, stage));
        return set(own.backward[stage], route_of(given, Use::kBackward), Use::kBackward, stage);
      case Use::kGather:
        if (!has_action(schedule_, Kind::kUnshard, stage)) {
          return invalid(fmt::format("stage {} has no UNSHARD that would gather", stage));
        }
        own.gathers.resize(schedule_.stages());
        return set(own.gathers[stage], route_of(given, Use::kGather), Use::kGather, stage);
      default:
        return add_reduction(given);
    }
  }

  // Fails if all transfers together take longer than 2^62 ns.
  Status add_length(const QuestionRoute& given) {
    for (const Hop& hop : given.hops) {
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
      if (!has_action(schedule_, Kind::kReduceGradient, stage)) {
        return invalid(fmt::format("stage {} has no REDUCE_GRAD, which `reductions` adds", stage));
      }
      group.members.push_back({.pipeline = 0, .stage = stage});
    }
    group.route = route_of(given, Use::kReduce);
    return {};
  }

  // Assigns a separate link to a boundary without a route.
  void add_plain(Route& place, const std::vector<BoundaryTime>& times, uint32_t stage, Use use) {
    if (times.empty() || known_.contains({use, stage})) return;
    const std::string name =
        fmt::format("boundary {} {}", stage, use == Use::kForward ? "forward" : "backward");
    place.hops.push_back({.busy_ns = times[stage].busy_ns,
                          .latency_ns = times[stage].latency_ns,
                          .resources = {number_of(name)}});
  }

  Route route_of(const QuestionRoute& given, Use use) {
    Route route;
    route.slices = given.slices;
    for (const Hop& hop : given.hops) {
      RouteHop& own = route.hops.emplace_back();
      own.busy_ns = hop.busy_ns;
      own.latency_ns = hop.latency_ns;
      for (const std::string& name : occupied(hop, use, two_ways_)) {
        own.resources.push_back(number_of(name));
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
  std::set<std::string> two_ways_;
  std::map<std::string, uint32_t> numbers_;
  std::set<std::pair<Use, uint32_t>> known_;
  uint64_t length_ns_ = 0;
};

}  // namespace

std::vector<BoundaryTime> boundary_times(const std::vector<QuestionRoute>& routes,
                                         std::vector<BoundaryTime> known, uint32_t stages) {
  known.resize(stages - 1);
  const std::set<std::string> two_ways = two_way_names(routes);
  std::map<std::string, uint64_t> busy_ns;  // for one micro-batch, keyed by resource
  const auto for_each_way = [&](const auto& use_way) {
    for (const QuestionRoute& route : routes) {
      if (route.use >= Use::kGather || route.stages.front() + 1 >= stages) continue;
      for (const Use way : {Use::kForward, Use::kBackward}) {
        if (route.use == way || route.use == Use::kBothWays) use_way(route, way);
      }
    }
  };
  for_each_way([&](const QuestionRoute& route, Use way) {
    for (const Hop& hop : route.hops) {
      for (const std::string& name : occupied(hop, way, two_ways)) busy_ns[name] += hop.busy_ns;
    }
  });
  std::set<uint32_t> seen;
  for_each_way([&](const QuestionRoute& route, Use way) {
    const uint32_t stage = route.stages.front();
    if (seen.insert(stage).second) known[stage] = {};
    BoundaryTime own;
    uint64_t length_ns = 0;
    uint64_t longest_ns = 0;
    for (const Hop& hop : route.hops) {
      length_ns += hop.busy_ns + hop.latency_ns;
      longest_ns = std::max(longest_ns, hop.busy_ns);
      own.busy_ns = std::max(own.busy_ns, hop.busy_ns);
      for (const std::string& name : occupied(hop, way, two_ways)) {
        own.busy_ns = std::max(own.busy_ns, busy_ns[name]);
      }
    }
    own.latency_ns = length_ns - longest_ns;
    known[stage].busy_ns = std::max(known[stage].busy_ns, own.busy_ns);
    known[stage].latency_ns = std::max(known[stage].latency_ns, own.latency_ns);
  });
  return known;
}

Result<RoutedInput> routed_input(const Schedule& schedule, const PipelineTimes& times,
                                 const std::vector<QuestionRoute>& routes) {
  return RouteMaker(schedule, times).make(routes);
}

}  // namespace hetcomm::pipeline
