// CoolDowns records the recent failures of connections to one peer, by their ends (RailEnds). Ends
// whose connection failed cool down before they are tried again. The time doubles with each
// failure, up to kMaxDoublings times. Ends in different subnets are not tried again
// for kHopelessNs after kMaxFailures failures without a connection, unless no others work. Callers
// hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail_ends.h"

namespace hetcomm {

class CoolDowns {
 public:
  explicit CoolDowns(uint64_t first_ns) : first_ns_(first_ns) {}

  // Returns whether a connection between |ends| failed recently and none has opened since. Other
  // ends are then preferred.
  bool is_cooling(const RailEnds& ends, uint64_t now_ns) const HETCOMM_UNDER_BATON {
    const auto known = std::find_if(known_.begin(), known_.end(),
                                    [&](const Known& each) { return each.ends == ends; });
    if (known == known_.end() || known->failures == 0 || known->up_since_ns != 0) return false;
    return known->connecting || now_ns < known->not_before_ns ||
           now_ns - known->not_before_ns < kDoubtNs;
  }
  // Returns whether a connection between |ends| is not tried again while others work.
  bool is_hopeless(const RailEnds& ends) HETCOMM_UNDER_BATON { return at(ends).hopeless; }
  // Returns when another connection between |ends| can be tried in addition to the existing ones.
  uint64_t not_before_ns(const RailEnds& ends) HETCOMM_UNDER_BATON {
    return at(ends).not_before_ns;
  }
  void came_up(const RailEnds& ends, uint64_t now_ns) HETCOMM_UNDER_BATON {
    Known& own = at(ends);
    own.up_since_ns = now_ns;
    own.was_up = true;
    if (std::exchange(own.hopeless, false)) own.not_before_ns = now_ns;
  }
  // Records a failure. |are_apart|: the ends are known to be in different subnets or fabrics.
  void failed(const RailEnds& ends, uint64_t now_ns, bool are_apart) HETCOMM_UNDER_BATON {
    Known& own = at(ends);
    const auto pause_ns = [&] { return first_ns_ << std::min(own.failures, kMaxDoublings); };
    // A connection that lasted a long time resets the count.
    if (own.up_since_ns != 0 && now_ns - own.up_since_ns > pause_ns() * 10) own.failures = 0;
    own.up_since_ns = 0;
    own.not_before_ns = now_ns + pause_ns();
    ++own.failures;
    own.hopeless = are_apart && !own.was_up && own.failures >= kMaxFailures;
    if (own.hopeless) own.not_before_ns = now_ns + kHopelessNs;
  }

  // Returns whether an additional connection between |ends| is being made.
  bool is_connecting(const RailEnds& ends) HETCOMM_UNDER_BATON { return at(ends).connecting; }
  template <typename Which>
  bool is_connecting_any(Which&& which) const HETCOMM_UNDER_BATON {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const Known& each) { return each.connecting && which(each.ends); });
  }
  void begin_connecting(const RailEnds& ends) HETCOMM_UNDER_BATON { at(ends).connecting = true; }
  // Returns false if no connection was being made.
  bool stop_connecting(const RailEnds& ends) HETCOMM_UNDER_BATON {
    return std::exchange(at(ends).connecting, false);
  }

 private:
  // For this time after their cool-down, ends are still tried after all others, since a pair
  // without a connection should not lose time with ends that may fail again.
  static constexpr uint64_t kDoubtNs = 1'000'000'000;
  static constexpr uint32_t kMaxDoublings = 6;
  static constexpr uint32_t kMaxFailures = 4;
  static constexpr uint64_t kHopelessNs = 600'000'000'000;

  struct Known {
    RailEnds ends;
    bool connecting = false;
    bool was_up = false;    // a connection has opened once
    bool hopeless = false;  // see is_hopeless()
    uint32_t failures = 0;  // consecutive failures
    uint64_t not_before_ns = 0;
    uint64_t up_since_ns = 0;
  };

  Known& at(const RailEnds& ends) HETCOMM_UNDER_BATON {
    for (Known& each : known_) {
      if (each.ends == ends) return each;
    }
    return known_.emplace_back(Known{.ends = ends});
  }

  const uint64_t first_ns_;
  std::vector<Known> known_;
};

}  // namespace hetcomm
