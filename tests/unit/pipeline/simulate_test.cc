// The simulators:
//    - forecasts meet the closed forms of the papers, and CrossPipe's measured cells within 4 %;
//    - H-1F1B hides transfers of a stage's time, Eager- and Virtual-1F1B those of half of it;
//    - longest paths and discrete events give every action the same time, and so does a simulation
//      that moves its clock by single steps and shares no code with them;
//    - shared resources serve one transfer at a time, staged boundaries overlap by slices, and
//      reductions wait for all pipelines;
//    - times for another shape are refused, and so is what cannot go on.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/live.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"
#include "pipeline/simulate/events.h"
#include "pipeline/simulate/longest_path.h"

namespace hetcomm::pipeline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

uint64_t total(const Schedule& schedule, const PipelineTimes& times) {
  const Result<Forecast> forecast = simulate(schedule, times);
  EXPECT_TRUE(forecast.ok()) << forecast.status().text();
  return forecast.ok() ? forecast.value().total_ns : 0;
}

PipelineTimes equal_times(uint32_t stages, uint64_t forward, uint64_t backward,
                          BoundaryTime boundary = {}) {
  PipelineTimes times;
  times.stages.assign(stages, {.forward_ns = forward,
                               .backward_ns = backward,
                               .input_grad_ns = backward / 2,
                               .weight_grad_ns = backward - backward / 2,
                               .recompute_ns = forward});
  times.forward.assign(stages - 1, boundary);
  times.backward = times.forward;
  return times;
}

// Returns the time per micro-batch, from the difference of two long runs.
double slope(const std::vector<uint32_t>& warmups, const PipelineTimes& times) {
  const auto run = [&](uint32_t micro_batches) {
    return static_cast<double>(total(one_f_one_b(warmups, micro_batches).value(), times));
  };
  return (run(1600) - run(400)) / 1200;
}

TEST(Simulate, BubblesMatchThePapers) {
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    const uint32_t m = 4 * ranks;
    const PipelineTimes times = equal_times(ranks, 100, 200);
    EXPECT_EQ(total(gpipe(ranks, m).value(), times), (m + ranks - 1) * 300);
    EXPECT_EQ(total(one_f_one_b(plain_warmups(ranks), m).value(), times), (m + ranks - 1) * 300);
    // ZB-H1: (P - 1)(F + I - W). ZB-H2 has no bubble but for the first forward steps.
    EXPECT_EQ(total(zero_bubble_h1(ranks, m).value(), times), m * 300 + (ranks - 1) * 100);
    EXPECT_EQ(total(zero_bubble_h2(ranks, m).value(), times), m * 300 + (ranks - 1) * 100);
    // So does ZB-V, with the memory of 1F1B.
    const PipelineTimes whole = equal_times(2 * ranks, 100, 200);
    const Schedule zb_v = zero_bubble_v(ranks, m).value();
    EXPECT_EQ(total(zb_v, whole), m * 600 + (ranks - 1) * 100);
    EXPECT_THAT(count_live(zb_v).ranks, Each(2 * ranks));
    // DualPipe-V: (stages / 2 - 1)(F + B + B - 3 W), with one activation more than stages.
    if (ranks > 1) {
      const Schedule dual = dual_pipe_v(ranks, m).value();
      EXPECT_EQ(total(dual, whole), m * 600 + (ranks - 1) * 200);
      EXPECT_THAT(count_live(dual).ranks, Each(2 * ranks + 1));
    }
    // Interleaved: the bubble of 1F1B, divided by the chunks.
    const PipelineTimes halves = equal_times(2 * ranks, 50, 100);
    EXPECT_EQ(total(interleaved(ranks, 2, m).value(), halves), m * 300 + (ranks - 1) * 150);
  }
}

// Hapt, lemmas 1 and 2: with K warm-up steps on the first of two stages, a micro-batch takes
// max(f + b, 2 (f + b + c) / K).
TEST(Simulate, TwoStagesFollowHaptsLemmas) {
  for (const uint32_t warmup : {1u, 2u, 3u, 4u, 5u, 7u}) {
    for (const uint64_t way : {0u, 100u, 250u, 300u, 450u, 600u, 900u}) {
      const double expected = std::max(300.0, 2.0 * (300.0 + static_cast<double>(way)) / warmup);
      EXPECT_NEAR(slope({warmup, 1}, equal_times(2, 100, 200, {.busy_ns = 0, .latency_ns = way})),
                  expected, expected / 1000)
          << warmup << " warm-up steps, " << way;
    }
  }
}

// As the lemmas, between two stages of which the second one has warm-up steps of its own: K is the
// difference, and one more.
TEST(Simulate, RateAcrossASlowBoundaryFollowsTheWarmupDifference) {
  for (const uint64_t way : {100u, 300u, 800u}) {
    PipelineTimes times = equal_times(4, 100, 200);
    times.forward[0].latency_ns = times.backward[0].latency_ns = way;
    for (const uint32_t first : {4u, 5u, 6u, 8u, 11u}) {
      const double expected =
          std::max(300.0, 2.0 * (300.0 + static_cast<double>(way)) / (first - 2));
      EXPECT_NEAR(slope({first, 3, 2, 1}, times), expected, expected / 1000) << way << " " << first;
    }
  }
}

// A boundary in the middle of four stages, which takes |way| for each direction.
double time_per_micro_batch(const std::vector<uint32_t>& warmups, uint64_t way) {
  PipelineTimes times = equal_times(4, 100, 200);
  times.forward[1] = times.backward[1] = {.busy_ns = way / 3, .latency_ns = way - way / 3};
  return slope(warmups, times);
}

TEST(Simulate, EagerAndVirtualWarmUpsHideHalfAStage) {
  for (const uint64_t way : {30u, 100u, 149u, 150u}) {
    EXPECT_NEAR(time_per_micro_batch(virtual_warmups({false, true, false}), way), 300, 0.3) << way;
    EXPECT_NEAR(time_per_micro_batch(eager_warmups(4), way), 300, 0.3) << way;
  }
  EXPECT_GT(time_per_micro_batch(virtual_warmups({false, true, false}), 160), 301);
  EXPECT_GT(time_per_micro_batch(plain_warmups(4), 30), 303);
}

TEST(Simulate, HidingWarmupsHideAnyBoundaryTime) {
  for (const uint64_t way : {150u, 151u, 299u, 300u, 301u, 700u, 2000u}) {
    const std::vector<uint64_t> stages(4, 300);
    const BoundaryTime slow{.busy_ns = std::min<uint64_t>(way / 3, 300),
                            .latency_ns = way - std::min<uint64_t>(way / 3, 300)};
    const std::vector<uint32_t> warmups = hiding_warmups(stages, {{}, slow, {}}, 0).counts;
    PipelineTimes times = equal_times(4, 100, 200);
    times.forward[1] = times.backward[1] = slow;
    EXPECT_NEAR(slope(warmups, times), 300, 0.3) << way;
  }
}

TEST(Simulate, BuffersForItemsInTransitAvoidDelay) {
  for (uint64_t busy = 0; busy <= 30; busy += 6) {
    for (uint64_t latency = 0; latency <= 120; latency += 7) {
      PipelineTimes times = equal_times(3, 10, 20);
      times.forward = times.backward = {{.busy_ns = busy, .latency_ns = latency},
                                        {.busy_ns = latency % 30, .latency_ns = busy}};
      const HidingWarmups warmups = hiding_warmups({30, 30, 30}, times.forward, 0);
      const Schedule schedule = one_f_one_b(warmups.counts, 40).value();
      std::vector<uint32_t> in_flight = needed_in_flight(schedule).value();
      for (size_t i = 0; i < 2; ++i) in_flight[i] += 1 + items_on_the_way(times.forward[i], 30);
      EXPECT_EQ(simulate(schedule, times, {.in_flight = in_flight}).value().total_ns,
                simulate(schedule, times).value().total_ns)
          << busy << " " << latency;
    }
  }
}

// The link is busy for longer than a stage: that alone decides.
TEST(Simulate, BusyLinkLimitsTheRate) {
  const BoundaryTime slow{.busy_ns = 400, .latency_ns = 100};
  const HidingWarmups warmups = hiding_warmups({300, 300}, {slow}, 0);
  EXPECT_THAT(warmups.exposed, ElementsAre(0));
  EXPECT_NEAR(slope(warmups.counts, equal_times(2, 100, 200, slow)), 400, 0.4);
}

// CrossPipe (ATC 2025), table 5: seconds per micro-batch on eight stages with a slow boundary in
// the middle. The whole step and W follow from the first cells; the other cells are predicted.
TEST(Simulate, TimesMatchCrossPipesMeasurements) {
  constexpr double kForward = 0.038;
  constexpr double kStep = 0.1050;
  constexpr double kWeight = 0.0206;
  struct Row {
    double latency, busy, one_f_one_b, zero_bubble;
  };
  for (const Row& row :
       {Row{0, 0, 0.151, 0.133}, Row{0.25, 0.25, 0.168, 0.150}, Row{0.25, 2, 0.241, 0.230},
        Row{2, 0.25, 0.242, 0.229}, Row{2, 2, 0.321, 0.309}}) {
    const auto ns = [](double seconds) {
      return static_cast<uint64_t>(std::llround(seconds * 1e9));
    };
    PipelineTimes times = equal_times(8, ns(kForward), ns(kStep - kForward));
    for (StageTime& stage : times.stages) {
      stage.input_grad_ns = ns(kStep - kForward - kWeight);
      stage.weight_grad_ns = ns(kWeight);
    }
    times.forward[3] = times.backward[3] = {.busy_ns = ns(row.busy * kForward),
                                            .latency_ns = ns(row.latency * kForward)};
    const auto seconds = [&](const Schedule& schedule) {
      return static_cast<double>(total(add_transfers(schedule, 0), times)) / 16e9;
    };
    EXPECT_NEAR(seconds(one_f_one_b(plain_warmups(8), 16).value()), row.one_f_one_b,
                0.04 * row.one_f_one_b);
    EXPECT_NEAR(seconds(zero_bubble_h1(8, 16).value()), row.zero_bubble, 0.04 * row.zero_bubble);
  }
}

// The sender learns that an item was taken when the news has come back.
TEST(Simulate, CreditsTakeTheLatencyOfTheOtherDirection) {
  const Schedule schedule = forward_only(2, 1, 31).value();
  PipelineTimes times;
  times.stages.assign(2, {.forward_ns = 10});
  times.forward = {{.busy_ns = 2, .latency_ns = 45}};
  times.backward = {{.busy_ns = 0, .latency_ns = 51}};
  const auto total_ns = [&](uint32_t in_flight) {
    return simulate(schedule, times, {.in_flight = {in_flight}, .keeps_spans = false})->total_ns;
  };
  // An item starts at 10, is taken at 57, and the next one starts at 108.
  EXPECT_EQ(total_ns(1), 10u + 30 * 98 + 47 + 10);
  EXPECT_EQ(total_ns(2), 10u + 15 * 98 + 47 + 10);
  // With eleven the first rank never waits, and with ten neither, since credits come in time.
  EXPECT_EQ(total_ns(11), 31u * 10 + 47 + 10);
  EXPECT_EQ(total_ns(10), 31u * 10 + 47 + 10);
  EXPECT_GT(total_ns(9), 31u * 10 + 47 + 10);
}

// Moves a clock by single nanoseconds. In each it lets everything happen that can. It shares no
// code with the simulators.
class SlowClock {
 public:
  SlowClock(const Schedule& schedule, const PipelineTimes& times, std::vector<uint32_t> in_flight,
            StepLengths lengths)
      : schedule_(schedule),
        times_(times),
        in_flight_(std::move(in_flight)),
        lengths_(std::move(lengths)) {
    for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) ranks_.push_back({});
    has_receives_ = level_of(schedule) != Level::kCompute;
  }

  // Returns the spans of all actions; none if nothing happens any more before the end.
  std::vector<std::vector<Span>> run() {
    uint64_t last_change = 0;
    while (!all_ended()) {
      while (happens()) last_change = now_;
      if (now_ > last_change + 1000) return {};
      ++now_;
    }
    std::vector<std::vector<Span>> spans;
    for (const Rank& rank : ranks_) spans.push_back(rank.spans);
    return spans;
  }

 private:
  struct Rank {
    std::vector<Span> spans;  // of the actions that have started
    size_t ended = 0;
  };
  struct Item {
    uint32_t micro_batch = 0;
    bool is_posted = false;
    bool has_started = false;
    uint64_t left_ns = 0;
    uint64_t arrived_ns = 0;
  };
  struct Line {
    std::vector<Item> items;       // in the order of their sends
    std::vector<uint32_t> posted;  // receives
    std::vector<uint64_t> taken_ns;
  };
  using Key = std::tuple<bool, uint32_t>;  // backward, stage before the boundary

  bool all_ended() const {
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      if (ranks_[rank].ended != schedule_.actions[rank].size()) return false;
    }
    return true;
  }

  bool happens() {
    bool any = false;
    for (auto& [key, line] : lines_) any = start_transfer(key, line) || any;
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      any = end_action(rank) || any;
      any = start_action(rank) || any;
    }
    return any;
  }

  bool start_transfer(const Key& key, Line& line) {
    const auto [backward, stage] = key;
    const BoundaryTime time = (backward ? times_.backward : times_.forward)[stage];
    for (size_t i = 0; i < line.items.size(); ++i) {
      Item& item = line.items[i];
      if (item.has_started) continue;
      if (i > 0 && line.items[i - 1].left_ns > now_) return false;
      if (has_receives_) {
        if (std::count(line.posted.begin(), line.posted.end(), item.micro_batch) == 0) return false;
      } else if (!in_flight_.empty() && i >= known_taken(key, line) + in_flight_[stage]) {
        return false;
      }
      item.has_started = true;
      item.left_ns = now_ + time.busy_ns;
      item.arrived_ns = item.left_ns + time.latency_ns;
      return true;
    }
    return false;
  }

  // Returns how many items the sender knows to be taken. The news goes the other way.
  size_t known_taken(const Key& key, const Line& line) const {
    const auto [backward, stage] = key;
    const uint64_t way_ns = (backward ? times_.forward : times_.backward)[stage].latency_ns;
    return static_cast<size_t>(
        std::count_if(line.taken_ns.begin(), line.taken_ns.end(),
                      [&](uint64_t taken_ns) { return taken_ns + way_ns <= now_; }));
  }

  bool has_arrived(const Key& key, uint32_t micro_batch) {
    for (const Item& item : lines_[key].items) {
      if (item.micro_batch == micro_batch) return item.has_started && item.arrived_ns <= now_;
    }
    return false;
  }
  bool has_room(const Key& key) {
    const Line& line = lines_[key];
    if (has_receives_ || in_flight_.empty()) return true;
    const size_t left = static_cast<size_t>(
        std::count_if(line.items.begin(), line.items.end(),
                      [&](const Item& item) { return item.has_started && item.left_ns <= now_; }));
    return line.items.size() < left + in_flight_[std::get<1>(key)];
  }

  bool crosses(uint32_t stage) const { return schedule_.crosses(stage); }

  bool may_start(const Action& action) {
    const uint32_t stage = action.stage;
    const bool before = stage > 0 && crosses(stage - 1);
    switch (action.kind) {
      case ActionKind::kForward:
        return (!before || has_arrived({false, stage - 1}, action.micro_batch)) &&
               (!crosses(stage) || has_room({false, stage}));
      case ActionKind::kBackward:
      case ActionKind::kInputGrad:
        return (!crosses(stage) || has_arrived({true, stage}, action.micro_batch)) &&
               (!before || has_room({true, stage - 1}));
      case ActionKind::kWaitSendForward:
        return has_arrived({false, stage}, action.micro_batch);
      case ActionKind::kWaitReceiveForward:
        return has_arrived({false, stage - 1}, action.micro_batch);
      case ActionKind::kWaitSendBackward:
        return has_arrived({true, stage - 1}, action.micro_batch);
      case ActionKind::kWaitReceiveBackward:
        return has_arrived({true, stage}, action.micro_batch);
      default:
        return true;
    }
  }

  uint64_t length(const Action& action) const {
    const StageTime& time = times_.stages[action.stage];
    switch (action.kind) {
      case ActionKind::kForward:
        return time.forward_ns;
      case ActionKind::kBackward:
        return time.backward_ns;
      case ActionKind::kInputGrad:
        return time.input_grad_ns;
      case ActionKind::kWeightGrad:
        return time.weight_grad_ns;
      case ActionKind::kRecompute:
        return time.recompute_ns;
      default:
        return 0;
    }
  }

  bool start_action(uint32_t number) {
    Rank& rank = ranks_[number];
    const std::vector<Action>& actions = schedule_.actions[number];
    const size_t at = rank.spans.size();
    if (at != rank.ended || at == actions.size()) return false;
    const size_t count = actions[at].overlaps_next ? 2 : 1;
    uint64_t sum = 0;
    uint64_t shorter = UINT64_MAX;
    for (size_t i = at; i < at + count; ++i) {
      if (!may_start(actions[i])) return false;
      sum += length(actions[i]);
      shorter = std::min(shorter, length(actions[i]));
    }
    if (count == 2) sum -= shorter * times_.overlap_ppm / 1'000'000;
    if (!lengths_.empty()) sum = lengths_[number][at];
    for (size_t i = at; i < at + count; ++i) {
      rank.spans.push_back({now_, now_ + sum});
      if (has_receives_) continue;
      const uint32_t stage = actions[i].stage;
      if (actions[i].kind == ActionKind::kForward && stage > 0 && crosses(stage - 1)) {
        lines_[{false, stage - 1}].taken_ns.push_back(now_);
      }
      if (gives_input_grad(actions[i].kind) && crosses(stage))
        lines_[{true, stage}].taken_ns.push_back(now_);
    }
    return true;
  }

  bool end_action(uint32_t number) {
    Rank& rank = ranks_[number];
    if (rank.ended == rank.spans.size() || rank.spans[rank.ended].end_ns > now_) return false;
    const Action& action = schedule_.actions[number][rank.ended++];
    const uint32_t stage = action.stage;
    const Item item{.micro_batch = action.micro_batch};
    const bool forward = has_receives_ ? action.kind == ActionKind::kSendForward
                                       : action.kind == ActionKind::kForward && crosses(stage);
    const bool backward = has_receives_
                              ? action.kind == ActionKind::kSendBackward
                              : gives_input_grad(action.kind) && stage > 0 && crosses(stage - 1);
    if (forward) lines_[{false, stage}].items.push_back(item);
    if (backward) lines_[{true, stage - 1}].items.push_back(item);
    if (action.kind == ActionKind::kReceiveForward) {
      lines_[{false, stage - 1}].posted.push_back(action.micro_batch);
    }
    if (action.kind == ActionKind::kReceiveBackward) {
      lines_[{true, stage}].posted.push_back(action.micro_batch);
    }
    return true;
  }

  const Schedule& schedule_;
  const PipelineTimes& times_;
  const std::vector<uint32_t> in_flight_;
  const StepLengths lengths_;
  bool has_receives_ = false;
  uint64_t now_ = 0;
  std::vector<Rank> ranks_;
  std::map<Key, Line> lines_;
};

// Gives each direction of each boundary a resource of its own.
EventInput events_of(const Schedule& schedule, const PipelineTimes& times,
                     const std::vector<uint32_t>& in_flight) {
  EventInput input;
  EventPipeline& pipeline = input.pipelines.emplace_back();
  pipeline.schedule = schedule;
  pipeline.stages = times.stages;
  pipeline.in_flight = in_flight;
  for (size_t i = 0; i < times.forward.size(); ++i) {
    const auto route = [&](const BoundaryTime& time) {
      return Route{.hops = {{.busy_ns = time.busy_ns,
                             .latency_ns = time.latency_ns,
                             .resources = {input.resources++}}}};
    };
    pipeline.forward.push_back(route(times.forward[i]));
    pipeline.backward.push_back(route(times.backward[i]));
  }
  input.overlap_ppm = times.overlap_ppm;
  return input;
}

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  uint32_t operator()(uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(random_() % (most - least + 1));
  }

 private:
  std::mt19937 random_;
};

// Returns a schedule of which each next step is any one that may come.
Schedule any_order(Random& random, uint32_t ranks, uint32_t micro_batches) {
  Schedule schedule{.micro_batches = micro_batches, .rank_of = {}, .actions = {}};
  for (uint32_t rank = 0; rank < ranks; ++rank) schedule.rank_of.push_back(rank);
  schedule.actions.resize(ranks);
  const bool splits = random(0, 1) == 1;
  const ActionKind backward = splits ? ActionKind::kInputGrad : ActionKind::kBackward;
  std::map<std::tuple<ActionKind, uint32_t, uint32_t>, bool> done;
  const auto may_come = [&](ActionKind kind, uint32_t stage, uint32_t i) {
    if (done[{kind, stage, i}]) return false;
    if (kind == ActionKind::kForward) return stage == 0 || done[{kind, stage - 1, i}];
    if (kind == ActionKind::kWeightGrad) return done[{backward, stage, i}];
    return done[{ActionKind::kForward, stage, i}] &&
           (stage + 1 == ranks || done[{kind, stage + 1, i}]);
  };
  for (uint32_t left = ranks * micro_batches * (splits ? 3 : 2); left > 0;) {
    const uint32_t stage = random(0, ranks - 1);
    const uint32_t i = random(0, micro_batches - 1);
    const uint32_t which = random(0, splits ? 2 : 1);
    const ActionKind kind = which == 0   ? ActionKind::kForward
                            : which == 1 ? backward
                                         : ActionKind::kWeightGrad;
    if (!may_come(kind, stage, i)) continue;
    done[{kind, stage, i}] = true;
    schedule.actions[stage].push_back(
        {.micro_batch = i, .stage = static_cast<uint16_t>(stage), .kind = kind});
    --left;
  }
  return schedule;
}

// Returns a schedule of any kind and level, or nothing.
Result<Schedule> random_schedule(Random& random, std::vector<uint32_t>* out_in_flight) {
  const uint32_t ranks = random(1, 4);
  const uint32_t micro_batches = random(1, 7);
  const auto compute = [&]() -> Result<Schedule> {
    switch (random(0, 8)) {
      case 0:
        return one_f_one_b(eager_warmups(ranks), micro_batches);
      case 1:
        return one_f_one_b(plain_warmups(ranks), micro_batches);
      case 2:
        return zero_bubble_h2(ranks, micro_batches);
      case 3:
        return looped_breadth_first(ranks, 2, micro_batches);
      case 4:
        return interleaved(ranks, 2, micro_batches);
      case 5:
        return interleaved_zero_bubble(ranks, 2, micro_batches);
      case 6:
        return zero_bubble_v(ranks, micro_batches);
      case 7:
        return dual_pipe_v(ranks, micro_batches);
      default:
        return four_phase(plain_warmups(ranks), std::vector<bool>(ranks, true), micro_batches);
    }
  }();
  // Items are taken in another order than they arrive, which only level 1 allows.
  if (random(0, 4) == 0) {
    Schedule any = any_order(random, ranks, micro_batches);
    if (random(0, 1) == 0) *out_in_flight = needed_in_flight(any).value();
    return any;
  }
  if (!compute.ok()) return compute.status();
  switch (random(0, 3)) {
    case 0:
      return compute;
    case 1:
      *out_in_flight = needed_in_flight(compute.value()).value();
      for (uint32_t& each : *out_in_flight) each += random(0, 1);
      return compute;
    case 2:
      return add_transfers(compute.value(), random(0, 2));
    default:
      return add_waits(add_transfers(compute.value(), random(1, 2)), SendWaits::kBeforeReuse,
                       random(1, 3));
  }
}

PipelineTimes random_times(Random& random, uint32_t stages) {
  PipelineTimes times;
  for (uint32_t i = 0; i < stages; ++i) {
    times.stages.push_back({.forward_ns = random(0, 9),
                            .backward_ns = random(0, 9),
                            .input_grad_ns = random(0, 9),
                            .weight_grad_ns = random(0, 9),
                            .recompute_ns = random(0, 3)});
  }
  for (uint32_t i = 0; i + 1 < stages; ++i) {
    times.forward.push_back({.busy_ns = random(0, 12), .latency_ns = random(0, 12)});
    times.backward.push_back({.busy_ns = random(0, 12), .latency_ns = random(0, 12)});
  }
  times.overlap_ppm = random(0, 2) * 500'000;
  return times;
}

StepLengths random_lengths(Random& random, const Schedule& schedule) {
  StepLengths lengths;
  for (const std::vector<Action>& actions : schedule.actions) {
    std::vector<uint64_t>& own = lengths.emplace_back();
    for (size_t i = 0; i < actions.size(); ++i) own.push_back(random(0, 9));
  }
  return lengths;
}

TEST(Simulate, BothSimulatorsMatchAReferenceSimulation) {
  Random random(3);
  int compared = 0;
  const int rounds = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 12'000 : 1'200;
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint32_t> in_flight;
    const Result<Schedule> schedule = random_schedule(random, &in_flight);
    if (!schedule.ok()) continue;
    const PipelineTimes times = random_times(random, schedule.value().stages());
    StepLengths lengths;
    if (random(0, 2) == 0) lengths = random_lengths(random, schedule.value());
    const Result<Forecast> paths = simulate(
        schedule.value(), times, {.in_flight = in_flight, .lengths = lengths, .keeps_spans = true});
    const Result<EventForecast> events =
        simulate_events(events_of(schedule.value(), times, in_flight), true);
    const std::vector<std::vector<Span>> slow =
        SlowClock(schedule.value(), times, in_flight, lengths).run();
    ASSERT_EQ(paths.ok(), !slow.empty()) << write_csv(schedule.value());
    if (slow.empty()) {
      ASSERT_FALSE(events.ok()) << write_csv(schedule.value());
      continue;
    }
    ++compared;
    ASSERT_EQ(paths.value().actions, slow) << round << "\n" << write_csv(schedule.value());
    if (!lengths.empty()) continue;
    ASSERT_TRUE(events.ok()) << write_csv(schedule.value());
    ASSERT_EQ(events.value().pipelines[0].actions, slow) << round;
    ASSERT_EQ(events.value().total_ns, paths.value().total_ns);
    ASSERT_EQ(events.value().pipelines[0].busy_ns, paths.value().busy_ns);
  }
  EXPECT_GT(compared, rounds * 3 / 4);
}

TEST(Simulate, IdleTimeIsTotalMinusBusyTime) {
  const Forecast forecast =
      simulate(one_f_one_b(plain_warmups(2), 2).value(), equal_times(2, 100, 200)).value();
  EXPECT_EQ(forecast.total_ns, 900u);
  EXPECT_THAT(forecast.busy_ns, ElementsAre(600, 600));
  EXPECT_EQ(forecast.idle_ns(1), 300u);
  EXPECT_EQ(forecast.bubble_ppm(), 333'333u);
}

// One link for both directions, which takes 100 for an item.
TEST(Events, SharedResourcesServeOneTransferAtATime) {
  EventInput input = events_of(one_f_one_b({2, 1}, 2).value(), equal_times(2, 10, 10), {});
  input.resources = 1;
  for (auto* routes : {&input.pipelines[0].forward, &input.pipelines[0].backward}) {
    (*routes)[0].hops[0] = {.busy_ns = 100, .latency_ns = 0, .resources = {0}};
  }
  const EventForecast forecast = simulate_events(input, true).value();
  // Forward: 10-110 and 110-210. Backward: ready at 130, and 230: 210-310 and 310-410.
  EXPECT_EQ(forecast.pipelines[0].actions[1][0].start_ns, 110u);
  EXPECT_EQ(forecast.pipelines[0].actions[0][2].start_ns, 310u);
  EXPECT_EQ(forecast.total_ns, 420u);
  EXPECT_THAT(forecast.resource_busy_ns, ElementsAre(400));
}

// The second transfer needs both resources, and waits for the first. The third waits for its turn.
TEST(Events, TransfersGetResourcesInRequestOrder) {
  EventInput input;
  input.resources = 2;
  const std::vector<std::vector<uint32_t>> resources = {{0}, {0, 1}, {1}};
  for (uint64_t i = 0; i < 3; ++i) {
    EventPipeline& pipeline = input.pipelines.emplace_back();
    pipeline.schedule = forward_only(2, 1, 1).value();
    pipeline.stages.assign(2, {.forward_ns = 10 * (i + 1)});
    pipeline.forward.push_back(
        {.hops = {{.busy_ns = 100 - 30 * i, .latency_ns = 0, .resources = resources[i]}}});
  }
  const EventForecast forecast = simulate_events(input, true).value();
  EXPECT_EQ(forecast.pipelines[0].actions[1][0].start_ns, 110u);
  EXPECT_EQ(forecast.pipelines[1].actions[1][0].start_ns, 180u);
  EXPECT_EQ(forecast.pipelines[2].actions[1][0].start_ns, 220u);
}

// Copy out, wire and copy in: the wire is the slowest.
TEST(Events, SlicesOfAStagedTransferOverlap) {
  EventInput input;
  input.resources = 3;
  EventPipeline& pipeline = input.pipelines.emplace_back();
  pipeline.schedule = forward_only(2, 1, 1).value();
  pipeline.stages.assign(2, {.forward_ns = 10});
  Route route{.hops = {{.busy_ns = 40, .latency_ns = 0, .resources = {0}},
                       {.busy_ns = 80, .latency_ns = 5, .resources = {1}},
                       {.busy_ns = 20, .latency_ns = 0, .resources = {2}}}};
  pipeline.forward = {route};
  EXPECT_EQ(simulate_events(input).value().total_ns, 10u + 40 + 85 + 20 + 10);
  pipeline.forward[0].slices = 4;
  // The wire starts when the first quarter is copied out, and the last quarter is copied in at the
  // end.
  EXPECT_EQ(simulate_events(input).value().total_ns, 10u + 10 + 85 + 5 + 10);
  // A slow first hop: the wire ends a quarter of its time after the last part has come.
  pipeline.forward[0].hops[0].busy_ns = 400;
  EXPECT_EQ(simulate_events(input).value().total_ns, 10u + 400 + 20 + 5 + 5 + 10);
}

TEST(Events, ReductionsWaitForAllPipelines) {
  EventInput input;
  input.resources = 1;
  for (const uint32_t micro_batches : {2u, 5u}) {
    EventPipeline& pipeline = input.pipelines.emplace_back();
    pipeline.schedule = add_reductions(one_f_one_b(plain_warmups(2), micro_batches).value());
    pipeline.stages.assign(2, {.forward_ns = 10, .backward_ns = 20});
  }
  input.reductions.push_back(
      {.members = {{0, 0}, {1, 0}},
       .route = {.hops = {{.busy_ns = 50, .latency_ns = 0, .resources = {0}}}}});
  input.reductions.push_back(
      {.members = {{0, 1}, {1, 1}},
       .route = {.hops = {{.busy_ns = 50, .latency_ns = 0, .resources = {0}}}}});
  const EventForecast forecast = simulate_events(input).value();
  EXPECT_EQ(forecast.pipelines[0].total_ns, 90u);
  EXPECT_EQ(forecast.pipelines[1].total_ns, 180u);
  // The last stage ends first, and its reduction delays the other one.
  EXPECT_EQ(forecast.reductions[1], (Span{160, 210}));
  EXPECT_EQ(forecast.reductions[0], (Span{180, 260}));
  EXPECT_EQ(forecast.total_ns, 260u);
}

// A pipeline of two stages beside one of one stage, which holds the items of both.
TEST(Events, StageTakesPartInTheReductionsOfAllItsItems) {
  EventInput input;
  input.resources = 1;
  input.pipelines.resize(2);
  input.pipelines[0].schedule = add_reductions(one_f_one_b({2, 1}, 2).value());
  input.pipelines[0].stages.assign(2, {.forward_ns = 10, .backward_ns = 20});
  input.pipelines[1].schedule = add_reductions(one_f_one_b({1}, 1).value());
  input.pipelines[1].stages.assign(1, {.forward_ns = 25, .backward_ns = 50});
  const Route route{.hops = {{.busy_ns = 100, .latency_ns = 0, .resources = {0}}}};
  input.reductions = {{.members = {{0, 0}, {1, 0}}, .route = route},
                      {.members = {{0, 1}, {1, 0}}, .route = route}};
  const EventForecast forecast = simulate_events(input).value();
  // The last stage of the first pipeline ends at 70, the single one at 75, and the first one at 90.
  EXPECT_EQ(forecast.reductions[1], (Span{75, 175}));
  EXPECT_EQ(forecast.reductions[0], (Span{90, 275}));
}

TEST(Events, InvalidReductionsAreRefused) {
  EventInput input = events_of(one_f_one_b({1, 1}, 1).value(), equal_times(2, 1, 1), {});
  input.reductions.push_back({.members = {{0, 0}}, .route = {}});
  EXPECT_EQ(simulate_events(input).status().text(),
            "reduction 0: 1 of its stages have no REDUCE_GRAD");
  input.reductions.push_back({.members = {{0, 1}, {0, 1}}, .route = {}});
  EXPECT_EQ(simulate_events(input).status().text(),
            "stage 1 of pipeline 0 is twice in a reduction");
  input.reductions[1].members.clear();
  EXPECT_EQ(simulate_events(input).status().text(), "a reduction has no stage");
}

TEST(Events, StepsWaitForGatheredWeights) {
  EventInput input;
  input.resources = 1;
  EventPipeline& pipeline = input.pipelines.emplace_back();
  pipeline.schedule = read_csv("0UNSHARD,1UNSHARD,0F0,1F0,0RESHARD,1B0,0B0\n").value();
  pipeline.stages.assign(2, {.forward_ns = 10, .backward_ns = 20});
  pipeline.gathers.assign(2, {.hops = {{.busy_ns = 30, .latency_ns = 0, .resources = {0}}}});
  const EventForecast forecast = simulate_events(input, true).value();
  EXPECT_EQ(forecast.pipelines[0].actions[0][2].start_ns, 30u);
  EXPECT_EQ(forecast.pipelines[0].actions[0][3].start_ns, 60u);
  EXPECT_EQ(forecast.total_ns, 110u);
}

TEST(Simulate, InputsOfMismatchedSizesAreRefused) {
  const Schedule schedule = one_f_one_b(plain_warmups(3), 2).value();
  PipelineTimes times = equal_times(2, 1, 1);
  EXPECT_THAT(std::string(simulate(schedule, times).status().text()),
              HasSubstr("times of 2 stages for a schedule of 3"));
  times = equal_times(3, 1, 1);
  times.backward.pop_back();
  EXPECT_THAT(std::string(simulate(schedule, times).status().text()),
              HasSubstr("times of 1 boundaries for a schedule of 3 stages"));
  times = equal_times(3, 1, 1);
  EXPECT_FALSE(simulate(schedule, times, {.in_flight = {1, 0}}).ok());
  EXPECT_FALSE(simulate(schedule, times, {.in_flight = {1}}).ok());
  EventInput input = events_of(schedule, times, {});
  const auto expect_refused = [&](const StepLengths& lengths, const char* text) {
    EXPECT_EQ(simulate(schedule, times, {.lengths = lengths}).status().text(), text);
  };
  const std::vector<uint64_t> four(4, 1);
  expect_refused({four, four}, "lengths of the steps of 2 ranks for a schedule of 3");
  expect_refused({four, {1, 1, 1}, four}, "lengths of 3 steps of rank 1, which has 4");
  const uint64_t half = uint64_t{1} << 61;
  expect_refused({four, four, {half, half, half, 1}},
                 "the times of all steps are more than 2^62 ns together");
  input.pipelines[0].forward[0].hops[0].resources = {99};
  EXPECT_EQ(simulate_events(input).status().text(), "pipeline 0: a route uses resource 99 of 4");
  input.pipelines[0].forward[0].hops[0].resources = {1, 0, 1};
  EXPECT_EQ(simulate_events(input).status().text(), "pipeline 0: a hop uses resource 1 twice");
  input.pipelines[0].forward.pop_back();
  EXPECT_FALSE(simulate_events(input).ok());
  input.pipelines.clear();
  input.reductions.push_back({.members = {{0, 0}}, .route = {}});
  EXPECT_THAT(std::string(simulate_events(input).status().text()), HasSubstr("does not exist"));
}

TEST(Simulate, ErrorNamesTheDeadlockedStep) {
  const Schedule stuck = read_csv("0B0,0F0\n1F0,1B0\n").value();
  EXPECT_EQ(simulate(stuck, equal_times(2, 1, 1)).status().text(),
            "rank 0 can't go on at 0B0: the schedule is not sound, or receives are posted in "
            "another order "
            "than the items are sent");
  EXPECT_EQ(simulate_events(events_of(stuck, equal_times(2, 1, 1), {})).status().text(),
            "pipeline 0: rank 0 can't go on at 0B0");
}

// Steps and transfers without any time do not nest calls.
TEST(Events, SimulationOfThousandsOfZeroTimeStagesEnds) {
  EventInput input;
  EventPipeline& pipeline = input.pipelines.emplace_back();
  pipeline.schedule = forward_only(kMaxStages, 1, 2).value();
  pipeline.stages.resize(kMaxStages);
  EXPECT_EQ(simulate_events(input).value().total_ns, 0u);
}

}  // namespace
}  // namespace hetcomm::pipeline
