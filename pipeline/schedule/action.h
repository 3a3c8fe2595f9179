// An Action is one step of one rank in a pipeline schedule.
//
// Forward and backward work belongs to a stage and a micro-batch. Stages are numbered from 0 in the
// order of the model. If a rank holds several stages, they are also called its chunks.
#pragma once

#include <cstdint>
#include <string_view>

namespace hetcomm::pipeline {

enum class ActionKind : uint8_t {
  kForward,
  kBackward,     // computes the gradients of the input and of the weights in one step
  kInputGrad,    // computes the gradient of the input
  kWeightGrad,   // computes the gradient of the weights, after kInputGrad
  kRecompute,    // repeats the forward step, so that its activations need not be kept
  kSendForward,  // starts sending the stage's output to the next stage
  kReceiveForward,
  kSendBackward,  // starts sending the gradient of the stage's input to the previous stage
  kReceiveBackward,
  kWaitSendForward,  // waits until the output has arrived, so that its buffer is free
  kWaitReceiveForward,
  kWaitSendBackward,
  kWaitReceiveBackward,
  kReduceGradient,  // reduces the gradients of the stage's weights over its replicas
  kUnshard,         // gathers the weights of a stage that are sharded over its replicas
  kReshard,         // frees the gathered weights
  kBubble,          // a step without work
};
inline constexpr int kActionKinds = static_cast<int>(ActionKind::kBubble) + 1;

inline constexpr uint32_t kMaxStages = 1u << 14;
inline constexpr uint32_t kMaxMicroBatches = 1u << 20;
// The maximum product of stages and micro-batches.
inline constexpr uint64_t kMaxSteps = uint64_t{1} << 24;

struct Action {
  uint32_t micro_batch = 0;  // 0 if the kind has no micro-batch
  uint16_t stage = 0;        // 0 for a bubble
  ActionKind kind = ActionKind::kBubble;
  // The rank can run this action and the next one at the same time. Both are computations.
  bool overlaps_next = false;
  bool operator==(const Action&) const = default;
};
static_assert(sizeof(Action) == 8);

// Returns whether actions of |kind| belong to a micro-batch.
constexpr bool has_micro_batch(ActionKind kind) { return kind < ActionKind::kReduceGradient; }
// Returns whether actions of |kind| compute for a micro-batch.
constexpr bool is_computation(ActionKind kind) { return kind <= ActionKind::kRecompute; }
constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}
constexpr bool is_wait(ActionKind kind) {
  return kind >= ActionKind::kWaitSendForward && kind <= ActionKind::kWaitReceiveBackward;
}
// Returns whether actions of |kind| produce the gradient of the stage's input.
constexpr bool gives_input_grad(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGrad;
}
// Returns whether actions of |kind| produce the gradient of the stage's weights.
constexpr bool gives_weight_grad(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kWeightGrad;
}

}  // namespace hetcomm::pipeline
