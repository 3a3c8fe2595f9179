#include "src/reshard/lane_turns.h"

#include <algorithm>

namespace hetcomm::reshard {

void LaneTurns::skip(uint64_t execution) {
  skipped_.insert(execution);
  uint64_t first = execution;
  for (const auto& counted : lanes_) {
    settle(*counted);
    first = std::min(first, counted->started / counted->messages);
  }
  skipped_.erase(skipped_.begin(), skipped_.lower_bound(first));
}

void LaneTurns::settle(Counted& counted) {
  while (skipped_.contains(counted.started / counted.messages)) {
    job_.pair(counted.lane.peer()).skip_run(counted.lane);
    ++counted.started;
  }
}

}  // namespace hetcomm::reshard
