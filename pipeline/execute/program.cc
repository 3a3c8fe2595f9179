#include "pipeline/execute/program.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

class ProgramMaker {
 public:
  ProgramMaker(const PlanPipeline& pipeline, const PipelineView& view, RunKind kind,
               Program& program)
      : pipeline_(pipeline),
        view_(view),
        performed_(kind == RunKind::kTrain ? view.schedule : view.evaluation),
        program_(program) {}

  void run() {
    const bool has_backward = trains(view_.schedule.actions[program_.group]);
    chunk_of_.resize(view_.schedule.stages());
    for (uint32_t stage = 0; stage < view_.schedule.stages(); ++stage) {
      if (view_.schedule.rank_of[stage] != program_.group) continue;
      chunk_of_[stage] = static_cast<uint32_t>(program_.chunks.size());
      program_.chunks.emplace_back().stage = stage;
    }
    for (uint32_t i = 0; i < pipeline_.boundaries.size(); ++i) {
      add_channel(i, false);
      if (has_backward && has_gradient(pipeline_.boundaries[i])) add_channel(i, true);
    }
    number_items();
    add_steps(performed_.actions[program_.group]);
    count_buffers();
  }

 private:
  static bool trains(const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& each) { return gives_input_grad(each.kind); });
  }

  uint32_t group_of(uint32_t stage) const { return view_.schedule.rank_of[stage]; }

  void add_channel(uint32_t boundary, bool is_backward) {
    const PlanBoundary& ends = pipeline_.boundaries[boundary];
    ProgramChannel channel;
    channel.boundary = boundary;
    channel.is_backward = is_backward;
    channel.maker = is_backward ? ends.to : ends.from;
    channel.taker = is_backward ? ends.from : ends.to;
    const bool makes = group_of(channel.maker) == program_.group;
    const bool takes = group_of(channel.taker) == program_.group;
    if (!makes && !takes) return;
    channel.role = !takes   ? ChannelRole::kSend
                   : !makes ? ChannelRole::kReceive
                            : ChannelRole::kLocal;
    channel.in_flight = channel.role == ChannelRole::kLocal ? 0 : view_.in_flight[boundary];
    channel.item.resize(pipeline_.micro_batches);
    channel.order.reserve(pipeline_.micro_batches);
    const auto index = static_cast<uint32_t>(program_.channels.size());
    if (makes) {
      ProgramStage& stage = program_.chunks[chunk_of_[channel.maker]];
      (is_backward ? stage.input_grads : stage.outputs).push_back(index);
    }
    if (takes) {
      ProgramStage& stage = program_.chunks[chunk_of_[channel.taker]];
      (is_backward ? stage.output_grads : stage.inputs).push_back(index);
    }
    program_.channels.push_back(std::move(channel));
  }

  // Numbers the items of all channels in the order of the steps that produce them.
  void number_items() {
    // Channels of activations and of gradients, each indexed by the stage that produces the items.
    std::vector<std::vector<uint32_t>> made[2];
    for (auto& each : made) each.resize(view_.schedule.stages());
    std::set<uint32_t> groups;
    for (uint32_t i = 0; i < program_.channels.size(); ++i) {
      const ProgramChannel& channel = program_.channels[i];
      made[channel.is_backward ? 1 : 0][channel.maker].push_back(i);
      groups.insert(group_of(channel.maker));
    }
    for (const uint32_t group : groups) {
      for (const Action& each : performed_.actions[group]) {
        if (each.kind == Kind::kForward) number(made[0][each.stage], each.micro_batch);
        if (gives_input_grad(each.kind)) number(made[1][each.stage], each.micro_batch);
      }
    }
  }
  void number(const std::vector<uint32_t>& channels, uint32_t micro_batch) {
    for (const uint32_t index : channels) {
      ProgramChannel& channel = program_.channels[index];
      channel.item[micro_batch] = static_cast<uint32_t>(channel.order.size());
      channel.order.push_back(micro_batch);
    }
  }

  void add_steps(const std::vector<Action>& actions) {
    const bool has_backward = trains(actions);
    std::set<uint32_t> free_slots;
    std::vector<uint32_t> freed;  // slots to reuse after the pair, whose steps can overlap
    // Indexed by chunk and micro-batch.
    std::vector<std::vector<uint32_t>> slots(program_.chunks.size());
    for (auto& each : slots) each.resize(pipeline_.micro_batches);
    program_.steps.reserve(actions.size());
    for (const Action& action : actions) {
      ProgramStep step{.action = action, .chunk = chunk_of_[action.stage]};
      if (has_micro_batch(action.kind)) {
        uint32_t& slot = slots[step.chunk][action.micro_batch];
        if (action.kind == Kind::kForward) {
          if (free_slots.empty()) free_slots.insert(program_.slots++);
          slot = *free_slots.begin();
          free_slots.erase(free_slots.begin());
        }
        step.slot = slot;
        const bool is_last =
            has_backward ? gives_weight_grad(action.kind) : action.kind == Kind::kForward;
        if (is_last) freed.push_back(slot);
        step.releases_inputs = is_last;
        step.releases_output_grads = is_last && has_backward;
      }
      if (!action.overlaps_next) {
        free_slots.insert(freed.begin(), freed.end());
        freed.clear();
      }
      program_.steps.push_back(step);
    }
    std::vector<bool> has_ended(program_.chunks.size());
    for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step) {
      const Kind kind = step->action.kind;
      if (!gives_weight_grad(kind) && kind != Kind::kReduceGradient) continue;
      step->ends_gradients = !has_ended[step->chunk];
      has_ended[step->chunk] = true;
    }
  }

  // Counts the buffers of each channel. A sending channel needs |in_flight| buffers. A receiving
  // one also needs buffers for the items that are being read, because taking an item posts a
  // receive for the item |in_flight| positions later. A local one needs buffers for the items that
  // are written or read. The two steps of a pair begin together.
  void count_buffers() {
    std::vector<uint32_t> held(program_.channels.size());
    std::vector<uint32_t> most(program_.channels.size());
    std::vector<uint32_t> released;
    const auto hold = [&](const std::vector<uint32_t>& channels, bool local) {
      for (const uint32_t index : channels) {
        if ((program_.channels[index].role == ChannelRole::kLocal) != local) continue;
        most[index] = std::max(most[index], ++held[index]);
      }
    };
    for (const ProgramStep& step : program_.steps) {
      hold(made_by(program_, step), true);
      hold(taken_by(program_, step), false);
      const ProgramStage& stage = program_.chunks[step.chunk];
      if (step.releases_inputs) {
        released.insert(released.end(), stage.inputs.begin(), stage.inputs.end());
      }
      if (step.releases_output_grads) {
        released.insert(released.end(), stage.output_grads.begin(), stage.output_grads.end());
      }
      if (step.action.overlaps_next) continue;
      for (const uint32_t index : released) --held[index];
      released.clear();
    }
    for (size_t i = 0; i < program_.channels.size(); ++i) {
      ProgramChannel& channel = program_.channels[i];
      const bool sends = channel.role == ChannelRole::kSend;
      channel.buffers = channel.in_flight + (sends ? 0 : most[i]);
    }
  }

  const PlanPipeline& pipeline_;
  const PipelineView& view_;
  const Schedule& performed_;
  Program& program_;
  std::vector<uint32_t> chunk_of_;  // indexed by stage, for the stages of this rank
};

const std::vector<uint32_t>& none() {
  static const std::vector<uint32_t> empty;
  return empty;
}

}  // namespace

const std::vector<uint32_t>& taken_by(const Program& program, const ProgramStep& step) {
  const ProgramStage& stage = program.chunks[step.chunk];
  if (step.action.kind == Kind::kForward) return stage.inputs;
  return gives_input_grad(step.action.kind) ? stage.output_grads : none();
}

const std::vector<uint32_t>& made_by(const Program& program, const ProgramStep& step) {
  const ProgramStage& stage = program.chunks[step.chunk];
  if (step.action.kind == Kind::kForward) return stage.outputs;
  return gives_input_grad(step.action.kind) ? stage.input_grads : none();
}

Program program_of(const PipelinePlan& plan, const std::vector<PipelineView>& views, uint32_t rank,
                   RunKind kind) {
  Program program;
  program.rank = rank;
  for (uint32_t pipeline = 0; pipeline < views.size(); ++pipeline) {
    const std::vector<std::vector<uint32_t>>& groups = views[pipeline].groups;
    for (uint32_t group = 0; group < groups.size(); ++group) {
      if (std::find(groups[group].begin(), groups[group].end(), rank) == groups[group].end()) {
        continue;
      }
      program.pipeline = pipeline;
      program.group = group;
    }
  }
  ProgramMaker(plan.pipelines[program.pipeline], views[program.pipeline], kind, program).run();
  return program;
}

std::string describe(const Action& action) {
  const auto step = [&](std::string_view what) {
    return fmt::format("{} of micro-batch {} in stage {}", what, action.micro_batch, action.stage);
  };
  switch (action.kind) {
    case Kind::kForward:
      return step("forward step");
    case Kind::kBackward:
      return step("backward step");
    case Kind::kInputGrad:
      return step("input gradient");
    case Kind::kWeightGrad:
      return step("weight gradient");
    case Kind::kRecompute:
      return step("recomputation");
    case Kind::kReduceGradient:
      return fmt::format("gradient reduction of stage {}", action.stage);
    case Kind::kUnshard:
      return fmt::format("gather of the weights of stage {}", action.stage);
    case Kind::kReshard:
      return fmt::format("drop of the gathered weights of stage {}", action.stage);
    default:
      return "bubble";
  }
}

}  // namespace hetcomm::pipeline
