#include "src/core/collectives/step_sums.h"

#include "src/reduce/reduce.h"
#include "src/system/clock.h"

namespace hetcomm::collectives {
namespace {

using reduce::Operator;

// Returns the element-wise operator of the task's reduction. For an average, this is the sum, which
// is divided separately.
int32_t operator_of(const Task& task) {
  const int32_t reduction = task.call().reduction;
  return reduction == HETCOMM_REDUCE_AVERAGE ? int32_t{HETCOMM_REDUCE_SUM} : reduction;
}

// Returns whether |range| is in the caller's host memory.
bool is_callers(const Task& task, const Range& range) HETCOMM_UNDER_BATON {
  return (range.buffer == BufferKind::kSend && !task.send().is_staged()) ||
         (range.buffer == BufferKind::kReceive && !task.receive().is_staged());
}

uint32_t divisor_of(const Task& task, const Step& step) {
  const Problem& problem = task.problem();
  const bool divides = task.call().reduction == HETCOMM_REDUCE_AVERAGE && problem.rounds &&
                       step.kind == StepKind::kReduce;
  return divides ? problem.ranks : 1;
}

}  // namespace

StepSums::StepSums() {
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].number = i;
}

void StepSums::Slot::on_copied(const Status& status) {
  if (status.ok()) sums->note(sum, /*on_device=*/true, now_ns() - started_ns);
  client->on_step(number, status);
}

// Sets the operands and the sum of |slot|. Returns false if no device can run the step.
bool StepSums::describe(const Task& task, const Steps& steps, const Step& step,
                        const Addresses& addresses, Slot& slot) {
  const Problem& problem = task.problem();
  // The host applies factors. It also computes results that must be identical on all ranks and may
  // be NaN.
  if (task.call().reduction == HETCOMM_REDUCE_PREMUL_SUM) return false;
  if (step.is_repeated && task.type() >= reduce::Type::kFloat16) return false;
  slot.operands.clear();
  const Memory* own = nullptr;  // the device memory among the operands
  // A device that was abandoned may continue a sum, so a sum on a device must not access the
  // caller's host memory.
  bool touches_callers = is_callers(task, step.to);
  const auto add = [&](const Range& range) HETCOMM_UNDER_BATON {
    if (range.length == 0) return;
    SumOperand operand{.host = addresses.of(range)};
    const BufferPiece piece =
        range.buffer == BufferKind::kSend ? task.send_piece(range.block) : BufferPiece{};
    if (piece.memory != nullptr && own == nullptr) {
      own = piece.memory;
      operand = {.memory = piece.memory, .offset = piece.offset + range.offset};
    } else {
      touches_callers = touches_callers || is_callers(task, range);
    }
    slot.operands.push_back(operand);
  };
  add(step.first);
  if (step.kind == StepKind::kCombine) {
    add(step.second);
  } else {
    for (uint32_t i = 0; i < step.inputs; ++i) add(steps.inputs[step.inputs_at + i]);
  }
  if (own == nullptr || slot.operands.size() < 2 || touches_callers) return false;
  const bool is_wide = step.kind == StepKind::kReduceWide;
  slot.sum = {.device = own->device_index(),
              .datatype = task.call().datatype,
              .reduction = operator_of(task),
              .divisor = divisor_of(task, step),
              .rounds = problem.rounds,
              .first_is_wide = step.kind != StepKind::kCombine && step.first.length > 0,
              .out_is_wide = is_wide,
              .operands = slot.operands,
              .out = addresses.of(step.to),
              .elements = step.to.length / (is_wide ? problem.wide_bytes : problem.element_bytes)};
  return true;
}

bool StepSums::run(size_t slot, const Task& task, const Steps& steps, const Step& step,
                   const Addresses& addresses, DeviceSums& sums, StepSumsClient& client) {
  Slot& own = slots_[slot];
  if (!describe(task, steps, step, addresses, own)) {
    run_on_host(task, steps, step, addresses);
    return true;
  }
  own.client = &client;
  own.sums = &sums;
  const bool takes = sums.takes(own.sum);
  own.started_ns = now_ns();
  if (takes && sums.start(own.job, own.sum, own)) return false;
  run_on_host(task, steps, step, addresses);
  sums.note(own.sum, /*on_device=*/false, now_ns() - own.started_ns);
  return true;
}

void StepSums::run_on_host(const Task& task, const Steps& steps, const Step& step,
                           const Addresses& addresses) {
  const Problem& problem = task.problem();
  std::byte* const to = addresses.of(step.to);
  if (step.kind == StepKind::kCombine) {
    const std::byte* const inputs[] = {addresses.of(step.first), addresses.of(step.second)};
    reduce::combine(task.type(), static_cast<Operator>(task.call().reduction), to, inputs, 2,
                    step.to.length / problem.element_bytes);
    return;
  }
  inputs_.clear();
  for (uint32_t i = 0; i < step.inputs; ++i) {
    inputs_.push_back(addresses.of(steps.inputs[step.inputs_at + i]));
  }
  reduce::Reduction all = task.reduction();
  // If the reduction does not round, this sum is combined with other sums, and the result is
  // divided at the end of the segment.
  if (!problem.rounds) all.ranks = 1;
  std::byte* const first = step.first.length > 0 ? addresses.of(step.first) : nullptr;
  const auto* const before = reinterpret_cast<const float*>(first);
  if (step.kind == StepKind::kReduce) {
    reduce::reduce(all, to, inputs_.data(), inputs_.size(), step.to.length / problem.element_bytes,
                   before);
  } else {
    reduce::reduce_wide(all, reinterpret_cast<float*>(to), inputs_.data(), inputs_.size(),
                        step.to.length / problem.wide_bytes, before);
  }
}

}  // namespace hetcomm::collectives
