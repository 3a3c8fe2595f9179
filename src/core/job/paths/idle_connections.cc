#include "src/core/job/paths/idle_connections.h"

#include <algorithm>
#include <array>

#include "src/system/descriptors.h"

namespace hetcomm {

void IdleConnections::run() {
  constexpr uint64_t kFirstPauseNs = 10'000'000;
  constexpr uint64_t kLongestPauseNs = 1'000'000'000;
  at_ns_ = kForever;
  if (!descriptors_run_short()) {
    pause_ns_ = kFirstPauseNs;
    return;
  }
  // Two peers are asked, because one of them may refuse.
  std::array<Pair*, 2> most_idle{};
  std::array<uint32_t, 2> looks{};
  const uint64_t now = engine_.refresh_now();
  for (Pair* const pair : pairs_.active()) {
    const uint32_t count = pair->idle_closer().count_idle();
    if (pair->rank() == rank_ || !pair->idle_closer().may_ask(now)) continue;
    if (most_idle[0] == nullptr || count > looks[0]) {
      most_idle = {pair, most_idle[0]};
      looks = {count, looks[0]};
    } else if (most_idle[1] == nullptr || count > looks[1]) {
      most_idle[1] = pair;
      looks[1] = count;
    }
  }
  // While there is no peer to ask, the checks become less frequent.
  pause_ns_ = most_idle[0] != nullptr ? kFirstPauseNs : std::min(2 * pause_ns_, kLongestPauseNs);
  at_ns_ = now + pause_ns_;
  for (Pair* const pair : most_idle) {
    if (pair != nullptr) pair->idle_closer().ask();
  }
}

}  // namespace hetcomm
