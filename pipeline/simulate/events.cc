#include "pipeline/simulate/events.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/text.h"
#include "pipeline/simulate/line.h"
#include "pipeline/simulate/step_time.h"
#include "pipeline/simulate/transfers.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

// Channel is one direction of a boundary. Items are numbered in the order in which they are sent.
class Channel {
 public:
  // |in_flight| is 0 if the receiver is always ready. |credit_ns| is the time until the sender is
  // notified that an item was taken.
  void open(const Route* route, uint32_t micro_batches, uint64_t credit_ns, uint32_t in_flight,
            bool has_receives) {
    route_ = route;
    credit_ns_ = credit_ns;
    in_flight_ = in_flight;
    has_receives_ = has_receives;
    states_.assign(micro_batches, kNothing);
  }
  bool is_open() const { return !states_.empty(); }
  const Route* route() const { return route_; }
  uint64_t credit_ns() const { return credit_ns_; }

  // send(), post() and credit() call start(micro_batch) for each transfer that can start now.
  template <class Start>
  void send(uint32_t micro_batch, const Start& start) {
    if (has_receives_) return add(micro_batch, kSent, start);
    ++sent_;
    waiting_.push_back(micro_batch);
    start_waiting(start);
  }
  template <class Start>
  void post(uint32_t micro_batch, const Start& start) {
    add(micro_batch, kPosted, start);
  }
  // Records that the sender has been notified that one more item was taken.
  template <class Start>
  void credit(const Start& start) {
    ++taken_;
    if (!has_receives_) start_waiting(start);
  }

  void leave() { ++left_; }
  void arrive(uint32_t micro_batch) { states_[micro_batch] |= kArrived; }
  bool has_arrived(uint32_t micro_batch) const { return (states_[micro_batch] & kArrived) != 0; }
  bool has_room() const { return in_flight_ == 0 || has_receives_ || sent_ < left_ + in_flight_; }

 private:
  enum State : uint8_t { kNothing = 0, kSent = 1, kPosted = 2, kArrived = 4 };

  template <class Start>
  void add(uint32_t micro_batch, State state, const Start& start) {
    states_[micro_batch] |= state;
    if ((states_[micro_batch] & (kSent | kPosted)) == (kSent | kPosted)) start(micro_batch);
  }
  template <class Start>
  void start_waiting(const Start& start) {
    while (!waiting_.empty() && (in_flight_ == 0 || started_ < taken_ + in_flight_)) {
      const uint32_t micro_batch = waiting_.front();
      waiting_.pop_front();
      ++started_;
      start(micro_batch);
    }
  }

  const Route* route_ = nullptr;
  uint64_t credit_ns_ = 0;
  uint64_t in_flight_ = 0;
  bool has_receives_ = false;
  uint64_t sent_ = 0;
  uint64_t started_ = 0;
  uint64_t taken_ = 0;  // items whose credit has reached the sender
  uint64_t left_ = 0;   // items whose first hop has ended
  Line<uint32_t> waiting_;
  std::vector<uint8_t> states_;  // indexed by micro-batch: bits of State
};

// Returns the total latency of all hops, or 0 without a route.
uint64_t latency_of(const Route* route) {
  uint64_t latency_ns = 0;
  if (route == nullptr) return latency_ns;
  for (const RouteHop& hop : route->hops) latency_ns += hop.latency_ns;
  return latency_ns;
}

class EventSimulation final : private TransferClient {
 public:
  EventSimulation(const EventInput& input, bool keeps_spans)
      : input_(input), keeps_spans_(keeps_spans), transfers_(input.resources, events_, *this) {
    forecast_.reductions.resize(input.reductions.size());
    members_left_.reserve(input.reductions.size());
    for (const ReductionGroup& group : input.reductions) {
      members_left_.push_back(group.members.size());
    }
    for (const EventPipeline& each : input.pipelines) add_pipeline(each);
    for (uint32_t i = 0; i < input.reductions.size(); ++i) {
      for (const ReductionGroup::Member& member : input.reductions[i].members) {
        pipelines_[member.pipeline].groups_of[member.stage].push_back(i);
      }
    }
  }

  Result<EventForecast> run() {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) advance(rank);
    while (!events_.is_empty()) {
      const Event event = events_.take();
      if (event.kind == Event::kStep) {
        end_step(event.id);
      } else if (event.kind == Event::kCredit) {
        credit(event.id, event.hop % 2 == 0 ? kForward : kBackward, event.hop / 2);
      } else {
        transfers_.on_event(event);
      }
    }
    return finish();
  }

 private:
  struct Pipeline {
    const EventPipeline* given;
    uint32_t first_rank;
    bool has_transfers;
    std::vector<Channel> forward;                  // indexed by the stage before the boundary
    std::vector<Channel> backward;                 // indexed by the stage before the boundary
    std::vector<uint32_t> gathering;               // indexed by stage: gathers in progress
    std::vector<std::vector<uint32_t>> groups_of;  // indexed by stage: its reductions
  };
  struct Rank {
    const std::vector<Action>* actions;
    uint32_t pipeline;
    uint32_t index;  // index in the pipeline
    size_t next = 0;
    uint64_t busy_ns = 0;
    uint64_t end_ns = 0;
    bool runs = false;
    // The reason why the next step or pair could not start when it was last examined.
    Bound waits_for = Bound::kRank;
    // The step of a pair that could not start: 0 or 1.
    uint32_t lacking = 0;
  };
  // The kind of transfer.
  enum Purpose : uint32_t { kForward, kBackward, kGather, kReduction };
  // Starts transfers over one direction of a boundary.
  struct Starter {
    EventSimulation& simulation;
    uint32_t pipeline;
    Purpose purpose;
    uint32_t boundary;
    void operator()(uint32_t micro_batch) const {
      simulation.start_item(pipeline, purpose, boundary, micro_batch);
    }
  };
  Starter starter(uint32_t pipeline, Purpose purpose, uint32_t boundary) {
    return {*this, pipeline, purpose, boundary};
  }

  void add_pipeline(const EventPipeline& given) {
    const Schedule& schedule = given.schedule;
    Pipeline& own = pipelines_.emplace_back();
    own.given = &given;
    own.first_rank = static_cast<uint32_t>(ranks_.size());
    own.has_transfers = level_of(schedule) != Level::kCompute;
    own.forward.resize(schedule.stages());
    own.backward.resize(schedule.stages());
    own.gathering.resize(schedule.stages());
    own.groups_of.resize(schedule.stages());
    for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
      if (!schedule.crosses(stage)) continue;
      const uint32_t most = given.in_flight.empty() ? 0 : given.in_flight[stage];
      const auto route_of = [&](const std::vector<Route>& routes) {
        return routes.empty() ? nullptr : &routes[stage];
      };
      const Route* const forward = route_of(given.forward);
      const Route* const backward = route_of(given.backward);
      const bool is_one_way = !given.one_way.empty() && given.one_way[stage];
      own.forward[stage].open(forward, schedule.micro_batches,
                              latency_of(is_one_way ? forward : backward), most, own.has_transfers);
      if (is_one_way) continue;
      own.backward[stage].open(backward, schedule.micro_batches, latency_of(forward), most,
                               own.has_transfers);
    }
    Forecast& forecast = forecast_.pipelines.emplace_back();
    if (keeps_spans_) {
      forecast.actions.resize(schedule.ranks());
      forecast.bounds.resize(schedule.ranks());
    }
    for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
      ranks_.push_back({.actions = &schedule.actions[rank],
                        .pipeline = static_cast<uint32_t>(pipelines_.size() - 1),
                        .index = rank});
    }
  }

  Result<EventForecast> finish() {
    for (const Rank& rank : ranks_) {
      const std::vector<Action>& actions = *rank.actions;
      Forecast& own = forecast_.pipelines[rank.pipeline];
      if (rank.next != actions.size()) {
        return Status(Code::kInvalidArgument,
                      fmt::format("pipeline {}: rank {} can't go on at {}", rank.pipeline,
                                  rank.index, to_text(actions[rank.next])));
      }
      own.busy_ns.push_back(rank.busy_ns);
      own.total_ns = std::max(own.total_ns, rank.end_ns);
      forecast_.total_ns = std::max(forecast_.total_ns, rank.end_ns);
    }
    for (size_t i = 0; i < members_left_.size(); ++i) {
      if (members_left_[i] == 0) continue;
      return invalid(
          fmt::format("reduction {}: {} of its stages have no REDUCE_GRAD", i, members_left_[i]));
    }
    for (const Span& each : forecast_.reductions) {
      forecast_.total_ns = std::max(forecast_.total_ns, each.end_ns);
    }
    forecast_.resource_busy_ns = transfers_.busy_ns();
    return std::move(forecast_);
  }

  // Runs the next actions of a rank, until one takes time or cannot start.
  void advance(uint32_t number) {
    Rank& rank = ranks_[number];
    const std::vector<Action>& actions = *rank.actions;
    while (!rank.runs && rank.next < actions.size()) {
      const Action& action = actions[rank.next];
      const bool is_pair = action.overlaps_next;
      const Pipeline& own = pipelines_[rank.pipeline];
      for (uint32_t i = 0; i < (is_pair ? 2u : 1u); ++i) {
        const std::optional<Bound> lacks = missing(own, actions[rank.next + i]);
        if (!lacks) continue;
        rank.waits_for = *lacks;
        rank.lacking = i;
        return;
      }
      take_input(own, action);
      if (is_pair) take_input(own, actions[rank.next + 1]);
      const std::vector<StageTime>& times = own.given->stages;
      const uint64_t length_ns =
          is_pair ? pair_ns(times, action, actions[rank.next + 1], input_.overlap_ppm)
                  : step_ns(times, action);
      if (keeps_spans_) {
        std::vector<Span>& spans = forecast_.pipelines[rank.pipeline].actions[rank.index];
        spans.insert(spans.end(), is_pair ? 2 : 1, {events_.now(), events_.now() + length_ns});
        add_bounds(rank, is_pair ? 2 : 1);
      }
      rank.busy_ns += length_ns;
      rank.runs = true;
      if (length_ns == 0) {
        complete(rank);
      } else {
        events_.add(length_ns, {.kind = Event::kStep, .id = number});
      }
    }
  }

  // Records why the step or pair of |rank|, which starts now, did not start earlier.
  void add_bounds(const Rank& rank, uint32_t count) {
    std::vector<Bound>& bounds = forecast_.pipelines[rank.pipeline].bounds[rank.index];
    const bool has_waited = rank.end_ns < events_.now();
    for (uint32_t i = 0; i < count; ++i) {
      bounds.push_back(has_waited && i == rank.lacking ? rank.waits_for : Bound::kRank);
    }
  }

  void end_step(uint32_t number) {
    complete(ranks_[number]);
    advance(number);
  }

  // Ends the current step or pair of |rank|.
  void complete(Rank& rank) {
    const std::vector<Action>& actions = *rank.actions;
    const size_t first = rank.next;
    const size_t count = actions[first].overlaps_next ? 2 : 1;
    rank.next += count;
    rank.end_ns = events_.now();
    rank.runs = false;
    for (size_t i = first; i < first + count; ++i) act(rank.pipeline, actions[i]);
  }

  // Returns the reason why |action| cannot start, or nullopt if it can.
  static std::optional<Bound> missing(const Pipeline& own, const Action& action) {
    const uint32_t stage = action.stage;
    const auto unless = [](bool is_there, Bound bound) {
      return is_there ? std::nullopt : std::optional(bound);
    };
    if (is_computation(action.kind) && own.gathering[stage] != 0) return Bound::kGather;
    switch (action.kind) {
      case Kind::kForward:
        if (!has_arrived(own.forward, stage, -1, action)) return Bound::kData;
        return unless(has_room(own.forward, stage, 0), Bound::kRoom);
      case Kind::kBackward:
      case Kind::kInputGrad:
        if (!has_arrived(own.backward, stage, 0, action)) return Bound::kData;
        return unless(has_room(own.backward, stage, -1), Bound::kRoom);
      case Kind::kWaitSendForward:
        return unless(has_arrived(own.forward, stage, 0, action), Bound::kRoom);
      case Kind::kWaitReceiveForward:
        return unless(has_arrived(own.forward, stage, -1, action), Bound::kData);
      case Kind::kWaitSendBackward:
        return unless(has_arrived(own.backward, stage, -1, action), Bound::kRoom);
      case Kind::kWaitReceiveBackward:
        return unless(has_arrived(own.backward, stage, 0, action), Bound::kData);
      default:
        return std::nullopt;
    }
  }
  // |back| is -1 for the boundary before |stage|, and 0 for the boundary after it.
  static bool has_arrived(const std::vector<Channel>& channels, uint32_t stage, int back,
                          const Action& action) {
    if (back < 0 && stage == 0) return true;
    const Channel& channel = channels[stage + static_cast<uint32_t>(back)];
    return !channel.is_open() || channel.has_arrived(action.micro_batch);
  }
  static bool has_room(const std::vector<Channel>& channels, uint32_t stage, int back) {
    if (back < 0 && stage == 0) return true;
    const Channel& channel = channels[stage + static_cast<uint32_t>(back)];
    return !channel.is_open() || channel.has_room();
  }

  // Sends the credit for the input of |action|, which is starting.
  void take_input(const Pipeline& own, const Action& action) {
    const auto index = static_cast<uint32_t>(&own - pipelines_.data());
    const uint32_t stage = action.stage;
    if (own.has_transfers) return;
    if (action.kind == Kind::kForward && stage > 0 && own.forward[stage - 1].is_open()) {
      send_credit(index, kForward, stage - 1);
    } else if (gives_input_grad(action.kind) && own.backward[stage].is_open()) {
      send_credit(index, kBackward, stage);
    }
  }
  void send_credit(uint32_t pipeline, Purpose purpose, uint32_t boundary) {
    const uint64_t credit_ns = channel_of(pipeline, purpose, boundary).credit_ns();
    if (credit_ns == 0) return credit(pipeline, purpose, boundary);
    const uint32_t channel = 2 * boundary + (purpose == kForward ? 0 : 1);
    events_.add(credit_ns, {.kind = Event::kCredit, .id = pipeline, .hop = channel});
  }
  void credit(uint32_t pipeline, Purpose purpose, uint32_t boundary) {
    channel_of(pipeline, purpose, boundary).credit(starter(pipeline, purpose, boundary));
  }

  // Performs the effects of |action|, which has ended.
  void act(uint32_t index, const Action& action) {
    Pipeline& own = pipelines_[index];
    const uint32_t stage = action.stage;
    const uint32_t at = action.micro_batch;
    switch (action.kind) {
      case Kind::kForward:
        if (!own.has_transfers && own.forward[stage].is_open()) {
          own.forward[stage].send(at, starter(index, kForward, stage));
        }
        return;
      case Kind::kBackward:
      case Kind::kInputGrad:
        if (!own.has_transfers && stage > 0 && own.backward[stage - 1].is_open()) {
          own.backward[stage - 1].send(at, starter(index, kBackward, stage - 1));
        }
        return;
      case Kind::kSendForward:
        return own.forward[stage].send(at, starter(index, kForward, stage));
      case Kind::kSendBackward:
        return own.backward[stage - 1].send(at, starter(index, kBackward, stage - 1));
      case Kind::kReceiveForward:
        return own.forward[stage - 1].post(at, starter(index, kForward, stage - 1));
      case Kind::kReceiveBackward:
        return own.backward[stage].post(at, starter(index, kBackward, stage));
      case Kind::kUnshard:
        if (own.given->gathers.empty()) return;
        ++own.gathering[stage];
        return transfers_.start(own.given->gathers[stage], {index, kGather, stage, 0});
      case Kind::kReduceGradient:
        for (const uint32_t group : own.groups_of[stage]) reduce(group);
        return;
      default:
        return;
    }
  }

  void reduce(uint32_t group) {
    if (--members_left_[group] > 0) return;
    forecast_.reductions[group].start_ns = events_.now();
    transfers_.start(input_.reductions[group].route, {0, kReduction, group, 0});
  }

  void start_item(uint32_t pipeline, Purpose purpose, uint32_t boundary, uint32_t micro_batch) {
    static const Route kNoRoute;
    const Route* const route = channel_of(pipeline, purpose, boundary).route();
    transfers_.start(route == nullptr ? kNoRoute : *route,
                     {pipeline, purpose, boundary, micro_batch});
  }
  Channel& channel_of(uint32_t pipeline, uint32_t purpose, uint32_t boundary) {
    Pipeline& own = pipelines_[pipeline];
    return purpose == kForward ? own.forward[boundary] : own.backward[boundary];
  }

  void on_left(const TransferName& name) override {
    if (name.purpose > kBackward) return;
    channel_of(name.pipeline, name.purpose, name.index).leave();
    advance_stage(name.pipeline, name.index + (name.purpose == kForward ? 0 : 1));
  }

  void on_arrived(const TransferName& name) override {
    Pipeline& own = pipelines_[name.pipeline];
    switch (name.purpose) {
      case kForward:
      case kBackward: {
        channel_of(name.pipeline, name.purpose, name.index).arrive(name.micro_batch);
        // A sender waits for an arrival only in a wait action.
        const bool is_forward = name.purpose == kForward;
        if (own.has_transfers || !is_forward) advance_stage(name.pipeline, name.index);
        if (own.has_transfers || is_forward) advance_stage(name.pipeline, name.index + 1);
        return;
      }
      case kGather:
        --own.gathering[name.index];
        return advance_stage(name.pipeline, name.index);
      default:
        forecast_.reductions[name.index].end_ns = events_.now();
    }
  }

  void advance_stage(uint32_t pipeline, uint32_t stage) {
    const Pipeline& own = pipelines_[pipeline];
    advance(own.first_rank + own.given->schedule.rank_of[stage]);
  }

  const EventInput& input_;
  const bool keeps_spans_;
  EventQueue events_;
  Transfers transfers_;
  std::vector<Pipeline> pipelines_;
  std::vector<Rank> ranks_;
  std::vector<size_t> members_left_;  // indexed by reduction: members that have not reached it
  EventForecast forecast_;
};

Status check_route(const Route& route, uint32_t resources) {
  if (route.slices == 0) return invalid("a route has no slice");
  for (const RouteHop& hop : route.hops) {
    for (size_t i = 0; i < hop.resources.size(); ++i) {
      if (hop.resources[i] >= resources) {
        return invalid(fmt::format("a route uses resource {} of {}", hop.resources[i], resources));
      }
      if (std::find(hop.resources.begin(), hop.resources.begin() + static_cast<ptrdiff_t>(i),
                    hop.resources[i]) != hop.resources.begin() + static_cast<ptrdiff_t>(i)) {
        return invalid(fmt::format("a hop uses resource {} twice", hop.resources[i]));
      }
    }
  }
  return {};
}

Status check_pipeline(const EventPipeline& each, uint32_t resources) {
  const size_t stages = each.schedule.stages();
  const auto fits = [](size_t given, size_t wanted) { return given == 0 || given == wanted; };
  if (stages == 0 || each.stages.size() != stages) {
    return invalid(
        fmt::format("times of {} stages for a schedule of {}", each.stages.size(), stages));
  }
  if (!fits(each.forward.size(), stages - 1) || !fits(each.backward.size(), stages - 1) ||
      !fits(each.in_flight.size(), stages - 1) || !fits(each.one_way.size(), stages - 1) ||
      !fits(each.gathers.size(), stages)) {
    return invalid(fmt::format("routes for another number of stages than {}", stages));
  }
  if (std::count(each.in_flight.begin(), each.in_flight.end(), 0u) != 0) {
    return invalid("a boundary needs one item in flight at least");
  }
  HETCOMM_RETURN_IF_ERROR(check_length(each.stages, each.schedule.micro_batches));
  for (const auto* routes : {&each.forward, &each.backward, &each.gathers}) {
    for (const Route& route : *routes) HETCOMM_RETURN_IF_ERROR(check_route(route, resources));
  }
  return {};
}

Status check_input(const EventInput& input) {
  for (size_t i = 0; i < input.pipelines.size(); ++i) {
    const Status status = check_pipeline(input.pipelines[i], input.resources);
    if (!status.ok()) return status.annotate(fmt::format("pipeline {}", i));
  }
  for (const ReductionGroup& group : input.reductions) {
    std::set<std::pair<uint32_t, uint32_t>> reduced;
    HETCOMM_RETURN_IF_ERROR(check_route(group.route, input.resources));
    if (group.members.empty()) return invalid("a reduction has no stage");
    for (const ReductionGroup::Member& member : group.members) {
      if (member.pipeline >= input.pipelines.size() ||
          member.stage >= input.pipelines[member.pipeline].schedule.stages()) {
        return invalid(fmt::format("a reduction has stage {} of pipeline {}, which does not exist",
                                   member.stage, member.pipeline));
      }
      if (!reduced.insert({member.pipeline, member.stage}).second) {
        return invalid(fmt::format("stage {} of pipeline {} is twice in a reduction", member.stage,
                                   member.pipeline));
      }
    }
  }
  return {};
}

}  // namespace

Result<EventForecast> simulate_events(const EventInput& input, bool keeps_spans) {
  HETCOMM_RETURN_IF_ERROR(check_input(input));
  return EventSimulation(input, keeps_spans).run();
}

}  // namespace hetcomm::pipeline
