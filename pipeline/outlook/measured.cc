#include "pipeline/outlook/measured.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/text.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

constexpr uint64_t kMaxTraceNs = uint64_t{1} << 46;  // 19 hours; sums over stages do not overflow
constexpr size_t kMaxTracedSteps = size_t{1} << 26;
constexpr uint32_t kMaxTraceRanks = 1u << 20;

uint64_t median(std::vector<uint64_t>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool is_computed(const Action& action) { return is_computation(action.kind); }

Status check_groups(uint32_t ranks, const std::vector<RankTrace>& traces) {
  for (const RankTrace& each : traces) {
    const RankTrace& first = traces.front();
    if (each.pipeline != first.pipeline) {
      return invalid(fmt::format("traces: rank {} is of pipeline {}, and rank {} of {}", each.rank,
                                 each.pipeline, first.rank, first.pipeline));
    }
    if (each.training_step != first.training_step) {
      return invalid(
          fmt::format("traces: rank {} tells of step {} of the training, and rank {} of {}",
                      each.rank, each.training_step, first.rank, first.training_step));
    }
  }
  std::vector<bool> has_trace(ranks);
  for (const RankTrace& each : traces) {
    if (each.group >= ranks) {
      return invalid(fmt::format("traces: rank {} is of group {}, and the schedule has {} ranks",
                                 each.rank, each.group, ranks));
    }
    has_trace[each.group] = true;
  }
  for (uint32_t group = 0; group < ranks; ++group) {
    if (!has_trace[group]) {
      return invalid(fmt::format("traces: there is none of the schedule's rank {}", group));
    }
  }
  return {};
}

// The times of the steps of one stage, indexed by kind.
using StepTimes = std::array<std::vector<uint64_t>, 5>;
static_assert(static_cast<int>(Kind::kRecompute) == 4);

uint64_t length(const Span& span) { return span.end_ns - span.start_ns; }

// Two steps that one callback performed. |ns| is the time of the pair.
struct TracedPair {
  Action first;
  Action second;
  uint64_t ns = 0;
};

// The measured times of the steps of one rank.
class Samples {
 public:
  explicit Samples(uint32_t stages) : times_(stages) {}

  void add(const Action& action, uint64_t ns) { of(action).push_back(ns); }
  void add(const TracedPair& pair) { pairs_.push_back(pair); }

  // If a kind of step occurred only in pairs, assigns it half of the time of each pair.
  void share_pairs() {
    std::vector<std::pair<const Action*, uint64_t>> shares;
    for (const TracedPair& each : pairs_) {
      for (const Action* action : {&each.first, &each.second}) {
        if (of(*action).empty()) shares.emplace_back(action, each.ns / 2);
      }
    }
    for (const auto& [action, ns] : shares) add(*action, ns);
  }

  // Returns the fraction of the shorter step of a pair that was hidden, in millionths, or nullopt
  // without pairs.
  std::optional<uint32_t> overlap_ppm() {
    constexpr uint64_t kMillion = 1'000'000;
    std::vector<uint64_t> hidden;
    for (const TracedPair& each : pairs_) {
      const uint64_t one = median(of(each.first));
      const uint64_t other = median(of(each.second));
      const uint64_t shorter = std::min(one, other);
      const uint64_t saved = one + other - std::min(one + other, each.ns);
      if (shorter > 0) hidden.push_back(std::min(saved, shorter) * kMillion / shorter);
    }
    if (hidden.empty()) return std::nullopt;
    return static_cast<uint32_t>(median(hidden));
  }

  StepTimes& of_stage(uint32_t stage) { return times_[stage]; }

 private:
  std::vector<uint64_t>& of(const Action& action) {
    return times_[action.stage][static_cast<size_t>(action.kind)];
  }

  std::vector<StepTimes> times_;
  std::vector<TracedPair> pairs_;
};

// Returns the times of the steps of a stage. Times for kinds that the schedule lacks are derived
// from the others. Sets |is_split| to whether the stage has W steps.
StageTime stage_time(StepTimes& times, bool& is_split) {
  const auto of = [&](Kind kind) {
    std::vector<uint64_t>& own = times[static_cast<size_t>(kind)];
    return own.empty() ? uint64_t{0} : median(own);
  };
  StageTime time{.forward_ns = of(Kind::kForward),
                 .backward_ns = of(Kind::kBackward),
                 .input_grad_ns = of(Kind::kInputGrad),
                 .weight_grad_ns = of(Kind::kWeightGrad),
                 .recompute_ns = of(Kind::kRecompute)};
  is_split = !times[static_cast<size_t>(Kind::kWeightGrad)].empty();
  if (time.recompute_ns == 0) time.recompute_ns = time.forward_ns;
  if (is_split) {
    const uint64_t parts_ns = time.input_grad_ns + time.weight_grad_ns;
    time.backward_ns = std::max(time.backward_ns, parts_ns);
  } else {
    time.weight_grad_ns = time.backward_ns / 2;
    time.input_grad_ns = time.backward_ns - time.weight_grad_ns;
  }
  return time;
}

StageTime longest(const StageTime& one, const StageTime& other) {
  return {.forward_ns = std::max(one.forward_ns, other.forward_ns),
          .backward_ns = std::max(one.backward_ns, other.backward_ns),
          .input_grad_ns = std::max(one.input_grad_ns, other.input_grad_ns),
          .weight_grad_ns = std::max(one.weight_grad_ns, other.weight_grad_ns),
          .recompute_ns = std::max(one.recompute_ns, other.recompute_ns)};
}

// Passages records the steps that produced and consumed the items of each boundary, on the clocks
// of their ranks.
class Passages {
 public:
  explicit Passages(const Schedule& schedule)
      : schedule_(schedule), forward_(size(schedule)), backward_(size(schedule)) {}

  void add(const TracedStep& step) {
    if (step.action.kind == Kind::kForward) forward_[at(step.action)] = step;
    if (gives_input_grad(step.action.kind)) backward_[at(step.action)] = step;
  }

  // Returns the shortest time from the end of a step of |stage| to the start of the step of |next|
  // that waited for its data, or nullopt if none waited.
  std::optional<int64_t> shortest(uint32_t stage, uint32_t next, bool is_backward) const {
    const std::vector<TracedStep>& steps = is_backward ? backward_ : forward_;
    std::optional<int64_t> best;
    for (uint32_t i = 0; i < schedule_.micro_batches; ++i) {
      const TracedStep& made = steps[size_t{stage} * schedule_.micro_batches + i];
      const TracedStep& took = steps[size_t{next} * schedule_.micro_batches + i];
      if (!took.waited_for_data || made.span.end_ns == 0) continue;
      const int64_t ns =
          static_cast<int64_t>(took.span.start_ns) - static_cast<int64_t>(made.span.end_ns);
      best = best ? std::min(*best, ns) : ns;
    }
    return best;
  }

 private:
  static size_t size(const Schedule& schedule) {
    return size_t{schedule.stages()} * schedule.micro_batches;
  }
  size_t at(const Action& action) const {
    return size_t{action.stage} * schedule_.micro_batches + action.micro_batch;
  }

  const Schedule& schedule_;
  std::vector<TracedStep> forward_;  // indexed by stage and micro-batch
  std::vector<TracedStep> backward_;
};

// Measures the boundaries, and converts all spans to a common clock.
void measure_boundaries(const Schedule& schedule, const Passages& passages, MeasuredRun& run) {
  std::vector<std::optional<int64_t>> clocks(schedule.ranks());  // offset to add to a rank's times
  if (schedule.stages() > 0) clocks[schedule.rank_of[0]] = 0;
  for (uint32_t stage = 0; stage + 1 < schedule.stages(); ++stage) {
    std::optional<uint64_t>& transfer_ns = run.transfer_ns.emplace_back();
    int64_t apart_ns = 0;
    if (schedule.crosses(stage)) {
      const std::optional<int64_t> there = passages.shortest(stage, stage + 1, false);
      const std::optional<int64_t> back = passages.shortest(stage + 1, stage, true);
      if (there && back) {
        transfer_ns = static_cast<uint64_t>(std::max<int64_t>((*there + *back) / 2, 0));
        apart_ns = (*there - *back) / 2;
      }
    }
    std::optional<int64_t>& next = clocks[schedule.rank_of[stage + 1]];
    if (!next) next = *clocks[schedule.rank_of[stage]] - apart_ns;
  }
  int64_t first = 0;
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    first = std::min(first, clocks[rank].value_or(0));
  }
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    const auto later = static_cast<uint64_t>(clocks[rank].value_or(0) - first);
    for (size_t i = 0; i < run.spans[rank].size(); ++i) {
      if (!is_computed(schedule.actions[rank][i])) continue;
      Span& span = run.spans[rank][i];
      span = {span.start_ns + later, span.end_ns + later};
    }
  }
}

// Returns the step of |trace| for each of |actions|, and an empty step for actions that are not
// computations.
Result<std::vector<TracedStep>> match(const RankTrace& trace, const std::vector<Action>& actions) {
  std::vector<TracedStep> steps;
  auto next = trace.steps.begin();
  for (Action wanted : actions) {
    TracedStep& step = steps.emplace_back();
    if (!is_computed(wanted)) continue;
    wanted.overlaps_next = false;
    while (next != trace.steps.end() && !is_computed(next->action)) ++next;
    if (next == trace.steps.end() || next->action != wanted) {
      return invalid(fmt::format(
          "traces: rank {} performed {} where the schedule has {}", trace.rank,
          next == trace.steps.end() ? "nothing" : to_text(next->action), to_text(wanted)));
    }
    step = *next;
    ++next;
  }
  return steps;
}

// Returns whether one callback performed both steps of the pair that begins with action |at|.
bool is_joint(const std::vector<Action>& actions, const std::vector<TracedStep>& steps, size_t at) {
  return actions[at].overlaps_next && steps[at].span == steps[at + 1].span;
}

// Adds the times of one rank's steps to |samples|.
void sample(const std::vector<Action>& actions, const std::vector<TracedStep>& steps,
            Samples& samples) {
  for (size_t i = 0; i < actions.size(); ++i) {
    if (!is_computed(actions[i])) continue;
    if (is_joint(actions, steps, i)) {
      samples.add({actions[i], actions[i + 1], length(steps[i].span)});
      ++i;
    } else {
      samples.add(actions[i], length(steps[i].span));
    }
  }
  samples.share_pairs();
}

// Raises the |lengths| of a group's steps to at least the times of one of its ranks.
void lengthen(const std::vector<Action>& actions, const std::vector<TracedStep>& steps,
              std::vector<uint64_t>& lengths) {
  lengths.resize(actions.size());
  for (size_t i = 0; i < actions.size(); ++i) {
    uint64_t taken_ns = length(steps[i].span);
    const size_t first = i;
    if (actions[i].overlaps_next) {
      ++i;
      if (!is_joint(actions, steps, first)) taken_ns += length(steps[i].span);
    }
    lengths[first] = std::max(lengths[first], taken_ns);
  }
}

}  // namespace

RankTrace read_trace(present::Fields fields) {
  RankTrace trace;
  if (fields.text("format") != "hetcomm pipeline trace") fields.fail("format", "is of no trace");
  if (fields.number("version", UINT32_MAX) != 1) fields.fail("version", "is not 1");
  if (fields.flag("evaluation")) fields.fail("evaluation", "is true: there are forward steps only");
  trace.training_step = fields.number("training_step", UINT64_MAX);
  trace.pipeline = static_cast<uint32_t>(fields.number("pipeline", kMaxTraceRanks));
  trace.rank = static_cast<uint32_t>(fields.number("rank", kMaxTraceRanks));
  trace.group = static_cast<uint32_t>(fields.number("group", kMaxTraceRanks));
  trace.total_ns = fields.number("total_ns", kMaxTraceNs);
  fields.each(
      "steps",
      [&](const present::Json& json, const std::string& path) {
        present::Fields step(json, path, fields.failure());
        std::vector<Action> actions;
        if (!parse_cell(step.text("action"), actions) || actions.size() != 1) {
          return step.fail("action", "is no action");
        }
        TracedStep& own = trace.steps.emplace_back();
        own.action = actions.front();
        own.span = {step.number("start_ns", kMaxTraceNs), step.number("end_ns", kMaxTraceNs)};
        own.waited_for_data = step.number("data_wait_ns", kMaxTraceNs) > 0;
        if (own.span.end_ns < own.span.start_ns) step.fail("end_ns", "is before start_ns");
      },
      kMaxTracedSteps);
  return trace;
}

Result<Schedule> schedule_of(const std::vector<RankTrace>& traces) {
  uint32_t ranks = 0;
  for (const RankTrace& each : traces) ranks = std::max(ranks, each.group + 1);
  if (ranks == 0 || ranks > kMaxStages) return invalid("traces: there is none, or too many");
  HETCOMM_RETURN_IF_ERROR(check_groups(ranks, traces));
  Schedule schedule;
  schedule.actions.resize(ranks);
  for (const RankTrace& each : traces) {
    std::vector<Action>& own = schedule.actions[each.group];
    if (!own.empty()) continue;  // already set from another rank of the group
    for (const TracedStep& step : each.steps) {
      if (is_computed(step.action)) own.push_back(step.action);
    }
  }
  HETCOMM_RETURN_IF_ERROR(complete(schedule).annotate("traces"));
  return schedule;
}

Result<MeasuredRun> measure(const Schedule& schedule, const std::vector<RankTrace>& traces) {
  HETCOMM_RETURN_IF_ERROR(check_groups(schedule.ranks(), traces));
  MeasuredRun run;
  run.stages.resize(schedule.stages());
  run.is_split.resize(schedule.stages());
  run.spans.resize(schedule.ranks());
  run.lengths.resize(schedule.ranks());
  Passages passages(schedule);
  for (const RankTrace& trace : traces) {
    const std::vector<Action>& actions = schedule.actions[trace.group];
    const Result<std::vector<TracedStep>> steps = match(trace, actions);
    if (!steps.ok()) return steps.status();
    run.total_ns = std::max(run.total_ns, trace.total_ns);
    if (run.spans[trace.group].empty()) {
      for (size_t i = 0; i < actions.size(); ++i) {
        run.spans[trace.group].push_back(steps.value()[i].span);
        if (is_computed(actions[i])) passages.add(steps.value()[i]);
      }
    }
    lengthen(actions, steps.value(), run.lengths[trace.group]);
    Samples samples(schedule.stages());
    sample(actions, steps.value(), samples);
    if (const auto overlap = samples.overlap_ppm(); overlap) {
      run.overlap_ppm = std::max(run.overlap_ppm.value_or(0), *overlap);
    }
    for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
      if (schedule.rank_of[stage] != trace.group) continue;
      bool is_split = false;
      const StageTime own = stage_time(samples.of_stage(stage), is_split);
      run.stages[stage] = longest(run.stages[stage], own);
      run.is_split[stage] = is_split;
    }
  }
  measure_boundaries(schedule, passages, run);
  return run;
}

}  // namespace hetcomm::pipeline
