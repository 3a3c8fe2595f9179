#include "pipeline/execute/trainer.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

static_assert(HETCOMM_PIPELINE_FORWARD == static_cast<int>(Kind::kForward));
static_assert(HETCOMM_PIPELINE_BACKWARD == static_cast<int>(Kind::kBackward));
static_assert(HETCOMM_PIPELINE_INPUT_GRAD == static_cast<int>(Kind::kInputGrad));
static_assert(HETCOMM_PIPELINE_WEIGHT_GRAD == static_cast<int>(Kind::kWeightGrad));
static_assert(HETCOMM_PIPELINE_RECOMPUTE == static_cast<int>(Kind::kRecompute));
static_assert(HETCOMM_PIPELINE_REDUCE_GRAD == static_cast<int>(Kind::kReduceGradient));
static_assert(HETCOMM_PIPELINE_UNSHARD == static_cast<int>(Kind::kUnshard));
static_assert(HETCOMM_PIPELINE_RESHARD == static_cast<int>(Kind::kReshard));

}  // namespace

const hetcomm_pipeline_callback_t* callback_of(const hetcomm_pipeline_chunk_t& chunk, Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return &chunk.forward;
    case Kind::kBackward:
      return &chunk.backward;
    case Kind::kInputGrad:
      return &chunk.input_grad;
    case Kind::kWeightGrad:
      return &chunk.weight_grad;
    case Kind::kRecompute:
      return &chunk.recompute;
    case Kind::kReduceGradient:
      return &chunk.reduce_grad;
    case Kind::kUnshard:
      return &chunk.unshard;
    case Kind::kReshard:
      return &chunk.reshard;
    default:
      return nullptr;
  }
}

}  // namespace hetcomm::pipeline
