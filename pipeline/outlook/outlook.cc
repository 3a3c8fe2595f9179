#include "pipeline/outlook/outlook.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "pipeline/outlook/routes.h"
#include "pipeline/schedule/check.h"
#include "pipeline/simulate/longest_path.h"
#include "pipeline/simulate/transfers.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

PipelineTimes unit_times(uint32_t stages) {
  PipelineTimes times;
  times.stages.assign(stages, {.forward_ns = 1,
                               .backward_ns = 2,
                               .input_grad_ns = 1,
                               .weight_grad_ns = 1,
                               .recompute_ns = 1});
  return times;
}

// Determines what an action waited for.
class Causes {
 public:
  explicit Causes(const Outlook& outlook)
      : outlook_(outlook), schedule_(outlook.schedule), forward_(outlook), backward_(outlook) {
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      for (uint32_t i = 0; i < schedule_.actions[rank].size(); ++i) {
        const Action& action = schedule_.actions[rank][i];
        if (action.kind == Kind::kForward) forward_.add_producer(action, i);
        if (gives_input_grad(action.kind)) backward_.add_producer(action, i);
        if (action.kind == Kind::kSendForward) forward_.add_send(action, i);
        if (action.kind == Kind::kSendBackward) backward_.add_send(action, i);
      }
    }
  }

  // Returns the action whose end |at| had to wait for, without its times. The start of |at| was not
  // determined by its own rank.
  CriticalStep of(const CriticalStep& at) const {
    const Action& action = schedule_.actions[at.rank][at.action];
    const Bound bound = outlook_.forecast.bounds[at.rank][at.action];
    if (bound == Bound::kGather) return gather_before(at);
    const bool is_data = bound == Bound::kData;
    switch (action.kind) {
      case Kind::kForward:
        return is_data ? forward_.producer(action.stage - 1u, action)
                       : forward_.earlier(action, outlook_.in_flight[action.stage]);
      case Kind::kBackward:
      case Kind::kInputGrad:
        return is_data ? backward_.producer(action.stage + 1u, action)
                       : backward_.earlier(action, outlook_.in_flight[action.stage - 1u]);
      case Kind::kWaitReceiveForward:
        return forward_.producer(action.stage - 1u, action);
      case Kind::kWaitReceiveBackward:
        return backward_.producer(action.stage + 1u, action);
      case Kind::kWaitSendForward:
        return forward_.send(action);
      default:
        return backward_.send(action);
    }
  }

  // Returns the action that started to gather the weights of |at|'s stage.
  CriticalStep gather_before(const CriticalStep& at) const {
    const std::vector<Action>& actions = schedule_.actions[at.rank];
    size_t i = at.action;
    while (i > 0) {
      --i;
      const bool is_it =
          actions[i].kind == Kind::kUnshard && actions[i].stage == actions[at.action].stage;
      if (is_it) break;
    }
    return {.rank = at.rank, .action = i};
  }

  // Returns the stage before the boundary that |at| waited for.
  uint32_t boundary(const CriticalStep& at) const {
    const Action& action = schedule_.actions[at.rank][at.action];
    const bool is_data = outlook_.forecast.bounds[at.rank][at.action] == Bound::kData;
    switch (action.kind) {
      case Kind::kForward:
        return is_data ? action.stage - 1u : action.stage;
      case Kind::kWaitReceiveForward:
      case Kind::kWaitSendBackward:
        return action.stage - 1u;
      case Kind::kBackward:
      case Kind::kInputGrad:
        return is_data ? action.stage : action.stage - 1u;
      default:
        return action.stage;
    }
  }

 private:
  // The actions of one direction (forward or backward).
  class Direction {
   public:
    explicit Direction(const Outlook& outlook)
        : schedule_(outlook.schedule), made_(schedule_.stages()) {
      uint64_t steps = 0;
      size_t pipeline = 0;
      for (uint32_t stage = 0; stage < schedule_.stages(); ++stage) {
        const std::vector<Outlook::Part>& parts = outlook.pipelines;
        if (pipeline + 1 < parts.size() && parts[pipeline + 1].first_stage == stage) ++pipeline;
        first_.push_back(steps);
        steps += parts.empty() ? schedule_.micro_batches : parts[pipeline].micro_batches;
      }
      numbers_.resize(steps);
      sends_.resize(steps);
    }
    void add_producer(const Action& action, uint32_t index) {
      numbers_[at(action.stage, action)] = static_cast<uint32_t>(made_[action.stage].size());
      made_[action.stage].push_back(index);
    }
    void add_send(const Action& action, uint32_t index) {
      sends_[at(action.stage, action)] = index;
    }

    // Returns the step of |stage| for the micro-batch of |action|.
    CriticalStep producer(uint32_t stage, const Action& action) const {
      return step(stage, made_[stage][numbers_[at(stage, action)]]);
    }
    // Returns the step whose item had to be sent before |action| could produce another one.
    CriticalStep earlier(const Action& action, uint32_t in_flight) const {
      const uint32_t number = numbers_[at(action.stage, action)] - in_flight;
      return step(action.stage, made_[action.stage][number]);
    }
    CriticalStep send(const Action& action) const {
      return step(action.stage, sends_[at(action.stage, action)]);
    }

   private:
    size_t at(uint32_t stage, const Action& action) const {
      return first_[stage] + action.micro_batch;
    }
    CriticalStep step(uint32_t stage, uint32_t index) const {
      return {.rank = schedule_.rank_of[stage], .action = index};
    }

    const Schedule& schedule_;
    std::vector<std::vector<uint32_t>> made_;  // indexed by stage: indices of actions, in order
    std::vector<size_t> first_;                // indexed by stage: offset of its micro-batches
    std::vector<uint32_t> numbers_;            // by stage and micro-batch: position in |made_|
    std::vector<uint32_t> sends_;              // by stage and micro-batch: indices of actions
  };

  const Outlook& outlook_;
  const Schedule& schedule_;
  Direction forward_;
  Direction backward_;
};

// Simulates the schedule of an outlook: by longest paths, or by events if transfers have routes.
class Simulation {
 public:
  // Fails with kInvalidArgument if |routes| do not match the schedule. With routes, also fails if
  // the schedule is not sound or the times do not match it.
  static Result<Simulation> of(const Outlook& outlook, const std::vector<QuestionRoute>& routes) {
    Simulation simulation(outlook);
    if (routes.empty()) return simulation;
    HETCOMM_RETURN_IF_ERROR(check_unlimited(outlook.schedule));
    HETCOMM_RETURN_IF_ERROR(check_times(outlook.schedule, outlook.times));
    Result<RoutedInput> routed = routed_input(outlook.schedule, outlook.times, routes);
    if (!routed.ok()) return routed.status();
    simulation.routed_ = std::move(routed).value();
    return simulation;
  }

  // Returns the time of an iteration, or UINT64_MAX if the schedule deadlocks.
  uint64_t total_ns(const std::vector<uint32_t>& in_flight) {
    const Result<EventForecast> forecast = run(in_flight, false);
    return forecast.ok() ? forecast.value().total_ns : UINT64_MAX;
  }

  // Writes the forecast to |outlook|.
  Status tell(Outlook& outlook) {
    Result<EventForecast> forecast = run(outlook.in_flight, true);
    if (!forecast.ok()) return forecast.status();
    outlook.forecast = std::move(forecast->pipelines.front());
    outlook.forecast.total_ns = forecast->total_ns;
    for (size_t i = 0; i < forecast->resource_busy_ns.size(); ++i) {
      outlook.resources.push_back({routed_->resources[i], forecast->resource_busy_ns[i]});
    }
    for (size_t i = 0; i < forecast->reductions.size(); ++i) {
      Outlook::Reduction& own = outlook.reductions.emplace_back();
      own.span = forecast->reductions[i];
      own.alone_ns = alone_ns(routed_->input.reductions[i].route);
      for (const ReductionGroup::Member& each : routed_->input.reductions[i].members) {
        own.stages.push_back(each.stage);
      }
    }
    return {};
  }

 private:
  explicit Simulation(const Outlook& outlook) : outlook_(outlook) {}

  Result<EventForecast> run(const std::vector<uint32_t>& in_flight, bool keeps_spans) {
    if (routed_) {
      routed_->input.pipelines.front().in_flight = in_flight;
      return simulate_events(routed_->input, keeps_spans);
    }
    Result<Forecast> forecast = simulate(outlook_.schedule, outlook_.times,
                                         {.in_flight = in_flight, .keeps_spans = keeps_spans});
    if (!forecast.ok()) return forecast.status();
    EventForecast told;
    told.total_ns = forecast->total_ns;
    told.pipelines.push_back(std::move(forecast).value());
    return told;
  }

  const Outlook& outlook_;
  std::optional<RoutedInput> routed_;
};

// Returns numbers of items in flight with which an iteration takes no longer than with any number.
// Starts with the numbers that the schedule needs, and raises all of them equally until that is the
// case. Then lowers each number as far as possible, unless the schedule is so large that this would
// take too long.
Result<std::vector<uint32_t>> find_in_flight(const Schedule& schedule, Simulation& simulation) {
  Result<std::vector<uint32_t>> needed = needed_in_flight(schedule);
  if (!needed.ok()) return needed;
  const auto time_of = [&](const std::vector<uint32_t>& in_flight) {
    return simulation.total_ns(in_flight);
  };
  if (schedule.stages() == 1) return needed;
  const uint64_t best_ns = time_of({});
  std::vector<uint32_t> in_flight = needed.value();
  for (uint32_t more = 1; time_of(in_flight) != best_ns && more < 2 * schedule.micro_batches;
       more *= 2) {
    in_flight = needed.value();
    for (uint32_t& each : in_flight) each += std::min(more, schedule.micro_batches);
  }
  constexpr uint64_t kMaxWork = uint64_t{1} << 24;
  const uint64_t work = uint64_t{schedule.stages()} * schedule.stages() * schedule.micro_batches;
  for (size_t i = 0; i < in_flight.size() && work <= kMaxWork; ++i) {
    while (in_flight[i] > needed.value()[i]) {
      --in_flight[i];
      if (time_of(in_flight) == best_ns) continue;
      ++in_flight[i];
      break;
    }
  }
  return in_flight;
}

}  // namespace

Status check_size(const Schedule& schedule) {
  const uint64_t steps = uint64_t{schedule.stages()} * schedule.micro_batches;
  if (steps <= kMaxQuestionSteps) return {};
  return {Code::kOutOfResources,
          fmt::format("the schedule has {} steps, and {} are the most that are looked at", steps,
                      kMaxQuestionSteps)};
}

Result<Outlook> look_at(ScheduleQuestion question) {
  HETCOMM_RETURN_IF_ERROR(check_size(question.schedule));
  Outlook outlook;
  CheckOptions options = std::move(question.check);
  const bool is_lowered = level_of(question.schedule) != Level::kCompute;
  if (is_lowered) options.in_flight.clear();
  outlook.has_times = question.times.has_value();
  outlook.times =
      outlook.has_times ? *std::move(question.times) : unit_times(question.schedule.stages());
  outlook.schedule = std::move(question.schedule);
  Result<Simulation> simulation = Simulation::of(outlook, question.routes);
  if (!simulation.ok()) return simulation.status();
  if (options.in_flight.empty() && !is_lowered) {
    Result<std::vector<uint32_t>> enough = find_in_flight(outlook.schedule, simulation.value());
    if (!enough.ok()) return enough.status();
    options.in_flight = std::move(enough).value();
  }
  Result<CheckResult> checked = check(outlook.schedule, options);
  if (!checked.ok()) return checked.status();
  outlook.exposed = std::move(question.exposed);
  outlook.in_flight = std::move(options.in_flight);
  outlook.peaks = std::move(checked->peaks);
  outlook.memory = std::move(options.memory);
  HETCOMM_RETURN_IF_ERROR(simulation->tell(outlook));
  return outlook;
}

std::vector<CriticalStep> critical_path(const Outlook& outlook) {
  const std::vector<std::vector<Span>>& spans = outlook.forecast.actions;
  const std::vector<std::vector<Bound>>& bounds = outlook.forecast.bounds;
  const Causes causes(outlook);
  std::optional<CriticalStep> at;
  uint64_t latest_ns = 0;  // end of the last step; reductions can end later
  for (uint32_t rank = 0; rank < spans.size(); ++rank) {
    if (spans[rank].empty() || (at && spans[rank].back().end_ns <= latest_ns)) continue;
    latest_ns = spans[rank].back().end_ns;
    at = CriticalStep{.rank = rank, .action = spans[rank].size() - 1};
  }
  std::vector<CriticalStep> path;
  while (at) {
    const std::vector<Action>& actions = outlook.schedule.actions[at->rank];
    // The two actions of a pair start together, so either of them can be the one that waited.
    const bool is_second = at->action > 0 && actions[at->action - 1].overlaps_next;
    const size_t first = at->action - (is_second ? 1 : 0);
    const bool is_pair = actions[first].overlaps_next;
    if (is_pair) at->action = first + (bounds[at->rank][first] == Bound::kRank ? 1 : 0);
    std::optional<CriticalStep> before;
    if (bounds[at->rank][at->action] != Bound::kRank) {
      before = causes.of(*at);
      at->is_gather = bounds[at->rank][at->action] == Bound::kGather;
      if (!at->is_gather) at->boundary = causes.boundary(*at);
      at->transfer_ns =
          spans[at->rank][at->action].start_ns - spans[before->rank][before->action].end_ns;
    } else if (first > 0) {
      before = CriticalStep{.rank = at->rank, .action = first - 1};
    }
    if (is_computation(actions[at->action].kind) || at->transfer_ns > 0) path.push_back(*at);
    at = before;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace hetcomm::pipeline
