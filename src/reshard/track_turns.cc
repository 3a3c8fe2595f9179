#include "src/reshard/track_turns.h"

#include <algorithm>

namespace hetcomm::reshard {

void TrackTurns::skip(uint64_t execution) {
  skipped_.insert(execution);
  uint64_t first = execution;
  for (const auto& counted : tracks_) {
    const uint32_t messages = counted->messages;
    job_.pair(counted->track.peer()).give_up_runs(counted->track, execution * messages, messages);
    settle(*counted);
    first = std::min(first, counted->started / messages);
  }
  skipped_.erase(skipped_.begin(), skipped_.lower_bound(first));
}

void TrackTurns::settle(Counted& counted) {
  while (skipped_.contains(counted.started / counted.messages)) {
    const uint64_t rest = counted.messages - counted.started % counted.messages;
    if (!job_.pair(counted.track.peer()).skip_runs(counted.track, rest)) return;
    counted.started += rest;
  }
}

}  // namespace hetcomm::reshard
