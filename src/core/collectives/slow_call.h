// Decides when a rank reports a slow call, and to which ranks, so that ranks notice if they wait
// for calls that others do not make.
//
// The next rank is told first, and then the ranks that the operation waits for, some at a time. If
// a waiting rank has made a different call than another rank awaits, it tells that rank. Under the
// baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/system/clock.h"

namespace hetcomm::collectives {

class SlowCall {
 public:
  void start(uint64_t now_ns) HETCOMM_UNDER_BATON { at_ns_ = now_ns + kFirstNs; }
  uint64_t next_ns() const HETCOMM_UNDER_BATON { return at_ns_; }
  // Calls tell(rank) for |next| the first time, and then for some ranks in |awaited|, which is
  // sorted. Each round through |awaited| takes twice as long as the previous one.
  template <typename Tell>
  void tell(uint64_t now_ns, int next, const std::vector<int>& awaited,
            Tell&& tell) HETCOMM_UNDER_BATON {
    constexpr size_t kAtOnce = 8;
    if (now_ns < at_ns_) return;
    if (told_ < 0) {
      tell(next);
      told_ = 0;
    }
    auto rank = std::lower_bound(awaited.begin(), awaited.end(), told_);
    for (size_t i = 0; i < kAtOnce && rank != awaited.end(); ++i, ++rank) {
      if (*rank != next || period_ns_ > kFirstNs) tell(*rank);
      told_ = *rank + 1;
    }
    if (rank == awaited.end()) {
      told_ = 0;
      period_ns_ *= 2;
    }
    at_ns_ = now_ns + period_ns_;
  }

 private:
  static constexpr uint64_t kFirstNs = 20'000'000;

  uint64_t at_ns_ = kForever;
  uint64_t period_ns_ = kFirstNs;
  // All ranks of |awaited| below this one were told in this round. -1: no rank was told yet.
  int told_ = -1;
};

}  // namespace hetcomm::collectives
