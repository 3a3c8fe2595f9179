#include "pipeline/arrange/list_schedule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "pipeline/simulate/step_time.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;
constexpr uint64_t kNever = UINT64_MAX;

class ListScheduler {
 public:
  ListScheduler(const ArrangeProblem& problem, const ListRule& rule)
      : problem_(problem),
        rule_(rule),
        schedule_{.micro_batches = problem.micro_batches,
                  .rank_of = problem.rank_of,
                  .actions = std::vector<std::vector<Action>>(problem.ranks())},
        stages_(problem.stages()),
        ranks_(problem.ranks()),
        stages_of_(stages_by_rank(schedule_)) {
    for (Stage& each : stages_) {
      each.input_ns.assign(problem.micro_batches, kNever);
      each.grad_ns.assign(problem.micro_batches, kNever);
    }
    stages_.front().input_ns.assign(problem.micro_batches, 0);
    reserves_.resize(stages_.size());
    for (const std::vector<uint32_t>& own : stages_of_) fill_reserves(own);
    const size_t steps = problem.splits_backward ? 3 : 2;
    left_ = steps * stages_.size() * problem.micro_batches;
  }

  std::optional<Schedule> run() {
    choices_.resize(ranks_.size());
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) renew(rank);
    while (left_ > 0) {
      if (order_.empty()) return std::nullopt;
      const Choice first = choices_[order_.begin()->second];
      perform(first);
      renew(problem_.rank_of[first.stage]);
      if (first.stage > 0) renew(problem_.rank_of[first.stage - 1]);
      if (first.stage + 1 < stages_.size()) renew(problem_.rank_of[first.stage + 1]);
    }
    return schedule_;
  }

 private:
  struct Stage {
    uint32_t forwards = 0;
    uint32_t backwards = 0;
    uint32_t weights = 0;
    std::vector<uint64_t> input_ns;  // indexed by micro-batch: arrival of the input
    std::vector<uint64_t> grad_ns;   // indexed by micro-batch: arrival of the output's gradient
    uint64_t forward_free_ns = 0;    // when the link to the next stage is free
    uint64_t backward_free_ns = 0;   // when the link to the previous stage is free
  };
  struct Rank {
    uint64_t free_ns = 0;
    int64_t held = 0;
  };
  struct Choice {
    uint64_t start_ns = kNever;
    Kind kind = Kind::kBubble;
    uint32_t stage = 0;
  };

  // Updates the choice of |rank|.
  void renew(uint32_t rank) {
    Choice& own = choices_[rank];
    if (own.start_ns != kNever) order_.erase({own.start_ns, rank});
    own = choose(rank);
    if (own.start_ns != kNever) order_.insert({own.start_ns, rank});
  }

  // Sets the reserves of the stages |own| of a rank. The reserve of a stage is the memory that its
  // forward step and the forward steps of the rank's later stages need until a backward step can
  // run.
  void fill_reserves(const std::vector<uint32_t>& own) {
    int64_t after = 0;  // memory that the later stages need
    for (size_t i = own.size(); i-- > 0;) {
      const StepMemory memory = problem_.memory_of(own[i]);
      const int64_t recompute = problem_.has_recompute(own[i]) ? memory.recompute : 0;
      after = memory.forward + std::max(recompute, after);
      reserves_[own[i]] = after;
    }
  }

  static void take_earlier(Choice& best, const Choice& other) {
    if (other.start_ns < best.start_ns) best = other;
  }

  // Returns the step that |rank| runs next, and its earliest start.
  Choice choose(uint32_t rank) const {
    Choice forward;
    Choice backward;
    Choice weight;
    bool is_warming = false;
    bool lacks_memory = false;
    for (const uint32_t stage : stages_of_[rank]) {
      const Stage& own = stages_[stage];
      const Choice next = forward_step(rank, stage);
      const bool is_there = own.forwards < problem_.micro_batches &&
                            own.input_ns[own.forwards] <= ranks_[rank].free_ns;
      lacks_memory = lacks_memory || (is_there && next.start_ns == kNever);
      take_earlier(forward, next);
      if (forward.stage == stage) is_warming = own.forwards - own.backwards < rule_.warmups[stage];
      take_earlier(backward, backward_step(rank, stage));
      if (own.weights < own.backwards && weight.start_ns == kNever) {
        weight = {ranks_[rank].free_ns, Kind::kWeightGrad, stage};
      }
    }
    Choice best = is_warming ? forward : backward;
    take_earlier(best, is_warming ? backward : forward);
    return takes_weight(weight, best, lacks_memory) ? weight : best;
  }

  Choice forward_step(uint32_t rank, uint32_t stage) const {
    const Stage& own = stages_[stage];
    if (own.forwards == problem_.micro_batches || own.input_ns[own.forwards] == kNever) return {};
    if (ranks_[rank].held + reserves_[stage] > problem_.limits[rank]) return {};
    return {std::max(ranks_[rank].free_ns, own.input_ns[own.forwards]), Kind::kForward, stage};
  }

  Choice backward_step(uint32_t rank, uint32_t stage) const {
    const Stage& own = stages_[stage];
    if (own.backwards == own.forwards || own.grad_ns[own.backwards] == kNever) return {};
    const StepMemory memory = problem_.memory_of(stage);
    if (problem_.has_recompute(stage) &&
        ranks_[rank].held + memory.recompute > problem_.limits[rank]) {
      return {};
    }
    const Kind kind = problem_.splits_backward ? Kind::kInputGrad : Kind::kBackward;
    return {std::max(ranks_[rank].free_ns, own.grad_ns[own.backwards]), kind, stage};
  }

  bool takes_weight(const Choice& weight, const Choice& best, bool lacks_memory) const {
    if (weight.start_ns == kNever) return false;
    if (best.start_ns == kNever) return true;
    const uint64_t length_ns = problem_.times.stages[weight.stage].weight_grad_ns;
    switch (rule_.weight) {
      case WeightRule::kFillsGaps:
        return best.start_ns >= weight.start_ns + length_ns;
      case WeightRule::kFillsHalves:
        return best.start_ns > weight.start_ns + length_ns / 2;
      case WeightRule::kFreesMemory:
        return lacks_memory || best.start_ns >= weight.start_ns + length_ns;
      default:
        return lacks_memory || best.start_ns > weight.start_ns;
    }
  }

  void perform(const Choice& choice) {
    const uint32_t rank = problem_.rank_of[choice.stage];
    Stage& own = stages_[choice.stage];
    Rank& at = ranks_[rank];
    const StepMemory memory = problem_.memory_of(choice.stage);
    at.free_ns = choice.start_ns;
    --left_;
    switch (choice.kind) {
      case Kind::kForward:
        add(rank, choice.kind, choice.stage, own.forwards);
        at.held += memory.forward;
        send_forward(choice.stage, own.forwards++, at.free_ns);
        return;
      case Kind::kWeightGrad:
        add(rank, choice.kind, choice.stage, own.weights++);
        at.held += memory.weight_grad;
        return;
      default:
        if (problem_.has_recompute(choice.stage)) {
          add(rank, Kind::kRecompute, choice.stage, own.backwards);
          at.held += memory.recompute;
        }
        add(rank, choice.kind, choice.stage, own.backwards);
        at.held += memory.input_grad;
        if (choice.kind == Kind::kBackward) at.held += memory.weight_grad;
        if (choice.kind == Kind::kBackward) ++own.weights;
        send_backward(choice.stage, own.backwards++, at.free_ns);
    }
  }

  // Appends an action, and advances the rank's time by its length.
  void add(uint32_t rank, Kind kind, uint32_t stage, uint32_t micro_batch) {
    const Action action{
        .micro_batch = micro_batch, .stage = static_cast<uint16_t>(stage), .kind = kind};
    schedule_.actions[rank].push_back(action);
    ranks_[rank].free_ns += step_ns(problem_.times.stages, action);
  }

  void send_forward(uint32_t stage, uint32_t micro_batch, uint64_t now) {
    if (stage + 1 == stages_.size()) {
      stages_[stage].grad_ns[micro_batch] = now;
      return;
    }
    stages_[stage + 1].input_ns[micro_batch] =
        arrival(stage, problem_.times.forward, now, stages_[stage].forward_free_ns);
  }
  void send_backward(uint32_t stage, uint32_t micro_batch, uint64_t now) {
    if (stage == 0) return;
    stages_[stage - 1].grad_ns[micro_batch] =
        arrival(stage - 1, problem_.times.backward, now, stages_[stage].backward_free_ns);
  }
  uint64_t arrival(uint32_t boundary, const std::vector<BoundaryTime>& times, uint64_t now,
                   uint64_t& free_ns) const {
    if (times.empty() || !schedule_.crosses(boundary)) return now;
    free_ns = std::max(free_ns, now) + times[boundary].busy_ns;
    return free_ns + times[boundary].latency_ns;
  }

  const ArrangeProblem& problem_;
  const ListRule& rule_;
  Schedule schedule_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
  const std::vector<std::vector<uint32_t>> stages_of_;  // indexed by rank
  std::vector<int64_t> reserves_;                       // indexed by stage
  size_t left_ = 0;                                     // steps that are not scheduled yet
  std::vector<Choice> choices_;                         // indexed by rank
  std::set<std::pair<uint64_t, uint32_t>> order_;       // ranks with a choice, ordered by start
};

}  // namespace

std::optional<Schedule> list_schedule(const ArrangeProblem& problem, const ListRule& rule) {
  return ListScheduler(problem, rule).run();
}

}  // namespace hetcomm::pipeline
