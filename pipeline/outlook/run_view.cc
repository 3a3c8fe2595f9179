#include "pipeline/outlook/run_view.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "pipeline/arrange/arrange.h"
#include "pipeline/schedule/cells_json.h"
#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/live.h"
#include "pipeline/schedule/parameters_json.h"
#include "pipeline/simulate/longest_path.h"

namespace hetcomm::pipeline {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = ActionKind;

constexpr double kMoved = 0.10;
constexpr double kGain = 0.01;
// Relative to the longest stage. Boundaries below this fraction do not count as slow, and smaller
// differences between times are ignored.
constexpr double kSlight = 0.02;
// The number of steps to simulate in the search for an order, which takes less than a second.
constexpr uint64_t kArrangeEffort = 4'000'000;
// Schedules with more steps are not arranged.
constexpr uint64_t kMaxArranged = 30'000;

uint64_t whole_ns(const StageTime& stage) { return stage.forward_ns + stage.backward_ns; }

uint64_t longest_stage_ns(const std::vector<StageTime>& stages) {
  uint64_t longest = 0;
  for (const StageTime& each : stages) longest = std::max(longest, whole_ns(each));
  return longest;
}

uint64_t way_ns(const BoundaryTime& boundary) { return boundary.busy_ns + boundary.latency_ns; }

BoundaryTime known_boundary(const std::vector<BoundaryTime>& known, uint32_t stage) {
  return stage < known.size() ? known[stage] : BoundaryTime();
}

// Returns the times of the run. Times that the run does not show are taken from |known|.
PipelineTimes times_of(const MeasuredRun& run, const std::optional<PipelineTimes>& known) {
  PipelineTimes times;
  times.stages = run.stages;
  if (known) times.overlap_ppm = known->overlap_ppm;
  if (run.overlap_ppm) times.overlap_ppm = *run.overlap_ppm;
  const auto boundaries = [&](const std::vector<BoundaryTime>& given) {
    std::vector<BoundaryTime> all;
    for (uint32_t stage = 0; stage < run.transfer_ns.size(); ++stage) {
      BoundaryTime& own = all.emplace_back(known_boundary(given, stage));
      if (!run.transfer_ns[stage]) continue;
      // The run does not show for which part of the transfer the link was busy.
      own.busy_ns = std::min(own.busy_ns, *run.transfer_ns[stage]);
      own.latency_ns = *run.transfer_ns[stage] - own.busy_ns;
    }
    return all;
  };
  times.forward = boundaries(known ? known->forward : std::vector<BoundaryTime>());
  times.backward = boundaries(known ? known->backward : std::vector<BoundaryTime>());
  return times;
}

// Collects the times that differ.
class Comparison {
 public:
  explicit Comparison(uint64_t longest_ns) : longest_ns_(static_cast<double>(longest_ns)) {}

  void add(std::string what, uint64_t from_ns, uint64_t to_ns) {
    const auto from = static_cast<double>(from_ns);
    const auto difference = std::abs(static_cast<double>(to_ns) - from);
    if (difference <= kMoved * from || difference <= kSlight * longest_ns_) return;
    moved_.push_back({std::move(what), from_ns, to_ns});
  }
  std::vector<MovedTime> take() && { return std::move(moved_); }

 private:
  const double longest_ns_;
  std::vector<MovedTime> moved_;
};

std::vector<MovedTime> moved_times(const PipelineTimes& known, const MeasuredRun& run,
                                   const Schedule& schedule) {
  Comparison comparison(longest_stage_ns(run.stages));
  for (uint32_t stage = 0; stage < run.stages.size(); ++stage) {
    const StageTime& now = run.stages[stage];
    const StageTime& then = known.stages[stage];
    const auto add = [&](const char* what, uint64_t from_ns, uint64_t to_ns) {
      comparison.add(fmt::format("{} of stage {}", what, stage), from_ns, to_ns);
    };
    add("forward", then.forward_ns, now.forward_ns);
    if (run.is_split[stage]) {
      add("gradient of the input", then.input_grad_ns, now.input_grad_ns);
      add("gradient of the weights", then.weight_grad_ns, now.weight_grad_ns);
    } else {
      add("backward", then.backward_ns, now.backward_ns);
    }
  }
  for (uint32_t stage = 0; stage < run.transfer_ns.size(); ++stage) {
    if (!schedule.crosses(stage) || !run.transfer_ns[stage]) continue;
    const uint64_t then_ns = std::max(way_ns(known_boundary(known.forward, stage)),
                                      way_ns(known_boundary(known.backward, stage)));
    comparison.add(fmt::format("transfer between stages {} and {}", stage, stage + 1), then_ns,
                   *run.transfer_ns[stage]);
  }
  return std::move(comparison).take();
}

std::vector<uint32_t> stages_with(const Schedule& schedule, Kind kind) {
  std::vector<uint32_t> stages;
  for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
    if (has_action(schedule, kind, stage)) stages.push_back(stage);
  }
  return stages;
}

bool splits_backward(const Schedule& schedule) {
  return !stages_with(schedule, Kind::kWeightGrad).empty();
}

bool has_backward(const Schedule& schedule) {
  return splits_backward(schedule) || !stages_with(schedule, Kind::kBackward).empty();
}

// Finds schedules that assign stages to ranks in the same way as the one that ran.
class Search {
 public:
  Search(const Schedule& ran, const PipelineTimes& times, const CheckOptions& check,
         const std::vector<uint64_t>& stage_limits, bool may_split)
      : ran_(ran),
        times_(times),
        check_(check),
        stage_limits_(stage_limits),
        may_split_(may_split || splits_backward(ran)),
        trains_(has_backward(ran)),
        recomputed_(stages_with(ran, Kind::kRecompute)) {}

  std::vector<Candidate> all() {
    std::vector<Candidate> found;
    // A forward-only schedule has only one order.
    if (!trains_ || ran_.stages() % ran_.ranks() != 0) return found;
    for (const std::string& name : schedule_names()) {
      if (std::optional<Candidate> candidate = look_at_named(name); candidate) {
        found.push_back(*std::move(candidate));
      }
    }
    // Candidates with equal times are sorted by memory.
    std::stable_sort(found.begin(), found.end(), [](const Candidate& one, const Candidate& other) {
      const auto key = [](const Candidate& each) {
        return std::pair(each.total_ns, *std::max_element(each.peaks.begin(), each.peaks.end()));
      };
      return key(one) < key(other);
    });
    // Leaves out an arranged order unless it is clearly faster, since a known order is easier to
    // follow.
    if (std::optional<Candidate> own = look_at_arranged();
        own && (found.empty() || static_cast<double>(own->total_ns) <
                                     (1 - kGain) * static_cast<double>(found.front().total_ns))) {
      found.insert(found.begin(), *std::move(own));
    }
    return found;
  }

 private:
  // Returns nullopt if the schedule does not match the stages, exceeds the limits, was already
  // found, or splits backward steps although it may not.
  std::optional<Candidate> look_at_named(const std::string& name) {
    ScheduleParameters parameters = parameters_of(name);
    ScheduleParameters whole = parameters;
    whole.ranks = ran_.ranks();
    whole.chunks = ran_.stages() / ran_.ranks();
    whole.micro_batches = ran_.micro_batches;
    Result<NamedSchedule> named = make_schedule(name, whole);
    if (!named.ok() || named->schedule.rank_of != ran_.rank_of) return std::nullopt;
    const Schedule& schedule = named->schedule;
    if (!has_backward(schedule)) return std::nullopt;
    if (splits_backward(schedule) && !may_split_) return std::nullopt;
    if (stages_with(schedule, Kind::kRecompute) != recomputed_) return std::nullopt;
    // With one stage on each rank, some schedules have two names.
    if (std::find(known_.begin(), known_.end(), schedule) != known_.end()) return std::nullopt;
    known_.push_back(schedule);
    std::optional<Candidate> candidate = candidate_of(std::move(named->schedule));
    if (!candidate) return candidate;
    candidate->name = name;
    candidate->parameters = std::move(parameters);
    return candidate;
  }

  // Searches for a new order within the limits.
  std::optional<Candidate> look_at_arranged() {
    // arrange() does not support limits for stages.
    const bool is_free = std::all_of(stage_limits_.begin(), stage_limits_.end(),
                                     [](uint64_t each) { return each == 0; });
    const uint64_t steps = uint64_t{ran_.stages()} * ran_.micro_batches;
    if (!is_free || steps > kMaxArranged) return std::nullopt;
    ArrangeProblem problem{.micro_batches = ran_.micro_batches,
                           .rank_of = ran_.rank_of,
                           .times = times_,
                           .memory = check_.memory,
                           .limits = check_.limits,
                           .in_flight = {},
                           .splits_backward = may_split_,
                           .recomputes = {}};
    if (!recomputed_.empty()) problem.recomputes.resize(ran_.stages());
    for (const uint32_t stage : recomputed_) problem.recomputes[stage] = true;
    const Result<Schedule> schedule = arrange(problem, {.effort = kArrangeEffort});
    if (!schedule.ok()) return std::nullopt;
    if (std::find(known_.begin(), known_.end(), schedule.value()) != known_.end()) {
      return std::nullopt;
    }
    std::optional<Candidate> candidate = candidate_of(schedule.value());
    if (!candidate) return candidate;
    candidate->name = "arranged";
    candidate->actions = schedule.value().actions;
    return candidate;
  }

  // Returns nullopt if |schedule| exceeds the limits.
  std::optional<Candidate> candidate_of(Schedule schedule) const {
    if (!fits(schedule)) return std::nullopt;
    ScheduleQuestion question;
    question.schedule = std::move(schedule);
    question.times = times_;
    question.check = check_;
    question.check.in_flight.clear();
    Result<Outlook> outlook = look_at(std::move(question));
    if (!outlook.ok()) return std::nullopt;
    return Candidate{.name = {},
                     .parameters = {},
                     .actions = {},
                     .total_ns = outlook->forecast.total_ns,
                     .peaks = std::move(outlook->peaks),
                     .in_flight = std::move(outlook->in_flight)};
  }

  // Returns whether every stage is within its limit.
  bool fits(const Schedule& schedule) const {
    if (stage_limits_.empty()) return true;
    const LivePeaks peaks = count_live(schedule);
    for (size_t stage = 0; stage < stage_limits_.size(); ++stage) {
      if (stage_limits_[stage] != 0 && peaks.stages[stage] > stage_limits_[stage]) return false;
    }
    return true;
  }

  // Returns the parameters in the form that a plan contains.
  ScheduleParameters parameters_of(const std::string& name) const {
    ScheduleParameters parameters;
    if (name == "four-phase") parameters.recomputed_stages = recomputed_;
    if (name != "virtual-1f1b" && name != "h-1f1b") return parameters;
    std::vector<BoundaryTime> slower;
    for (uint32_t stage = 0; stage + 1 < ran_.stages(); ++stage) {
      const BoundaryTime there = known_boundary(times_.forward, stage);
      const BoundaryTime back = known_boundary(times_.backward, stage);
      slower.push_back({.busy_ns = std::max(there.busy_ns, back.busy_ns),
                        .latency_ns = std::max(there.latency_ns, back.latency_ns)});
    }
    if (name == "h-1f1b") {
      for (const StageTime& each : times_.stages) parameters.stage_ns.push_back(whole_ns(each));
      parameters.boundaries = std::move(slower);
      return parameters;
    }
    const double slight = kSlight * static_cast<double>(longest_stage_ns(times_.stages));
    for (uint32_t stage = 0; stage < slower.size(); ++stage) {
      if (static_cast<double>(way_ns(slower[stage])) > slight) {
        parameters.slow_boundaries.push_back(stage);
      }
    }
    return parameters;
  }

  const Schedule& ran_;
  const PipelineTimes& times_;
  const CheckOptions& check_;
  const std::vector<uint64_t>& stage_limits_;
  const bool may_split_;
  const bool trains_;
  const std::vector<uint32_t> recomputed_;
  std::vector<Schedule> known_;
};

double ratio_of(uint64_t one, uint64_t other) {
  return static_cast<double>(one) / static_cast<double>(std::max<uint64_t>(other, 1));
}

std::string ms(uint64_t ns) { return fmt::format("{:.3f}", static_cast<double>(ns) / 1e6); }

OrderedJson json_of(const StageTime& stage) {
  return {{"forward_ns", stage.forward_ns},
          {"backward_ns", stage.backward_ns},
          {"input_grad_ns", stage.input_grad_ns},
          {"weight_grad_ns", stage.weight_grad_ns},
          {"recompute_ns", stage.recompute_ns}};
}

// Fails if the schedule is not sound. A run can be measured only if every stage performs each step
// exactly once for each micro-batch.
Status check_sound(const Schedule& schedule) {
  HETCOMM_RETURN_IF_ERROR(check_size(schedule));
  if (schedule.stages() == 0) return invalid("the schedule has no stage");
  return check_unlimited(schedule);
}

Status check_stage_limits(const ScheduleQuestion& question) {
  const size_t given = question.stage_limits.size();
  if (given == 0 || given == question.schedule.stages()) return {};
  return invalid(fmt::format("stage_limits of {} stages for a schedule of {}", given,
                             question.schedule.stages()));
}

// Returns by which percentage the run took longer than |of_ns|, or "" if |of_ns| is 0.
std::string longer(const RunView& view, uint64_t of_ns) {
  if (of_ns == 0) return {};
  return fmt::format(" ({:+.1f} %)", 100.0 * (ratio_of(view.run.total_ns, of_ns) - 1));
}

std::string stages_text(const MeasuredRun& run) {
  std::string text = fmt::format("{:>6} {:>14} {:>14} {:>14} {:>14}\n", "stage", "forward[ms]",
                                 "backward[ms]", "of that W[ms]", "to next[ms]");
  for (uint32_t stage = 0; stage < run.stages.size(); ++stage) {
    const StageTime& time = run.stages[stage];
    const bool has_next = stage < run.transfer_ns.size();
    text += fmt::format("{:>6} {:>14} {:>14} {:>14} {:>14}\n", stage, ms(time.forward_ns),
                        ms(time.backward_ns), run.is_split[stage] ? ms(time.weight_grad_ns) : "-",
                        !has_next                ? ""
                        : run.transfer_ns[stage] ? ms(*run.transfer_ns[stage])
                                                 : "hidden");
  }
  return text;
}

}  // namespace

Result<RunView> look_at_run(ScheduleQuestion question) {
  HETCOMM_RETURN_IF_ERROR(check_sound(question.schedule));
  HETCOMM_RETURN_IF_ERROR(check_stage_limits(question));
  if (question.times) HETCOMM_RETURN_IF_ERROR(check_times(question.schedule, *question.times));
  Result<MeasuredRun> run = measure(question.schedule, question.traces);
  if (!run.ok()) return run.status();
  RunView view;
  view.run = std::move(run).value();
  view.had_times = question.times.has_value();
  if (view.had_times) view.moved = moved_times(*question.times, view.run, question.schedule);
  question.times = times_of(view.run, question.times);
  const bool may_split = question.may_split;
  CheckOptions check = question.check;
  const std::vector<uint64_t> stage_limits = question.stage_limits;
  question.check.limits.clear();  // the schedule has already run, so limits do not apply to it
  Result<Outlook> outlook = look_at(std::move(question));
  if (!outlook.ok()) return outlook.status();
  view.outlook = std::move(outlook).value();
  Result<Forecast> replayed = simulate(view.outlook.schedule, view.outlook.times,
                                       {.in_flight = check.in_flight, .lengths = view.run.lengths});
  if (!replayed.ok()) return replayed.status().annotate("traces");
  view.replayed_ns = replayed->total_ns;
  view.may_split = may_split;
  if (check.limits.empty()) {
    const std::vector<int64_t>& peaks = view.outlook.peaks;
    check.limits.assign(peaks.size(), *std::max_element(peaks.begin(), peaks.end()));
  }
  view.limit = *std::max_element(check.limits.begin(), check.limits.end());
  view.candidates =
      Search(view.outlook.schedule, view.outlook.times, check, stage_limits, may_split).all();
  if (view.candidates.empty() || (view.had_times && view.moved.empty())) return view;
  const auto now = static_cast<double>(view.outlook.forecast.total_ns);
  view.proposes = static_cast<double>(view.candidates.front().total_ns) < (1 - kGain) * now;
  return view;
}

std::string to_text(const RunView& view) {
  const uint64_t forecast_ns = view.outlook.forecast.total_ns;
  std::string text = fmt::format(
      "the run took {} ms; by the median times of its steps it would take {} ms{}, and with each "
      "step as long as it was {} ms{}\n",
      ms(view.run.total_ns), ms(forecast_ns), longer(view, forecast_ns), ms(view.replayed_ns),
      longer(view, view.replayed_ns));
  text += stages_text(view.run) + "\n" + to_text(view.outlook) + "\n";
  for (const MovedTime& each : view.moved) {
    text += fmt::format("{} was {} ms, and is {} ms now\n", each.what, ms(each.from_ns),
                        ms(each.to_ns));
  }
  if (view.had_times && view.moved.empty()) {
    text += "no time is more than 10 % away from what was known\n";
  }
  if (!view.candidates.empty()) {
    text += fmt::format(
        "schedules that keep at most {} on a rank, backward steps {}, forecast like the run:\n",
        view.limit, view.may_split ? "in two parts too" : "as they are");
    text += fmt::format("{:<18} {:>14} {:>10}  {}\n", "schedule", "iteration[ms]", "of now",
                        "peak memory");
    for (const Candidate& each : view.candidates) {
      text += fmt::format("{:<18} {:>14} {:>10.3f}  {}\n", each.name, ms(each.total_ns),
                          ratio_of(each.total_ns, forecast_ns), fmt::join(each.peaks, " "));
    }
  }
  text += view.proposes ? fmt::format("proposed: {}\n", view.candidates.front().name)
                        : std::string("proposed: none; keep the schedule\n");
  return text;
}

std::string to_json(const RunView& view) {
  OrderedJson json = OrderedJson::parse(to_json(view.outlook));
  OrderedJson& run = json["run"];
  run["total_ns"] = view.run.total_ns;
  run["replayed_ns"] = view.replayed_ns;
  for (const StageTime& each : view.run.stages) run["stages"].push_back(json_of(each));
  run["transfer_ns"] = OrderedJson::array();
  for (const std::optional<uint64_t>& each : view.run.transfer_ns) {
    run["transfer_ns"].push_back(each ? OrderedJson(*each) : OrderedJson());
  }
  json["moved"] = OrderedJson::array();
  for (const MovedTime& each : view.moved) {
    json["moved"].push_back(
        {{"what", each.what}, {"from_ns", each.from_ns}, {"to_ns", each.to_ns}});
  }
  json["candidates"] = OrderedJson::array();
  for (const Candidate& each : view.candidates) {
    json["candidates"].push_back({{"name", each.name},
                                  {"parameters", OrderedJson(pipeline::json_of(each.parameters))},
                                  {"total_ns", each.total_ns},
                                  {"peaks", each.peaks},
                                  {"in_flight", each.in_flight}});
  }
  json["proposal"] = OrderedJson();
  if (view.proposes) {
    const Candidate& best = view.candidates.front();
    // Proposes one more than the simulation needs, because real transfer times vary.
    std::vector<uint32_t> in_flight = best.in_flight;
    for (uint32_t& each : in_flight) ++each;
    OrderedJson schedule;
    if (best.actions.empty()) {
      schedule = {{"name", best.name},
                  {"parameters", OrderedJson(pipeline::json_of(best.parameters))}};
    } else {
      for (const std::vector<Action>& each : best.actions) {
        schedule["actions"].push_back(OrderedJson(cells_of(each)));
      }
    }
    json["proposal"] = {{"schedule", std::move(schedule)}, {"in_flight", in_flight}};
  }
  return json.dump(1) + "\n";
}

Result<std::string> to_svg(const RunView& view) { return to_svg(view.outlook, view.run); }

}  // namespace hetcomm::pipeline
