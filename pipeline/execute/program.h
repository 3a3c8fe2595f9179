// A Program lists the work of one rank in one run of a pipeline. program_of() is a pure function of
// the plan.
//
// Data moves through channels. Each boundary has one for activations, and one for gradients if a
// tensor has any. The items of a channel are numbered in the order in which they are produced. A
// rank takes an item, reads it, and then releases it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

enum class ChannelRole : uint8_t {
  kSend,
  kReceive,
  kLocal,  // between two stages on the same ranks, which share the buffer of an item
};

struct ProgramChannel {
  uint32_t boundary = 0;  // index in PlanPipeline::boundaries
  bool is_backward = false;
  ChannelRole role = ChannelRole::kLocal;
  uint32_t maker = 0;  // the stage that produces the items
  uint32_t taker = 0;
  uint32_t in_flight = 0;  // maximum number of items in flight; kSend and kReceive only
  uint32_t buffers = 0;
  std::vector<uint32_t> order;  // micro-batches, in the order of the items
  std::vector<uint32_t> item;   // indexed by micro-batch: the number of its item
};

// The channels of a stage, as indices in Program::channels.
struct ProgramStage {
  uint32_t stage = 0;
  std::vector<uint32_t> inputs;
  std::vector<uint32_t> outputs;
  std::vector<uint32_t> output_grads;
  std::vector<uint32_t> input_grads;
};

struct ProgramStep {
  Action action;
  uint32_t chunk = 0;
  uint32_t slot = 0;  // index of the memory slot for the activation, below Program::slots
  // True if no later step reads the stage's inputs of the micro-batch.
  bool releases_inputs = false;
  // True if no later step reads the stage's output gradients of the micro-batch.
  bool releases_output_grads = false;
  // True for the stage's REDUCE_GRAD, or without it, for the last step that changes its gradients.
  bool ends_gradients = false;
};

struct Program {
  uint32_t rank = 0;
  uint32_t pipeline = 0;
  uint32_t group = 0;
  uint32_t slots = 0;                // maximum number of live activations
  std::vector<ProgramStage> chunks;  // this rank's stages
  std::vector<ProgramChannel> channels;
  std::vector<ProgramStep> steps;
};

// Return the channels from which |step| takes items, and those for which it produces items.
const std::vector<uint32_t>& taken_by(const Program& program, const ProgramStep& step);
const std::vector<uint32_t>& made_by(const Program& program, const ProgramStep& step);

enum class RunKind : uint8_t {
  kTrain,     // runs the whole schedule
  kEvaluate,  // runs only the forward steps of the schedule
};
inline constexpr size_t kRunKinds = 2;

// Returns the program of |rank|, one of plan.ranks. |views| is the result of check_plan() for
// |plan|. All programs of a rank have the same channels. A channel that a kind of run does not use
// has no items.
Program program_of(const PipelinePlan& plan, const std::vector<PipelineView>& views, uint32_t rank,
                   RunKind kind);

// Returns a string such as "forward step of micro-batch 3 in stage 2".
std::string describe(const Action& action);

}  // namespace hetcomm::pipeline
