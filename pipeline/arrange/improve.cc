#include "pipeline/arrange/improve.h"

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "pipeline/simulate/longest_path.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

class Improver {
 public:
  Improver(const ArrangeProblem& problem, const Schedule& schedule, const ImproveOptions& options)
      : problem_(problem), options_(options), random_(options.seed), now_(schedule) {
    now_ns_ = best_ns_ = time_of(problem, schedule);
    best_ = schedule;
  }

  Schedule run() {
    for (trial_ = 0; trial_ < options_.trials; ++trial_) try_one();
    return best_;
  }

 private:
  // The maximum number of positions by which a step moves.
  static constexpr uint32_t kReach = 8;

  void try_one() {
    std::vector<Action>& actions = now_.actions[random_() % now_.ranks()];
    if (actions.size() < 2) return;
    const size_t from = random_() % actions.size();
    const size_t distance = 1 + random_() % kReach;
    const bool is_later = random_() % 2 == 0;
    if (is_later ? from + distance >= actions.size() : from < distance) return;
    const size_t to = is_later ? from + distance : from - distance;
    if (!may_move(actions, from, to)) return;
    move(actions, from, to);
    const uint64_t ns = is_within_limit(actions) ? time_of(problem_, now_) : UINT64_MAX;
    if (ns > now_ns_ && (ns == UINT64_MAX || ns - now_ns_ > tolerance())) {
      move(actions, to, from);
      return;
    }
    now_ns_ = ns;
    if (ns >= best_ns_) return;
    best_ns_ = ns;
    best_ = now_;
  }

  static void move(std::vector<Action>& actions, size_t from, size_t to) {
    const auto at = [&](size_t index) { return actions.begin() + static_cast<ptrdiff_t>(index); };
    if (from < to) {
      std::rotate(at(from), at(from + 1), at(to + 1));
    } else {
      std::rotate(at(to), at(from), at(from + 1));
    }
  }

  // Returns how much slower a schedule may be than the one before it. The tolerance is random: each
  // greater value is half as likely as the next smaller one. It falls to 0 over the trials.
  uint64_t tolerance() {
    constexpr uint64_t kMillion = 1'000'000;
    const uint64_t start_ns = best_ns_ / 500;
    const uint64_t part_ppm = (options_.trials - trial_) * kMillion / options_.trials;
    const uint64_t falling_ns =
        start_ns / kMillion * part_ppm + start_ns % kMillion * part_ppm / kMillion;
    const auto luck = static_cast<uint64_t>(std::countr_zero(random_() | 0x10000u));
    return falling_ns / 10 * 7 * luck;
  }

  // Returns whether the action at |from| may move to |to|. It may not pass an action that depends
  // on it, or on which it depends. Steps of one kind and stage keep their order, so that transfers
  // on links stay in order.
  static bool may_move(const std::vector<Action>& actions, size_t from, size_t to) {
    const Action& moved = actions[from];
    const size_t first = std::min(from, to);
    const size_t last = std::max(from, to);
    for (size_t i = first; i <= last; ++i) {
      if (i == from) continue;
      const Action& other = actions[i];
      const bool is_later = from < to;
      if (must_precede(is_later ? moved : other, is_later ? other : moved)) return false;
    }
    return true;
  }

  static bool must_precede(const Action& one, const Action& other) {
    if (one.stage == other.stage && one.kind == other.kind) {
      return one.micro_batch < other.micro_batch;
    }
    if (one.micro_batch != other.micro_batch) return false;
    if (one.stage == other.stage) return order_of(one.kind) < order_of(other.kind);
    // Consecutive stages of one rank pass on their data without a transfer.
    if (one.kind == Kind::kForward && other.kind == Kind::kForward) {
      return one.stage + 1 == other.stage;
    }
    return gives_input_grad(one.kind) && gives_input_grad(other.kind) &&
           one.stage == other.stage + 1;
  }
  // Returns the position of a kind of step among the steps of one stage and micro-batch.
  static int order_of(Kind kind) {
    switch (kind) {
      case Kind::kForward:
        return 0;
      case Kind::kRecompute:
        return 1;
      case Kind::kWeightGrad:
        return 3;
      default:
        return 2;
    }
  }

  bool is_within_limit(const std::vector<Action>& actions) const {
    const uint32_t rank = problem_.rank_of[actions.front().stage];
    int64_t held = 0;
    for (const Action& action : actions) {
      const StepMemory memory = problem_.memory_of(action.stage);
      if (action.kind == Kind::kForward) held += memory.forward;
      if (action.kind == Kind::kRecompute) held += memory.recompute;
      if (held > problem_.limits[rank]) return false;
      if (gives_input_grad(action.kind)) held += memory.input_grad;
      if (gives_weight_grad(action.kind)) held += memory.weight_grad;
    }
    return true;
  }

  const ArrangeProblem& problem_;
  const ImproveOptions& options_;
  std::mt19937 random_;
  uint64_t trial_ = 0;
  Schedule now_;
  uint64_t now_ns_ = 0;
  Schedule best_;
  uint64_t best_ns_ = 0;
};

}  // namespace

Schedule improve(const ArrangeProblem& problem, const Schedule& schedule,
                 const ImproveOptions& options) {
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) {
      if (!is_computation(action.kind) || action.overlaps_next) return schedule;
    }
  }
  return Improver(problem, schedule, options).run();
}

uint64_t time_of(const ArrangeProblem& problem, const Schedule& schedule) {
  const Result<Forecast> forecast =
      simulate(schedule, problem.times, {.in_flight = problem.in_flight, .keeps_spans = false});
  return forecast.ok() ? forecast.value().total_ns : UINT64_MAX;
}

}  // namespace hetcomm::pipeline
