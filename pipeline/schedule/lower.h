// Lowers schedules from one level to the next, and back. All functions leave the order of
// computations as it is. They take sound schedules (check.h).
#pragma once

#include <cstdint>

#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// Adds the reduction of each stage's weight gradients after the last step that changes them, unless
// the stage has one.
Schedule add_reductions(Schedule schedule);

// Takes level 1 to level 2. A send follows the step that made its data, or that step's pair. The
// receive for a step stands before the step of its kind and stage that comes |ahead| earlier, or at
// the beginning. With 0 it stands right before its own step.
Schedule add_transfers(const Schedule& schedule, uint32_t ahead);

// The place of the wait for a send.
enum class SendWaits : uint8_t {
  kAtOnce,       // right after it, as PyTorch 2.15 wants it in its CSV form
  kBeforeReuse,  // before the step that needs the buffer again, or at the end
};
// Takes level 2 to level 3. A receive is waited for right before the step that needs its data. With
// kBeforeReuse each stage has |buffers| buffers (at least 1) for what it sends in one direction.
Schedule add_waits(const Schedule& schedule, SendWaits where, uint32_t buffers);

// Takes any level to level 1, without bubbles.
Schedule computations_of(Schedule schedule);

// Leaves the forward steps of a schedule of level 1 without bubbles, and UNSHARD and RESHARD where
// a stage has forward steps between them.
Schedule forward_steps_of(Schedule schedule);

}  // namespace hetcomm::pipeline
