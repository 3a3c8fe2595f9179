// RailNeeds records which transports the data of a pair has needed so far.
//
// Data is sent over connections between the network interfaces near its memory, on both sides. The
// lower rank makes these connections when such data first appears. The data waits briefly for the
// first of them. If none opens, the data uses other connections. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail_ends.h"
#include "src/system/clock.h"

namespace hetcomm {

class RailNeeds {
 public:
  // The largest number of masks that are recorded. Data with other masks uses any connection.
  static constexpr size_t kMaxNeeds = 256;

  // Records |masks|. Returns false if they are already recorded, or if kMaxNeeds are.
  bool note(const RailMasks& masks) HETCOMM_UNDER_BATON;
  bool knows(const RailMasks& masks) const HETCOMM_UNDER_BATON {
    return (last_ < all_.size() && all_[last_] == masks) || find(masks) < all_.size();
  }
  std::span<const RailMasks> all() const HETCOMM_UNDER_BATON { return all_; }

  // Makes data that needs |masks| wait for a connection until settle() ends the wait, at the latest
  // at |until_ns|. Requires that |masks| are recorded.
  void wait(const RailMasks& masks, uint64_t until_ns) HETCOMM_UNDER_BATON;
  bool is_waited_for(const RailMasks& masks) const HETCOMM_UNDER_BATON;
  // Ends the waits that have expired at |now_ns| and those for which |is_hopeless(masks)| is true.
  // Returns whether any wait ended.
  template <typename IsHopeless>
  bool settle(uint64_t now_ns, IsHopeless&& is_hopeless) HETCOMM_UNDER_BATON {
    return std::erase_if(waits_, [&](const Wait& wait) HETCOMM_UNDER_BATON {
             return now_ns >= wait.until_ns || is_hopeless(wait.masks);
           }) > 0;
  }
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;

 private:
  struct Wait {
    RailMasks masks;
    uint64_t until_ns;
  };

  size_t find(const RailMasks& masks) const HETCOMM_UNDER_BATON;

  std::vector<RailMasks> all_;
  std::vector<Wait> waits_;
  mutable size_t last_ HETCOMM_GUARDED_BY_BATON =
      0;  // index in |all_| that the last search found; most searches find it again
};

}  // namespace hetcomm
