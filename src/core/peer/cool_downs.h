// CoolDowns: how the transports to one peer have done lately. A transport whose connection failed
// cools down, for longer each time, before it is tried again. Under the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"

namespace hetcomm {

class CoolDowns {
 public:
  explicit CoolDowns(uint64_t first_ns) : first_ns_(first_ns) {}

  // Transport |index| failed lately: others come first.
  bool is_cooling(size_t index, uint64_t now_ns) const HETCOMM_UNDER_BATON {
    if (index >= transports_.size() || transports_[index].failures == 0) return false;
    return transports_[index].not_before_ns + kDoubtNs > now_ns;
  }
  // Returns when the transport may be tried again beside others.
  uint64_t not_before_ns(size_t index) HETCOMM_UNDER_BATON { return at(index).not_before_ns; }
  void came_up(size_t index, uint64_t now_ns) HETCOMM_UNDER_BATON {
    at(index).up_since_ns = now_ns;
  }
  void failed(size_t index, uint64_t now_ns) HETCOMM_UNDER_BATON {
    Transport& own = at(index);
    // After a long time it starts anew.
    if (own.up_since_ns != 0 && now_ns - own.up_since_ns > (first_ns_ << own.failures) * 10) {
      own.failures = 0;
    }
    own.up_since_ns = 0;
    own.not_before_ns = now_ns + (first_ns_ << std::min<uint32_t>(own.failures, kMostDoublings));
    ++own.failures;
  }

  // A connection over it, beside others, is being made.
  bool is_connecting(size_t index) HETCOMM_UNDER_BATON { return at(index).connecting; }
  void begin_connecting(size_t index) HETCOMM_UNDER_BATON { at(index).connecting = true; }
  // False: none was.
  bool stop_connecting(size_t index) HETCOMM_UNDER_BATON {
    return std::exchange(at(index).connecting, false);
  }

 private:
  // A transport is taken after all others for so long after it has cooled down: a pair without a
  // connection has no time to find out that it fails again.
  static constexpr uint64_t kDoubtNs = 1'000'000'000;
  static constexpr uint32_t kMostDoublings = 6;

  struct Transport {
    bool connecting = false;
    uint32_t failures = 0;  // in a row
    uint64_t not_before_ns = 0;
    uint64_t up_since_ns = 0;
  };

  Transport& at(size_t index) HETCOMM_UNDER_BATON {
    if (index >= transports_.size()) transports_.resize(index + 1);
    return transports_[index];
  }

  const uint64_t first_ns_;
  std::vector<Transport> transports_;
};

}  // namespace hetcomm
