#include "pipeline/simulate/forecast.h"

#include <algorithm>

namespace hetcomm::pipeline {

uint64_t Forecast::bubble_ppm() const {
  constexpr uint64_t kMillion = 1'000'000;
  constexpr uint64_t kExact = (uint64_t{1} << 63) / kMillion;
  const uint64_t ranks = busy_ns.size();
  if (total_ns == 0 || ranks == 0) return 0;
  if (total_ns <= kExact / ranks) {
    uint64_t idle = 0;
    for (const uint64_t each : busy_ns) idle += total_ns - each;
    return idle * kMillion / (total_ns * ranks);
  }
  // The times are so long that single nanoseconds do not matter.
  const uint64_t unit = total_ns / kMillion;
  uint64_t idle = 0;
  for (const uint64_t each : busy_ns) idle += std::min(kMillion, (total_ns - each) / unit);
  return idle / ranks;
}

}  // namespace hetcomm::pipeline
