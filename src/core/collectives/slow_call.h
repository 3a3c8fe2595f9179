// SlowCall decides when a rank reports a slow call, and to which ranks, so that ranks notice if
// they wait for calls that others do not make.
//
// The report goes to the next rank first, and then to the ranks that the operation waits for, a few
// at a time. A rank that receives a report of a call that differs from its own can thus detect the
// difference. Callers hold the baton.
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
  // Calls tell(rank) for |next| the first time, and then for some ranks of |awaited|, which must be
  // sorted. The interval between calls doubles after each round through |awaited|. Does nothing
  // before next_ns().
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
  // In this round, tell() was called for all ranks of |awaited| below this one. -1 if it was not
  // called for any rank yet.
  int told_ = -1;
};

}  // namespace hetcomm::collectives
