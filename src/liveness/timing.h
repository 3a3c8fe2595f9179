// Timing derives the intervals of the control plane from the detection time T.
#pragma once

#include <cstdint>

namespace hetcomm::liveness {

// A time that never comes.
inline constexpr uint64_t kNever = UINT64_MAX;

// All intervals are fractions of the detection time T.
struct Timing {
  uint64_t detection_ns = 0;
  uint64_t suspicion_ns() const { return detection_ns / 3; }
  // Returns the interval between heartbeats, between questions, and between connection attempts.
  uint64_t beat_ns() const { return detection_ns / 10; }
  uint64_t repair_ns() const { return detection_ns / 8; }
  uint64_t tick_ns() const { return detection_ns / 20; }
  // Returns the time between two ticks above which this process is assumed not to have run.
  uint64_t pause_ns() const { return detection_ns / 6; }
};

}  // namespace hetcomm::liveness
