// Lowers schedules from one level to the next, and converts them back. No function changes the
// order of computations. The input must be a sound schedule (check.h).
#pragma once

#include <cstdint>

#include "pipeline/schedule/schedule.h"

namespace hetcomm::pipeline {

// Adds the reduction of each stage's weight gradients after the last step that changes them. Stages
// that already have a reduction are left unchanged.
Schedule add_reductions(Schedule schedule);

// Lowers a schedule from level 1 to level 2. A send follows the step that produced its data, or
// that step's pair. The receive for a step is placed before the step of the same kind and stage
// that comes |ahead| positions earlier, or at the beginning. If |ahead| is 0, it is placed directly
// before its own step.
Schedule add_transfers(const Schedule& schedule, uint32_t ahead);

// The position of the wait for a send.
enum class SendWaits : uint8_t {
  kAtOnce,       // directly after the send, as PyTorch 2.15 requires in its CSV format
  kBeforeReuse,  // before the step that reuses the buffer, or at the end
};
// Lowers a schedule from level 2 to level 3. The wait for a receive is placed directly before the
// step that needs its data. With kBeforeReuse, each stage has |buffers| buffers (at least 1) for
// its sends in one direction.
Schedule add_waits(const Schedule& schedule, SendWaits where, uint32_t buffers);

// Converts a schedule of any level to level 1, without bubbles.
Schedule computations_of(Schedule schedule);

// Keeps only the forward steps of a schedule of level 1 without bubbles, and each pair of UNSHARD
// and RESHARD with forward steps of the stage between them.
Schedule forward_steps_of(Schedule schedule);

}  // namespace hetcomm::pipeline
