// How long a plan will take by a link model, in whole nanoseconds: all ranks compute the same.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The moves of one hop all go at once.
struct HopForecast {
  uint64_t ns = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;         // between different ranks
  int slowest_resource = -1;  // index of the model's resources: the one that is busy longest
  bool operator==(const HopForecast&) const = default;
};

struct Forecast {
  uint64_t ns = 0;
  std::vector<HopForecast> hops;
  std::vector<uint64_t> resource_bytes;  // what crosses each resource of the model
  bool operator==(const Forecast&) const = default;
};

// The time that a message costs the processor of its sender, and that of its receiver.
inline constexpr uint64_t kMessageNs = 5'000;

// A hop takes as long as the resource with the most to carry, or as its longest transfer alone,
// whatever is longer, and then as the messages beside the first cost the rank that has most of
// them. Hops overlap by slices: the longest counts whole, the others by the time of one of
// |slices|. |plan| is that of all ranks, and |links| knows all of them.
Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices = 8);

}  // namespace hetcomm::reshard
