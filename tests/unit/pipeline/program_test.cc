// Programs of the ranks of a pipeline:
//   * all ranks' programs together come to their end, in whatever order ranks and transfers go on,
//     and no buffer is written while somebody may still read it
//   * both ends of a channel count its items alike
//   * a slot belongs to one activation, and there are as many as the peak
//   * channels, buffers and releases of schedules that are known by hand
#include "pipeline/execute/program.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/text.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm::pipeline {
namespace {

using test::on_ranks;
using test::plan_of;

// Plays the programs of all ranks of a plan. Which rank or transfer goes on next is drawn.
class Players {
 public:
  Players(const PipelinePlan& plan, unsigned seed, RunKind kind = RunKind::kTrain) : random_(seed) {
    auto views = check_plan(plan);
    EXPECT_TRUE(views.ok()) << views.status().text();
    for (uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
      programs_.push_back(program_of(plan, views.value(), rank, kind));
    }
    for (const Program& program : programs_) {
      Player& player = players_.emplace_back();
      player.ends.resize(program.channels.size());
      for (size_t i = 0; i < program.channels.size(); ++i)
        open(program.channels[i], player.ends[i]);
    }
  }

  // Returns whether all came to their end.
  bool play() {
    std::vector<size_t> order(players_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    while (!ended()) {
      std::shuffle(order.begin(), order.end(), random_);
      bool went_on = false;
      for (const size_t rank : order) {
        if (random_() % 2 == 0) went_on |= move_items();
        const size_t most = random_() % 4;
        for (size_t i = 0; i <= most; ++i) went_on |= step(rank);
      }
      if (!went_on && !move_items()) return false;
    }
    return true;
  }

 private:
  static constexpr uint32_t kNobody = UINT32_MAX;

  // One rank's end of a channel. Buffers hold the item that uses them.
  struct End {
    std::vector<uint32_t> buffers;
    std::map<uint32_t, uint32_t> buffer_of;  // by micro-batch
    std::set<uint32_t> under_way;  // items that were sent or for which a receive is posted
    uint32_t posted = 0;
    uint32_t sent = 0;
  };
  struct Player {
    size_t at = 0;  // in the program
    std::vector<End> ends;
  };

  void open(const ProgramChannel& channel, End& end) {
    end.buffers.assign(channel.buffers, kNobody);
    if (!channel.order.empty()) {
      EXPECT_GT(channel.buffers, 0u);
    }
    for (size_t i = 0; i < channel.order.size(); ++i) EXPECT_EQ(channel.item[channel.order[i]], i);
    if (channel.role != ChannelRole::kReceive) return;
    for (uint32_t i = 0; i < channel.in_flight; ++i) post(channel, end);
  }

  void post(const ProgramChannel& channel, End& end) {
    if (end.posted == channel.order.size()) return;
    occupy(end, channel.order[end.posted]);
    end.under_way.insert(end.posted++);
  }

  void occupy(End& end, uint32_t micro_batch) {
    const auto free = std::find(end.buffers.begin(), end.buffers.end(), kNobody);
    ASSERT_NE(free, end.buffers.end()) << "there is no buffer for " << micro_batch;
    *free = micro_batch;
    end.buffer_of[micro_batch] = static_cast<uint32_t>(free - end.buffers.begin());
  }
  void give_back(End& end, uint32_t micro_batch) {
    ASSERT_TRUE(end.buffer_of.contains(micro_batch));
    end.buffers[end.buffer_of[micro_batch]] = kNobody;
    end.buffer_of.erase(micro_batch);
  }

  // Moves some of the items that were sent and whose receive is posted.
  bool move_items() {
    bool moved = false;
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      for (size_t i = 0; i < programs_[rank].channels.size(); ++i) {
        const ProgramChannel& channel = programs_[rank].channels[i];
        if (channel.role != ChannelRole::kSend || random_() % 2 == 0) continue;
        moved |= move_item(channel, players_[rank].ends[i]);
      }
    }
    return moved || move_first();
  }
  // So that play() never gives up while an item can move.
  bool move_first() {
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      for (size_t i = 0; i < programs_[rank].channels.size(); ++i) {
        const ProgramChannel& channel = programs_[rank].channels[i];
        if (channel.role != ChannelRole::kSend) continue;
        if (move_item(channel, players_[rank].ends[i])) return true;
      }
    }
    return false;
  }
  bool move_item(const ProgramChannel& channel, End& sender) {
    End& receiver = other_end(channel);
    for (const uint32_t item : sender.under_way) {
      if (!receiver.under_way.contains(item)) continue;
      receiver.under_way.erase(item);
      sender.under_way.erase(item);
      return true;
    }
    return false;
  }
  End& other_end(const ProgramChannel& channel) {
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      for (size_t i = 0; i < programs_[rank].channels.size(); ++i) {
        const ProgramChannel& other = programs_[rank].channels[i];
        if (other.role != ChannelRole::kReceive || other.boundary != channel.boundary ||
            other.is_backward != channel.is_backward) {
          continue;
        }
        EXPECT_EQ(other.order, channel.order);
        EXPECT_EQ(other.in_flight, channel.in_flight);
        return players_[rank].ends[i];
      }
    }
    ADD_FAILURE() << "nobody receives from boundary " << channel.boundary;
    return players_[0].ends[0];
  }

  // Performs the next step of |rank|, or both of a pair, if it may run.
  bool step(size_t rank) {
    const Program& program = programs_[rank];
    Player& player = players_[rank];
    if (player.at == program.steps.size()) return false;
    const size_t count = program.steps[player.at].action.overlaps_next ? 2 : 1;
    for (size_t i = 0; i < count; ++i) {
      if (!may_run(program, player, program.steps[player.at + i])) return false;
    }
    for (size_t i = 0; i < count; ++i) take(program, player, program.steps[player.at + i]);
    for (size_t i = 0; i < count; ++i) finish(program, player, program.steps[player.at + i]);
    player.at += count;
    return true;
  }

  bool may_run(const Program& program, Player& player, const ProgramStep& step) {
    for (const uint32_t index : taken_by(program, step)) {
      const ProgramChannel& channel = program.channels[index];
      const uint32_t item = channel.item[step.action.micro_batch];
      End& end = player.ends[index];
      if (!end.buffer_of.contains(step.action.micro_batch) || end.under_way.contains(item)) {
        return false;
      }
    }
    for (const uint32_t index : made_by(program, step)) {
      const ProgramChannel& channel = program.channels[index];
      End& end = player.ends[index];
      if (channel.role != ChannelRole::kSend) continue;
      EXPECT_EQ(channel.item[step.action.micro_batch], end.sent) << "items out of order";
      if (end.sent >= channel.buffers && end.under_way.contains(end.sent - channel.buffers)) {
        return false;
      }
    }
    return true;
  }

  void take(const Program& program, Player& player, const ProgramStep& step) {
    for (const uint32_t index : taken_by(program, step)) {
      if (program.channels[index].role != ChannelRole::kReceive) continue;
      post(program.channels[index], player.ends[index]);
    }
    for (const uint32_t index : made_by(program, step)) {
      if (program.channels[index].role != ChannelRole::kLocal) continue;
      occupy(player.ends[index], step.action.micro_batch);
    }
  }

  void finish(const Program& program, Player& player, const ProgramStep& step) {
    for (const uint32_t index : made_by(program, step)) {
      if (program.channels[index].role != ChannelRole::kSend) continue;
      End& end = player.ends[index];
      end.under_way.insert(end.sent++);
    }
    const ProgramStage& stage = program.chunks[step.chunk];
    if (step.releases_inputs) {
      for (const uint32_t index : stage.inputs)
        give_back(player.ends[index], step.action.micro_batch);
    }
    if (step.releases_output_grads) {
      for (const uint32_t index : stage.output_grads) {
        give_back(player.ends[index], step.action.micro_batch);
      }
    }
  }

  bool ended() const {
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      if (players_[rank].at < programs_[rank].steps.size()) return false;
    }
    return true;
  }

  std::mt19937 random_;
  std::vector<Program> programs_;
  std::vector<Player> players_;
};

PipelinePlan named_plan(const std::string& name, uint32_t ranks, uint32_t micro_batches) {
  ScheduleParameters parameters;
  parameters.ranks = ranks;
  parameters.micro_batches = micro_batches;
  if (name == "virtual-1f1b") parameters.slow_boundaries = {0};
  if (name == "four-phase") parameters.recomputed_stages = {ranks - 1};
  if (name == "h-1f1b") {
    parameters.stage_ns.assign(ranks, 100);
    parameters.boundaries.assign(ranks - 1, {.busy_ns = 20, .latency_ns = 160});
  }
  auto made = make_schedule(name, parameters);
  EXPECT_TRUE(made.ok()) << name << ": " << made.status().text();
  PipelinePlan plan = plan_of(on_ranks(made->schedule.rank_of), name, micro_batches);
  plan.pipelines.front().schedule.parameters = parameters;
  return plan;
}

Program program_of_rank(const PipelinePlan& plan, uint32_t rank) {
  auto views = check_plan(plan);
  EXPECT_TRUE(views.ok()) << views.status().text();
  return program_of(plan, views.value(), rank, RunKind::kTrain);
}

TEST(Program, EveryScheduleCompletesInRandomOrders) {
  for (const std::string& name : schedule_names()) {
    for (const uint32_t ranks : {2u, 3u, 4u}) {
      for (const uint32_t depth : {0u, 1u, 3u}) {
        PipelinePlan plan = named_plan(name, ranks, 4 * ranks);
        for (PlanBoundary& each : plan.pipelines.front().boundaries) each.in_flight = depth;
        // Some schedules need more than one item in flight.
        if (depth == 1 && !check_plan(plan).ok()) continue;
        for (unsigned seed = 0; seed < 10; ++seed) {
          for (const RunKind kind : {RunKind::kTrain, RunKind::kEvaluate}) {
            ASSERT_TRUE(Players(plan, seed, kind).play())
                << name << " on " << ranks << " ranks, " << depth << " in flight, seed " << seed
                << (kind == RunKind::kTrain ? "" : ", evaluation");
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Program, SchedulesWithSkipBoundariesComplete) {
  for (const std::string& name : schedule_names()) {
    PipelinePlan plan = named_plan(name, 4, 16);
    const auto stages = static_cast<uint32_t>(plan.pipelines.front().stages.size());
    for (const auto& [from, to] : {std::pair{0u, 2u}, {1u, 3u}, {0u, stages - 1}}) {
      PlanBoundary skip;
      skip.from = from;
      skip.to = to;
      skip.tensors = {test::activations("skip", 4, 8, 2)};
      plan.pipelines.front().boundaries.push_back(skip);
    }
    for (unsigned seed = 0; seed < 10; ++seed) {
      for (const RunKind kind : {RunKind::kTrain, RunKind::kEvaluate}) {
        ASSERT_TRUE(Players(plan, seed, kind).play()) << name << ", seed " << seed;
      }
      if (HasFailure()) return;
    }
  }
}

// They may run at the same time, or in any order.
TEST(Program, StepsOfAPairHaveSeparateSlots) {
  for (const char* pair : {"(0B0;0F1)OVERLAP_F_B", "(0F1;0B0)OVERLAP_F_B"}) {
    PipelinePlan plan = plan_of(on_ranks({0}), "", 2);
    plan.pipelines.front().schedule.actions =
        read_csv(std::string("0F0,") + pair + ",0B1\n")->actions;
    const Program program = program_of_rank(plan, 0);
    EXPECT_EQ(program.slots, 2u);
    EXPECT_NE(program.steps[1].slot, program.steps[2].slot);
  }
}

TEST(Program, StepsOfAPairHaveSeparateBuffers) {
  PipelinePlan plan = plan_of(on_ranks({0, 1}), "", 3);
  plan.pipelines.front().schedule.actions =
      read_csv("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,(1B0;1F1)OVERLAP_F_B,(1B1;1F2)OVERLAP_F_B,1B2\n")
          ->actions;
  plan.pipelines.front().boundaries.front().in_flight = 1;
  // Two that the pair reads, and one under way.
  EXPECT_EQ(program_of_rank(plan, 1).channels[0].buffers, 3u);
  for (unsigned seed = 0; seed < 10; ++seed) EXPECT_TRUE(Players(plan, seed).play());
}

TEST(Program, SlotHoldsOneActivationAtATime) {
  for (const std::string& name : schedule_names()) {
    const PipelinePlan plan = named_plan(name, 4, 12);
    const auto views = check_plan(plan).value();
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const Program program = program_of(plan, views, rank, RunKind::kTrain);
      std::map<uint32_t, std::pair<uint32_t, uint32_t>> holder;  // by slot: stage, micro-batch
      for (const ProgramStep& step : program.steps) {
        const std::pair<uint32_t, uint32_t> own(step.action.stage, step.action.micro_batch);
        if (!is_computation(step.action.kind)) continue;
        EXPECT_LT(step.slot, program.slots);
        if (step.action.kind == ActionKind::kForward) {
          EXPECT_FALSE(holder.contains(step.slot)) << name;
          holder[step.slot] = own;
        }
        EXPECT_EQ(holder.at(step.slot), own) << name;
        if (step.releases_inputs) holder.erase(step.slot);
      }
      EXPECT_TRUE(holder.empty()) << name;
      EXPECT_EQ(program.slots, views.front().peaks[program.group]) << name;
    }
  }
}

TEST(Program, PlainScheduleOfTwoStagesHasTheExpectedChannelsAndSlots) {
  PipelinePlan plan = named_plan("1f1b", 2, 4);
  plan.pipelines.front().boundaries.front().in_flight = 3;
  const Program first = program_of_rank(plan, 0);
  ASSERT_EQ(first.channels.size(), 2u);
  EXPECT_EQ(first.channels[0].role, ChannelRole::kSend);
  EXPECT_EQ(first.channels[0].buffers, 3u);
  EXPECT_EQ(first.channels[1].role, ChannelRole::kReceive);
  EXPECT_TRUE(first.channels[1].is_backward);
  // Three under way, and one that the backward step reads.
  EXPECT_EQ(first.channels[1].buffers, 4u);
  EXPECT_EQ(first.slots, 2u);
  const Program last = program_of_rank(plan, 1);
  EXPECT_EQ(last.slots, 1u);
  EXPECT_EQ(last.channels[0].role, ChannelRole::kReceive);
  EXPECT_EQ(last.channels[0].buffers, 4u);
  std::string steps;
  for (const ProgramStep& each : first.steps) steps += describe(each.action) + "\n";
  EXPECT_EQ(steps.substr(0, steps.find('\n')), "forward step of micro-batch 0 in stage 0");
  EXPECT_EQ(first.steps.size(), 8u);
}

// The same stages with W apart: inputs are read until W.
TEST(Program, InputsAreKeptUntilTheWeightGradient) {
  PipelinePlan plan = plan_of(on_ranks({0, 1}), "", 2);
  const Schedule given = read_csv("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n").value();
  plan.pipelines.front().schedule.actions = given.actions;
  plan.pipelines.front().boundaries.front().in_flight = 1;
  const Program last = program_of_rank(plan, 1);
  EXPECT_EQ(last.slots, 2u);
  // Both activations wait for W, and one more may be under way.
  EXPECT_EQ(last.channels[0].buffers, 3u);
  for (const ProgramStep& each : last.steps) {
    EXPECT_EQ(each.releases_inputs, each.action.kind == ActionKind::kWeightGrad);
  }
}

TEST(Program, StagesOnTheSameRankUseLocalChannels) {
  const PipelinePlan plan = named_plan("zb-v", 2, 6);
  const Program last = program_of_rank(plan, 1);
  ASSERT_EQ(last.chunks.size(), 2u);
  uint32_t local = 0;
  for (const ProgramChannel& each : last.channels) {
    if (each.role != ChannelRole::kLocal) continue;
    ++local;
    EXPECT_EQ(each.in_flight, 0u);
    EXPECT_EQ(each.boundary, 1u);
  }
  EXPECT_EQ(local, 2u);
}

TEST(Program, ForwardOnlyProgramHasNoGradients) {
  const PipelinePlan plan = named_plan("forward-only", 2, 3);
  const Program first = program_of_rank(plan, 0);
  ASSERT_EQ(first.channels.size(), 1u);
  EXPECT_EQ(first.slots, 1u);
  for (const ProgramStep& each : first.steps) {
    EXPECT_TRUE(each.releases_inputs);
    EXPECT_FALSE(each.releases_output_grads);
  }
}

// Channels keep their places, so that both programs use the same buffers.
TEST(Program, EvaluationRunsForwardStepsOverTheSameChannels) {
  for (const std::string& name : schedule_names()) {
    const PipelinePlan plan = named_plan(name, 4, 12);
    const auto views = check_plan(plan).value();
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const Program trains = program_of(plan, views, rank, RunKind::kTrain);
      const Program evaluates = program_of(plan, views, rank, RunKind::kEvaluate);
      ASSERT_EQ(evaluates.channels.size(), trains.channels.size());
      for (size_t i = 0; i < trains.channels.size(); ++i) {
        const ProgramChannel& channel = evaluates.channels[i];
        EXPECT_EQ(channel.boundary, trains.channels[i].boundary);
        EXPECT_EQ(channel.is_backward, trains.channels[i].is_backward);
        if (channel.is_backward) {
          EXPECT_TRUE(channel.order.empty());
        } else {
          EXPECT_EQ(channel.order, trains.channels[i].order) << name;
          EXPECT_LE(channel.buffers, trains.channels[i].buffers) << name;
        }
      }
      EXPECT_LE(evaluates.slots, trains.slots);
      EXPECT_LE(evaluates.slots, 2u) << "of a pair";
      for (const ProgramStep& each : evaluates.steps) {
        EXPECT_EQ(each.action.kind, ActionKind::kForward);
        EXPECT_TRUE(each.releases_inputs);
        EXPECT_FALSE(each.releases_output_grads);
      }
      EXPECT_EQ(evaluates.steps.size(), 12 * trains.chunks.size());
    }
  }
}

TEST(Program, TensorWithoutGradientHasNoBackwardChannel) {
  PipelinePlan plan = named_plan("1f1b", 2, 3);
  plan.pipelines.front().boundaries.front().tensors.front().has_gradient = false;
  const Program last = program_of_rank(plan, 1);
  ASSERT_EQ(last.channels.size(), 1u);
  EXPECT_TRUE(last.chunks.front().input_grads.empty());
}

TEST(Program, RankRunsTheProgramOfItsOwnPipeline) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 6);
  const PipelinePlan other = plan_of(on_ranks({3, 4}), "gpipe", 4);
  plan.pipelines.push_back(other.pipelines.front());
  plan.pipelines.back().stages.back().items_end = plan.items;
  plan.training.global_batch += other.training.global_batch;
  plan.ranks.resize(5);
  const Program program = program_of_rank(plan, 4);
  EXPECT_EQ(program.pipeline, 1u);
  EXPECT_EQ(program.group, 1u);
  EXPECT_EQ(program.steps.size(), 8u);
  EXPECT_EQ(program_of_rank(plan, 2).steps.size(), 12u);
}

}  // namespace
}  // namespace hetcomm::pipeline
