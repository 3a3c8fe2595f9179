// Predicts how long a plan will take by a link model, in whole nanoseconds: all ranks compute the
// same.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The moves of one hop all start at once.
struct HopForecast {
  uint64_t ns = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;         // between different ranks
  int slowest_resource = -1;  // index of the model's resource that is busy longest
  bool operator==(const HopForecast&) const = default;
};

struct Forecast {
  uint64_t ns = 0;
  std::vector<HopForecast> hops;
  std::vector<uint64_t> resource_bytes;  // bytes that cross each resource of the model
  bool operator==(const Forecast&) const = default;
};

// The processor time that a message costs its sender and its receiver, each.
inline constexpr uint64_t kMessageNs = 5'000;

// A hop takes as long as the resource with the most to carry, or as its longest transfer alone,
// whichever is longer. Every message after the first then adds its cost, on the rank with the most
// messages. Hops overlap by slices: the longest counts in full, the others by the time of one of
// |slices|. |plan| is that of all ranks, and |links| knows all of them.
Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices = 8);

}  // namespace hetcomm::reshard
