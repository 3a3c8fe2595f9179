#include "src/core/peer/rails/rail_needs.h"

#include <algorithm>

namespace hetcomm {

size_t RailNeeds::find(const RailMasks& masks) const {
  const auto found = std::find(all_.begin(), all_.end(), masks);
  last_ = static_cast<size_t>(found - all_.begin());
  return last_;
}

bool RailNeeds::note(const RailMasks& masks) {
  if (knows(masks) || all_.size() == kMaxNeeds) return false;
  all_.push_back(masks);
  return true;
}

void RailNeeds::wait(const RailMasks& masks, uint64_t until_ns) {
  waits_.push_back({masks, until_ns});
}

bool RailNeeds::is_waited_for(const RailMasks& masks) const {
  return std::any_of(waits_.begin(), waits_.end(),
                     [&](const Wait& wait) { return wait.masks == masks; });
}

uint64_t RailNeeds::next_timer_ns() const {
  uint64_t next = kForever;
  for (const Wait& wait : waits_) next = std::min(next, wait.until_ns);
  return next;
}

}  // namespace hetcomm
