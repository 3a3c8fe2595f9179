// Reachability measures how long this rank has failed to reach one peer, and decides when that is
// too long. Callers hold the baton.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/system/clock.h"

namespace hetcomm {

class Reachability {
 public:
  // |detection_ns|: the shortest time after which a peer counts as unreachable.
  explicit Reachability(uint64_t detection_ns) : detection_ns_(detection_ns) {}

  // Resets this object after a connection has opened.
  void reached() HETCOMM_UNDER_BATON { *this = Reachability(detection_ns_); }
  // Records that other ranks have received messages from the peer since it became unreachable.
  void vouched() HETCOMM_UNDER_BATON { vouched_ = true; }
  bool is_vouched() const HETCOMM_UNDER_BATON { return vouched_; }

  // Records that the last remaining connection has broken.
  void connection_broke(uint64_t now_ns) HETCOMM_UNDER_BATON {
    begin(now_ns);
    ++breaks_;
  }
  bool keeps_breaking(uint64_t now_ns) const HETCOMM_UNDER_BATON {
    return breaks_ > kMaxBreaks && is_long(now_ns);
  }
  // Returns the pause before the next attempt.
  uint64_t pause_after_break_ns() const HETCOMM_UNDER_BATON {
    return std::min(kMaxPauseNs, kMinPauseNs << std::min<uint64_t>(breaks_, 7));
  }

  // Records that no transport could connect.
  void connect_failed(uint64_t now_ns) HETCOMM_UNDER_BATON {
    begin(now_ns);
    ++failures_;
  }
  bool is_first_failure() const HETCOMM_UNDER_BATON { return failures_ == 1; }
  bool is_hopeless(uint64_t now_ns) const HETCOMM_UNDER_BATON {
    return is_long(now_ns) && failures_ >= kMinFailures;
  }
  uint64_t pause_after_failure_ns(uint64_t now_ns) const HETCOMM_UNDER_BATON {
    return std::clamp((now_ns - since_ns_) / 4, kMinPauseNs, kMaxPauseNs);
  }

 private:
  static constexpr uint64_t kMinPauseNs = 10'000'000;
  static constexpr uint64_t kMaxPauseNs = 1'000'000'000;
  static constexpr uint64_t kMaxBreaks = 8;
  // The minimum number of failed connection attempts before the peer counts as unreachable. A rank
  // that computes for a long time between calls makes few attempts.
  static constexpr uint64_t kMinFailures = 8;

  void begin(uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (since_ns_ == kForever) since_ns_ = now_ns;
  }
  bool is_long(uint64_t now_ns) const HETCOMM_UNDER_BATON {
    return now_ns >= since_ns_ + detection_ns_;
  }

  uint64_t detection_ns_;
  uint64_t since_ns_ = kForever;  // time of the first break or failed attempt
  uint64_t breaks_ = 0;
  uint64_t failures_ = 0;  // failed connection attempts
  bool vouched_ = false;
};

}  // namespace hetcomm
