#include "pipeline/schedule/check.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/text.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

Action action_of(Kind kind, uint32_t stage, uint32_t micro_batch) {
  return {.micro_batch = micro_batch, .stage = static_cast<uint16_t>(stage), .kind = kind};
}

// Steps stores one bit for each kind of action of a stage and a micro-batch.
class Steps {
 public:
  explicit Steps(const Schedule& schedule)
      : micro_batches_(schedule.micro_batches),
        bits_(size_t{schedule.stages()} * schedule.micro_batches) {}
  bool has(Kind kind, uint32_t stage, uint32_t micro_batch) const {
    return (bits_[at(stage, micro_batch)] & bit(kind)) != 0;
  }
  void add(const Action& action) {
    bits_[at(action.stage, action.micro_batch)] |= bit(action.kind);
  }
  bool has_input_grad(uint32_t stage, uint32_t micro_batch) const {
    return (bits_[at(stage, micro_batch)] & (bit(Kind::kBackward) | bit(Kind::kInputGrad))) != 0;
  }
  bool has_weight_grad(uint32_t stage, uint32_t micro_batch) const {
    return (bits_[at(stage, micro_batch)] & (bit(Kind::kBackward) | bit(Kind::kWeightGrad))) != 0;
  }

 private:
  static uint16_t bit(Kind kind) { return static_cast<uint16_t>(1u << static_cast<int>(kind)); }
  size_t at(uint32_t stage, uint32_t micro_batch) const {
    return size_t{stage} * micro_batches_ + micro_batch;
  }

  size_t micro_batches_;
  std::vector<uint16_t> bits_;
};

// Checks that every step occurs exactly once, and on the right rank.
class Inventory {
 public:
  explicit Inventory(const Schedule& schedule)
      : schedule_(schedule), steps_(schedule), is_reduced_(schedule.stages()) {}

  Status run() {
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      HETCOMM_RETURN_IF_ERROR(take(rank));
    }
    for (uint32_t stage = 0; stage < schedule_.stages(); ++stage) {
      for (uint32_t i = 0; i < schedule_.micro_batches; ++i) {
        HETCOMM_RETURN_IF_ERROR(check_step(stage, i));
      }
    }
    return {};
  }

  const Steps& steps() const { return steps_; }
  bool has_backward() const { return has_backward_; }
  Level level() const { return level_; }

 private:
  Status take(uint32_t rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const auto fail = [&](std::string_view why) {
        return invalid(fmt::format("rank {}, action {}: {} {}", rank, i, to_text(action), why));
      };
      if (action.overlaps_next &&
          (i + 1 == actions.size() || actions[i + 1].overlaps_next ||
           !is_computation(action.kind) || !is_computation(actions[i + 1].kind))) {
        return fail("can't overlap with what follows");
      }
      if (action.overlaps_next && send_alike(action, actions[i + 1])) {
        return fail("overlaps with a step of the same stage and direction");
      }
      if (action.kind == Kind::kBubble) continue;
      if (action.stage >= schedule_.stages()) return fail("is for a stage that does not exist");
      if (schedule_.rank_of[action.stage] != rank) {
        return fail(fmt::format("belongs to rank {}", schedule_.rank_of[action.stage]));
      }
      if (action.kind == Kind::kReduceGradient) {
        if (is_reduced_[action.stage]) return fail("is there twice");
        is_reduced_[action.stage] = true;
      }
      if (!has_micro_batch(action.kind)) continue;
      if (action.micro_batch >= schedule_.micro_batches) {
        return fail("is for a micro-batch that does not exist");
      }
      if (steps_.has(action.kind, action.stage, action.micro_batch)) return fail("is there twice");
      if (const char* why = refuse_transfer(action)) return fail(why);
      steps_.add(action);
      has_backward_ |= gives_input_grad(action.kind);
      if (is_wait(action.kind)) level_ = Level::kWaits;
      if (is_send(action.kind) || is_receive(action.kind)) {
        level_ = std::max(level_, Level::kTransfers);
      }
    }
    return {};
  }

  // Returns whether both steps produce data for the same boundary and direction.
  static bool send_alike(const Action& one, const Action& other) {
    if (one.stage != other.stage) return false;
    return (one.kind == Kind::kForward && other.kind == Kind::kForward) ||
           (gives_input_grad(one.kind) && gives_input_grad(other.kind));
  }

  // If |action| is a transfer, or a wait for one, for which there is no boundary to another rank,
  // returns the reason for an error text. Otherwise returns null.
  const char* refuse_transfer(const Action& action) const {
    const uint32_t stage = action.stage;
    bool crosses = true;
    switch (action.kind) {
      case Kind::kSendForward:
      case Kind::kWaitSendForward:
      case Kind::kReceiveBackward:
      case Kind::kWaitReceiveBackward:
        if (stage + 1 == schedule_.stages()) return "has no stage behind it";
        crosses = schedule_.crosses(stage);
        break;
      case Kind::kReceiveForward:
      case Kind::kWaitReceiveForward:
      case Kind::kSendBackward:
      case Kind::kWaitSendBackward:
        if (stage == 0) return "has no stage before it";
        crosses = schedule_.crosses(stage - 1);
        break;
      default:
        break;
    }
    return crosses ? nullptr : "goes to a stage of the same rank";
  }

  Status miss(Kind kind, uint32_t stage, uint32_t micro_batch) const {
    return invalid(fmt::format("rank {} has no {}", schedule_.rank_of[stage],
                               to_text(action_of(kind, stage, micro_batch))));
  }

  Status check_step(uint32_t stage, uint32_t at) const {
    const bool whole = steps_.has(Kind::kBackward, stage, at);
    const bool input = steps_.has(Kind::kInputGrad, stage, at);
    const bool weight = steps_.has(Kind::kWeightGrad, stage, at);
    if (!steps_.has(Kind::kForward, stage, at)) return miss(Kind::kForward, stage, at);
    if (whole && (input || weight)) {
      return invalid(fmt::format("rank {} has {} whole and in parts", schedule_.rank_of[stage],
                                 to_text(action_of(Kind::kBackward, stage, at))));
    }
    if (has_backward_ && !whole) {
      if (!input && !weight) return miss(Kind::kBackward, stage, at);
      if (!input) return miss(Kind::kInputGrad, stage, at);
      if (!weight) return miss(Kind::kWeightGrad, stage, at);
    }
    if (!has_backward_ && (weight || steps_.has(Kind::kRecompute, stage, at))) {
      return miss(Kind::kBackward, stage, at);
    }
    return level_ == Level::kCompute ? Status() : check_transfers(stage, at);
  }

  Status check_transfers(uint32_t stage, uint32_t at) const {
    if (!schedule_.crosses(stage)) return {};
    const auto need = [&](Kind kind, uint32_t of) {
      return steps_.has(kind, of, at) ? Status() : miss(kind, of, at);
    };
    HETCOMM_RETURN_IF_ERROR(need(Kind::kSendForward, stage));
    HETCOMM_RETURN_IF_ERROR(need(Kind::kReceiveForward, stage + 1));
    if (!has_backward_) return {};
    HETCOMM_RETURN_IF_ERROR(need(Kind::kSendBackward, stage + 1));
    return need(Kind::kReceiveBackward, stage);
  }

  const Schedule& schedule_;
  Steps steps_;
  std::vector<bool> is_reduced_;  // indexed by stage
  bool has_backward_ = false;
  Level level_ = Level::kCompute;
};

// Channel is one direction of a boundary at level 1. Items are transferred in the order in which
// the sender produces them.
class Channel {
 public:
  void set_in_flight(uint32_t in_flight) { in_flight_ = in_flight; }
  void open(uint32_t micro_batches, uint32_t in_flight) {
    position_.assign(micro_batches, kUnknown);
    in_flight_ = in_flight;
  }
  bool is_open() const { return in_flight_ != 0; }
  void produce(uint32_t micro_batch) { position_[micro_batch] = produced_++; }
  void take() { ++taken_; }
  bool has_room() const { return produced_ < uint64_t{arrived()} + in_flight_; }
  bool is_produced(uint32_t micro_batch) const { return position_[micro_batch] != kUnknown; }
  bool has_arrived(uint32_t micro_batch) const {
    return is_produced(micro_batch) && position_[micro_batch] < arrived();
  }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  uint32_t arrived() const {
    return static_cast<uint32_t>(std::min<uint64_t>(produced_, uint64_t{taken_} + in_flight_));
  }

  std::vector<uint32_t> position_;  // indexed by micro-batch: its number among the items
  uint32_t in_flight_ = 0;
  uint32_t produced_ = 0;
  uint32_t taken_ = 0;
};

// Executes the actions of all ranks as far as possible.
class Walk {
 public:
  // |in_flight| has an entry for each boundary.
  Walk(const Schedule& schedule, const Inventory& inventory, std::vector<uint32_t> in_flight)
      : schedule_(schedule),
        planned_(inventory.steps()),
        has_transfers_(inventory.level() != Level::kCompute),
        in_flight_(std::move(in_flight)),
        done_(schedule),
        forward_(schedule.stages()),
        backward_(schedule.stages()),
        weight_grads_(schedule.stages()),
        next_(schedule.ranks()),
        is_queued_(schedule.ranks(), true) {
    for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) queue_.push_back(rank);
    for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
      if (has_transfers_ || !schedule.crosses(stage)) continue;
      forward_[stage].open(schedule.micro_batches, in_flight_[stage]);
      backward_[stage].open(schedule.micro_batches, in_flight_[stage]);
    }
  }

  // Runs the ranks. While a rank is blocked by a full boundary, raises |in_flight| of one boundary
  // for which |may_raise| is true.
  Status run_with_what_is_needed(const std::vector<bool>& may_raise) {
    for (go_on(); raise_one(may_raise);) go_on();
    return end();
  }
  Status run() {
    go_on();
    return end();
  }
  const std::vector<uint32_t>& in_flight() const { return in_flight_; }

 private:
  static constexpr int kMaxTold = 4;

  void go_on() {
    while (!queue_.empty()) {
      const uint32_t rank = queue_.front();
      queue_.pop_front();
      is_queued_[rank] = false;
      advance(rank);
    }
  }

  // Returns success if all ranks have executed all their actions, or an error that describes the
  // first ranks that cannot continue.
  Status end() const {
    std::string stuck;
    int count = 0;
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      if (next_[rank] == schedule_.actions[rank].size()) continue;
      if (++count <= kMaxTold) stuck += fmt::format("{}{}", stuck.empty() ? "" : "; ", tell(rank));
    }
    if (count == 0) return {};
    if (count > kMaxTold) stuck += fmt::format("; and {} more", count - kMaxTold);
    return invalid(fmt::format("the schedule can't go on: {}", stuck));
  }

  // Raises |in_flight| of the first full boundary that blocks a rank and may be raised. Returns
  // false if there is no such boundary.
  bool raise_one(const std::vector<bool>& may_raise) {
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      const std::vector<Action>& actions = schedule_.actions[rank];
      for (size_t i = next_[rank]; i < actions.size(); ++i) {
        const std::optional<uint32_t> boundary = full_boundary(actions[i]);
        if (boundary && may_raise[*boundary]) {
          raise(*boundary);
          return true;
        }
        if (!actions[i].overlaps_next) break;
      }
    }
    return false;
  }

  void raise(uint32_t boundary) {
    const uint32_t most = ++in_flight_[boundary];
    forward_[boundary].set_in_flight(most);
    backward_[boundary].set_in_flight(most);
    wake(schedule_.rank_of[boundary]);
    wake(schedule_.rank_of[boundary + 1]);
  }

  // Returns the full boundary that blocks |action|, if there is one.
  std::optional<uint32_t> full_boundary(const Action& action) const {
    const uint32_t stage = action.stage;
    const auto holds_back = [&](const Channel& channel) {
      return channel.is_open() && channel.is_produced(action.micro_batch) &&
             !channel.has_arrived(action.micro_batch);
    };
    const auto has_no_room = [](const Channel& channel) {
      return channel.is_open() && !channel.has_room();
    };
    if (action.kind == Kind::kForward) {
      if (stage > 0 && holds_back(forward_[stage - 1])) return stage - 1;
      if (lacks_input(stage, action.micro_batch).empty() && has_no_room(forward_[stage])) {
        return stage;
      }
    } else if (gives_input_grad(action.kind)) {
      if (holds_back(backward_[stage])) return stage;
      if (stage > 0 && lacks_output_grad(stage, action.micro_batch).empty() &&
          has_no_room(backward_[stage - 1])) {
        return stage - 1;
      }
    }
    return std::nullopt;
  }

  void advance(uint32_t rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    size_t& at = next_[rank];
    while (at < actions.size()) {
      const bool is_pair = actions[at].overlaps_next;
      if (!what_lacks(actions[at]).empty()) return;
      if (is_pair && !what_lacks(actions[at + 1]).empty()) return;
      perform(actions[at++]);
      if (is_pair) perform(actions[at++]);
    }
  }

  std::string tell(uint32_t rank) const {
    const Action* action = &schedule_.actions[rank][next_[rank]];
    std::string lack = what_lacks(*action);
    if (lack.empty()) lack = what_lacks(*++action);
    return fmt::format("rank {} waits at {} for {}", rank, to_text(*action), lack);
  }

  bool is_done(Kind kind, uint32_t stage, uint32_t at) const { return done_.has(kind, stage, at); }
  std::string name(Kind kind, uint32_t stage, uint32_t at) const {
    return fmt::format("{} of rank {}", to_text(action_of(kind, stage, at)),
                       schedule_.rank_of[stage]);
  }

  // Describes what |action| waits for. Returns "" if it can run.
  std::string what_lacks(const Action& action) const {
    const uint32_t stage = action.stage;
    const uint32_t at = action.micro_batch;
    switch (action.kind) {
      case Kind::kForward:
        return first_of(lacks_input(stage, at), lacks_room(forward_, stage, stage + 1));
      case Kind::kRecompute:
        return is_done(Kind::kForward, stage, at) ? "" : name(Kind::kForward, stage, at);
      case Kind::kBackward:
      case Kind::kInputGrad:
        return first_of(lacks_output_grad(stage, at),
                        stage == 0 ? "" : lacks_room(backward_, stage - 1, stage - 1));
      case Kind::kWeightGrad:
        return is_done(Kind::kInputGrad, stage, at) ? "" : name(Kind::kInputGrad, stage, at);
      case Kind::kReduceGradient:
        return weight_grads_[stage] == schedule_.micro_batches
                   ? ""
                   : fmt::format("the weight gradients of stage {}", stage);
      case Kind::kBubble:
      case Kind::kUnshard:
      case Kind::kReshard:
      case Kind::kReceiveForward:
      case Kind::kReceiveBackward:
        return "";
      default:
        return transfer_lacks(action);
    }
  }

  static std::string first_of(std::string first, std::string second) {
    return first.empty() ? second : first;
  }

  std::string lacks_input(uint32_t stage, uint32_t at) const {
    if (stage == 0) return "";
    if (!schedule_.crosses(stage - 1)) {
      return is_done(Kind::kForward, stage - 1, at) ? "" : name(Kind::kForward, stage - 1, at);
    }
    if (has_transfers_) {
      return lacks_transfer(Kind::kSendForward, stage - 1, Kind::kReceiveForward, stage, at);
    }
    return lacks_item(forward_[stage - 1], Kind::kForward, stage - 1, at);
  }

  std::string lacks_output_grad(uint32_t stage, uint32_t at) const {
    if (!is_done(Kind::kForward, stage, at)) return name(Kind::kForward, stage, at);
    if (planned_.has(Kind::kRecompute, stage, at) && !is_done(Kind::kRecompute, stage, at)) {
      return name(Kind::kRecompute, stage, at);
    }
    if (stage + 1 == schedule_.stages()) return "";
    const Kind kind =
        planned_.has(Kind::kBackward, stage + 1, at) ? Kind::kBackward : Kind::kInputGrad;
    if (!schedule_.crosses(stage)) {
      return done_.has_input_grad(stage + 1, at) ? "" : name(kind, stage + 1, at);
    }
    if (has_transfers_) {
      return lacks_transfer(Kind::kSendBackward, stage + 1, Kind::kReceiveBackward, stage, at);
    }
    return lacks_item(backward_[stage], kind, stage + 1, at);
  }

  std::string lacks_item(const Channel& channel, Kind kind, uint32_t stage, uint32_t at) const {
    if (channel.has_arrived(at)) return "";
    if (!channel.is_produced(at)) return name(kind, stage, at);
    return fmt::format("the result of {}, which stands behind others that are not taken",
                       name(kind, stage, at));
  }

  std::string lacks_room(const std::vector<Channel>& channels, uint32_t boundary,
                         uint32_t receiver) const {
    const Channel& channel = channels[boundary];
    if (!channel.is_open() || channel.has_room()) return "";
    return fmt::format("room: stage {} has not taken what was sent before", receiver);
  }

  std::string lacks_transfer(Kind send, uint32_t sender, Kind receive, uint32_t receiver,
                             uint32_t at) const {
    if (!is_done(receive, receiver, at)) return name(receive, receiver, at);
    return is_done(send, sender, at) ? "" : name(send, sender, at);
  }

  std::string transfer_lacks(const Action& action) const {
    const uint32_t stage = action.stage;
    const uint32_t at = action.micro_batch;
    switch (action.kind) {
      case Kind::kSendForward:
        return is_done(Kind::kForward, stage, at) ? "" : name(Kind::kForward, stage, at);
      case Kind::kSendBackward:
        return done_.has_input_grad(stage, at) ? "" : name(Kind::kInputGrad, stage, at);
      case Kind::kWaitSendForward:
        return lacks_both(Kind::kSendForward, stage, Kind::kReceiveForward, stage + 1, at);
      case Kind::kWaitReceiveForward:
        return lacks_transfer(Kind::kSendForward, stage - 1, Kind::kReceiveForward, stage, at);
      case Kind::kWaitSendBackward:
        return lacks_both(Kind::kSendBackward, stage, Kind::kReceiveBackward, stage - 1, at);
      default:
        return lacks_transfer(Kind::kSendBackward, stage + 1, Kind::kReceiveBackward, stage, at);
    }
  }

  std::string lacks_both(Kind send, uint32_t sender, Kind receive, uint32_t receiver,
                         uint32_t at) const {
    if (!is_done(send, sender, at)) return name(send, sender, at);
    return is_done(receive, receiver, at) ? "" : name(receive, receiver, at);
  }

  void perform(const Action& action) {
    const uint32_t stage = action.stage;
    if (!has_micro_batch(action.kind)) return;
    done_.add(action);
    if (gives_weight_grad(action.kind)) ++weight_grads_[stage];
    if (action.kind == Kind::kForward) {
      if (stage > 0 && forward_[stage - 1].is_open()) forward_[stage - 1].take();
      if (forward_[stage].is_open()) forward_[stage].produce(action.micro_batch);
    } else if (gives_input_grad(action.kind)) {
      if (backward_[stage].is_open()) backward_[stage].take();
      if (stage > 0 && backward_[stage - 1].is_open()) {
        backward_[stage - 1].produce(action.micro_batch);
      }
    }
    if (stage > 0) wake(schedule_.rank_of[stage - 1]);
    if (stage + 1 < schedule_.stages()) wake(schedule_.rank_of[stage + 1]);
  }

  void wake(uint32_t rank) {
    if (is_queued_[rank]) return;
    is_queued_[rank] = true;
    queue_.push_back(rank);
  }

  const Schedule& schedule_;
  const Steps& planned_;
  const bool has_transfers_;
  std::vector<uint32_t> in_flight_;  // indexed by boundary
  Steps done_;
  std::vector<Channel> forward_;   // indexed by the stage before the boundary
  std::vector<Channel> backward_;  // indexed by the stage before the boundary
  std::vector<uint32_t> weight_grads_;
  std::vector<size_t> next_;  // indexed by rank: its next action
  std::vector<bool> is_queued_;
  std::deque<uint32_t> queue_;
};

Status check_shape(const Schedule& schedule, const CheckOptions& options) {
  if (schedule.stages() == 0) return invalid("the schedule has no stage");
  if (schedule.ranks() > kMaxStages) {
    return invalid(fmt::format("the schedule has more than {} ranks", kMaxStages));
  }
  if (schedule.stages() > kMaxStages || schedule.micro_batches > kMaxMicroBatches) {
    return invalid(fmt::format("the schedule has more than {} stages or {} micro-batches",
                               kMaxStages, kMaxMicroBatches));
  }
  if (schedule.micro_batches == 0) return invalid("the schedule has no micro-batch");
  if (uint64_t{schedule.stages()} * schedule.micro_batches > kMaxSteps) {
    return invalid(fmt::format("{} stages and {} micro-batches have more than {} steps",
                               schedule.stages(), schedule.micro_batches, kMaxSteps));
  }
  for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of[stage] >= schedule.ranks()) {
      return invalid(fmt::format("stage {} is on rank {}, and there are {} ranks", stage,
                                 schedule.rank_of[stage], schedule.ranks()));
    }
  }
  if (!options.in_flight.empty() && options.in_flight.size() + 1 != schedule.stages()) {
    return invalid(fmt::format("items in flight are given for {} boundaries of {} stages",
                               options.in_flight.size(), schedule.stages()));
  }
  if (std::count(options.in_flight.begin(), options.in_flight.end(), 0u) != 0) {
    return invalid("a boundary needs one item in flight at least");
  }
  if (!options.memory.empty() && options.memory.size() != schedule.stages()) {
    return invalid(fmt::format("the memory of {} stages is given for {}", options.memory.size(),
                               schedule.stages()));
  }
  for (const StepMemory& each : options.memory) {
    if (!each.is_in_range()) return invalid("the memory of a step is above 2^38");
  }
  if (!options.limits.empty() && options.limits.size() != schedule.ranks()) {
    return invalid(fmt::format("the limits of {} ranks are given for {}", options.limits.size(),
                               schedule.ranks()));
  }
  return {};
}

}  // namespace

Result<CheckResult> check(const Schedule& schedule, const CheckOptions& options) {
  HETCOMM_RETURN_IF_ERROR(check_shape(schedule, options));
  Inventory inventory(schedule);
  HETCOMM_RETURN_IF_ERROR(inventory.run());
  std::vector<uint32_t> in_flight = options.in_flight;
  in_flight.resize(schedule.stages() - 1, 1);
  HETCOMM_RETURN_IF_ERROR(Walk(schedule, inventory, std::move(in_flight)).run());
  CheckResult result;
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    const std::vector<HeldMemory> held = memory_over_time(schedule, rank, options.memory);
    const auto peak = std::max_element(
        held.begin(), held.end(),
        [](const HeldMemory& one, const HeldMemory& other) { return one.during < other.during; });
    result.peaks.push_back(peak == held.end() ? 0 : std::max<int64_t>(peak->during, 0));
    if (!options.limits.empty() && result.peaks[rank] > options.limits[rank]) {
      const Action& action = schedule.actions[rank][static_cast<size_t>(peak - held.begin())];
      return Status(Code::kOutOfRange,
                    fmt::format("rank {} holds up to {} in {}, and {} is its limit", rank,
                                result.peaks[rank], to_text(action), options.limits[rank]));
    }
  }
  return result;
}

Status check_unlimited(const Schedule& schedule) {
  CheckOptions unlimited;
  if (schedule.stages() > 1) unlimited.in_flight.assign(schedule.stages() - 1, kMaxMicroBatches);
  return check(schedule, unlimited).status();
}

Result<std::vector<uint32_t>> needed_in_flight(const Schedule& schedule,
                                               const std::vector<uint32_t>& given) {
  HETCOMM_RETURN_IF_ERROR(check_shape(schedule, {}));
  Inventory inventory(schedule);
  HETCOMM_RETURN_IF_ERROR(inventory.run());
  std::vector<uint32_t> in_flight(schedule.stages() - 1, 1);
  std::vector<bool> may_raise(in_flight.size(), true);
  for (size_t i = 0; i < std::min(given.size(), in_flight.size()); ++i) {
    if (given[i] == 0) continue;
    in_flight[i] = given[i];
    may_raise[i] = false;
  }
  Walk walk(schedule, inventory, std::move(in_flight));
  HETCOMM_RETURN_IF_ERROR(walk.run_with_what_is_needed(may_raise));
  return walk.in_flight();
}

}  // namespace hetcomm::pipeline
