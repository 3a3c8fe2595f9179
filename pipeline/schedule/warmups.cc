#include "pipeline/schedule/warmups.h"

#include <algorithm>

namespace hetcomm::pipeline {
namespace {

// Returns for each stage one more than the sum of |steps| from that stage on. The last stage has no
// entry in |steps|.
std::vector<uint32_t> counts_of(const std::vector<uint64_t>& steps) {
  std::vector<uint32_t> counts(steps.size() + 1, 1);
  for (size_t stage = steps.size(); stage-- > 0;) {
    const uint64_t count = counts[stage + 1] + steps[stage];
    counts[stage] = static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX));
  }
  return counts;
}

}  // namespace

std::vector<uint32_t> plain_warmups(uint32_t stages) {
  return counts_of(std::vector<uint64_t>(stages - 1, 1));
}

std::vector<uint32_t> eager_warmups(uint32_t stages) {
  return counts_of(std::vector<uint64_t>(stages - 1, 2));
}

std::vector<uint32_t> virtual_warmups(const std::vector<bool>& is_slow) {
  std::vector<uint64_t> steps;
  for (const bool slow : is_slow) steps.push_back(slow ? 2 : 1);
  return counts_of(steps);
}

uint32_t items_on_the_way(const BoundaryTime& boundary, uint64_t step_ns) {
  const uint64_t way_ns = boundary.busy_ns + 2 * boundary.latency_ns;
  return static_cast<uint32_t>(std::min<uint64_t>((way_ns + step_ns - 1) / step_ns, UINT32_MAX));
}

HidingWarmups hiding_warmups(const std::vector<uint64_t>& stage_ns,
                             const std::vector<BoundaryTime>& boundaries, uint32_t epsilon_ppm) {
  const uint64_t slowest =
      std::max<uint64_t>(1, *std::max_element(stage_ns.begin(), stage_ns.end()));
  HidingWarmups result;
  uint64_t step_ns = slowest;
  for (uint32_t i = 0; i < boundaries.size(); ++i) {
    step_ns = std::max(step_ns, boundaries[i].busy_ns);
    if (boundaries[i].busy_ns > slowest) result.exposed.push_back(i);
  }
  constexpr uint64_t kMillion = 1'000'000;
  const uint64_t short_ns =
      step_ns / kMillion * epsilon_ppm + step_ns % kMillion * epsilon_ppm / kMillion;
  std::vector<uint64_t> steps;
  for (const BoundaryTime& each : boundaries) {
    const uint64_t way_ns = each.busy_ns + each.latency_ns;
    const bool is_short = way_ns <= short_ns;
    steps.push_back(is_short ? 1 : 1 + (2 * way_ns + step_ns - 1) / step_ns);
  }
  result.counts = counts_of(steps);
  return result;
}

}  // namespace hetcomm::pipeline
