#include "pipeline/arrange/arrange.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "pipeline/arrange/improve.h"
#include "pipeline/arrange/list_schedule.h"
#include "pipeline/schedule/check.h"
#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/warmups.h"
#include "pipeline/simulate/step_time.h"

namespace hetcomm::pipeline {
namespace {

// An empty |in_flight| means that any number of items may be in flight.
CheckOptions check_options(const ArrangeProblem& problem) {
  CheckOptions options{
      .in_flight = problem.in_flight, .memory = problem.memory, .limits = problem.limits};
  if (options.in_flight.empty()) options.in_flight.assign(problem.stages() - 1, kMaxMicroBatches);
  return options;
}

// Keeps the best schedule so far.
class Best {
 public:
  explicit Best(const ArrangeProblem& problem) : problem_(problem) {}

  void offer(const Schedule& schedule) {
    const uint64_t ns = time_of(problem_, schedule);
    if (ns >= ns_) return;
    ns_ = ns;
    schedule_ = schedule;
  }
  void offer(const Result<Schedule>& schedule) {
    if (!schedule.ok()) return;
    const Result<CheckResult> sound = check(schedule.value(), check_options(problem_));
    if (sound.ok()) offer(schedule.value());
  }
  bool has_one() const { return ns_ != UINT64_MAX; }
  uint64_t ns() const { return ns_; }
  const Schedule& schedule() const { return schedule_; }

 private:
  const ArrangeProblem& problem_;
  uint64_t ns_ = UINT64_MAX;
  Schedule schedule_;
};

// Offers the known schedules with one stage on each rank.
void offer_flat(const ArrangeProblem& problem, const std::vector<bool>& recomputes, Best& best) {
  const uint32_t stages = problem.stages();
  const bool recomputes_any =
      std::find(recomputes.begin(), recomputes.end(), true) != recomputes.end();
  for (const std::vector<uint32_t>& warmups : {plain_warmups(stages), eager_warmups(stages)}) {
    if (problem.splits_backward) {
      best.offer(four_phase(warmups, recomputes, problem.micro_batches));
    } else if (!recomputes_any) {
      best.offer(one_f_one_b(warmups, problem.micro_batches));
    }
  }
  if (!problem.splits_backward || recomputes_any) return;
  best.offer(zero_bubble_h1(stages, problem.micro_batches));
  best.offer(zero_bubble_h2(stages, problem.micro_batches));
}

// Offers the known schedules that have the steps of |problem| and assign stages to ranks in the
// same way.
void offer_known(const ArrangeProblem& problem, Best& best) {
  const uint32_t ranks = problem.ranks();
  const uint32_t stages = problem.stages();
  const uint32_t micro_batches = problem.micro_batches;
  const std::vector<bool> recomputes =
      problem.recomputes.empty() ? std::vector<bool>(stages) : problem.recomputes;
  const bool recomputes_any =
      std::find(recomputes.begin(), recomputes.end(), true) != recomputes.end();
  if (problem.rank_of == deal_stages(ranks, stages, StageOrder::kLoop)) {
    if (stages == ranks) return offer_flat(problem, recomputes, best);
    if (stages % ranks != 0 || recomputes_any) return;
    if (problem.splits_backward) {
      best.offer(interleaved_zero_bubble(ranks, stages / ranks, micro_batches));
    } else {
      best.offer(interleaved(ranks, stages / ranks, micro_batches));
    }
  } else if (problem.rank_of == deal_stages(ranks, stages, StageOrder::kV)) {
    if (stages != 2 * ranks || recomputes_any || !problem.splits_backward) return;
    best.offer(zero_bubble_v(ranks, micro_batches));
  }
}

// Offers the schedules that the list scheduler makes with several rules, until |effort| is used up
// and there is at least one schedule. Subtracts the steps of each schedule from |effort|.
void offer_lists(const ArrangeProblem& problem, Best& best, uint64_t& effort) {
  const uint32_t stages = problem.stages();
  const uint64_t steps = uint64_t{3} * stages * problem.micro_batches;
  std::vector<uint64_t> stage_ns;
  for (const StageTime& each : problem.times.stages) {
    stage_ns.push_back(each.forward_ns + each.backward_ns);
  }
  const std::vector<BoundaryTime> boundaries =
      problem.times.forward.empty() ? std::vector<BoundaryTime>(stages - 1) : problem.times.forward;
  const std::vector<std::vector<uint32_t>> counts = {
      plain_warmups(stages), hiding_warmups(stage_ns, boundaries, 0).counts, eager_warmups(stages),
      std::vector<uint32_t>(stages), std::vector<uint32_t>(stages, problem.micro_batches)};
  for (const WeightRule weight : {WeightRule::kFreesMemory, WeightRule::kFillsGaps,
                                  WeightRule::kFirst, WeightRule::kFillsHalves}) {
    for (const std::vector<uint32_t>& warmups : counts) {
      if (best.has_one() && effort < steps) return;
      effort -= std::min(effort, steps);
      const std::optional<Schedule> schedule =
          list_schedule(problem, {.warmups = warmups, .weight = weight});
      if (schedule) best.offer(*schedule);
    }
  }
}

// Returns a lower bound for the time of any schedule: the time of all steps on the slowest rank,
// without recomputations.
uint64_t bound_ns(const ArrangeProblem& problem) {
  const std::vector<StageTime>& times = problem.times.stages;
  std::vector<uint64_t> work(problem.ranks());
  for (uint32_t stage = 0; stage < problem.stages(); ++stage) {
    const StageTime& time = times[stage];
    const uint64_t backward =
        problem.splits_backward ? time.input_grad_ns + time.weight_grad_ns : time.backward_ns;
    work[problem.rank_of[stage]] += (time.forward_ns + backward) * problem.micro_batches;
  }
  return *std::max_element(work.begin(), work.end());
}

}  // namespace

Result<Schedule> arrange(const ArrangeProblem& problem, const ArrangeOptions& options) {
  HETCOMM_RETURN_IF_ERROR(check_problem(problem));
  Best best(problem);
  offer_known(problem, best);
  uint64_t effort = options.effort;
  offer_lists(problem, best, effort);
  if (!best.has_one()) {
    return invalid(problem.in_flight.empty() ? "no order was found within the limits"
                                             : "no order was found that goes on with so few items "
                                               "in flight");
  }
  size_t steps = 0;
  for (const std::vector<Action>& actions : best.schedule().actions) steps += actions.size();
  const ImproveOptions search{.trials = effort / std::max<size_t>(1, steps), .seed = options.seed};
  if (search.trials == 0 || best.ns() <= bound_ns(problem)) return best.schedule();
  Schedule found = improve(problem, best.schedule(), search);
  const Result<CheckResult> sound = check(found, check_options(problem));
  return sound.ok() ? Result<Schedule>(std::move(found)) : best.schedule();
}

}  // namespace hetcomm::pipeline
