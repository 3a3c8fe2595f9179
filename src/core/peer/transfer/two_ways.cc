#include "src/core/peer/transfer/two_ways.h"

#include <algorithm>
#include <utility>

namespace hetcomm {

void TwoWays::begin_trial(Way way) {
  tried_ = way;
  to_measure_ = kBurst;
  since_trial_ = 0;
  slow_in_row_ = 0;
  budget_ns_ = 0;
}

void TwoWays::begin_hasty_trial(Way way) {
  begin_trial(way);
  hasty_ = true;
}

void TwoWays::stop_trial() {
  to_measure_ = 0;
  hasty_ = false;
}

bool TwoWays::may_try(double extra_ns) const {
  return since_trial_ >= kBetweenTrials && budget_ns_ >= kBurst * extra_ns;
}

double TwoWays::extra_ns(Way in_use, uint64_t bytes) const {
  const double extra = cost(other_way(in_use)) - cost(in_use);
  return std::max(0.0, extra) * static_cast<double>(bytes);
}

// Uses the median, since one message may have been delayed by a thread switch, or by memory that
// was not yet mapped.
bool TwoWays::measured_in_trial(double ns_per_byte) {
  trial_[--to_measure_] = ns_per_byte;
  if (to_measure_ > 0) return false;
  std::sort(trial_.begin(), trial_.end());
  set_cost(tried_, trial_[kBurst / 2]);
  return true;
}

void TwoWays::trial_ended(Way in_use) {
  if (!std::exchange(hasty_, false)) return;
  before_hasty_ = in_use == tried_ ? kBetweenTrials : std::min(2 * before_hasty_, kMaxBeforeHasty);
}

bool TwoWays::measured_in_use(Way in_use, double ns_per_byte, double elapsed_ns, uint32_t count) {
  const double average = cost(in_use);
  since_trial_ += count;
  budget_ns_ += kShare * elapsed_ns * count;
  slow_in_row_ = ns_per_byte > 2 * average ? slow_in_row_ + 1 : 0;
  if (slow_in_row_ < kSlowInRow) {
    set_cost(in_use, average + 0.1 * (std::min(ns_per_byte, 2 * average) - average));
    return false;
  }
  set_cost(in_use, ns_per_byte);
  slow_in_row_ = 0;
  return since_trial_ >= before_hasty_ && !trying();
}

}  // namespace hetcomm
