// FarWays: whether bulk data of a device goes direct or staged over a network interface that lies
// beyond the root complex of the device.
//
// Between root complexes a direct access may be slower than a copy to the host that a near network
// interface reads, and it depends on the machine and on its load. So both ways are measured on the
// transfers of a pair, for each device, direction and size class, again and again (bulk_chooser.h).
// Staging has to be clearly faster, since it takes more of the host. Under the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/memory/memory.h"
#include "src/core/peer/bulk_chooser.h"

namespace hetcomm {

class FarWays {
 public:
  // One transfer's part in the choice.
  struct Choice {
    bool made = false;
    bool staged = false;
    size_t device = 0;
    StreamDirection direction = StreamDirection::kToHost;
    uint64_t since_ns = 0;
  };

  // Chooses for a transfer of |bytes| that begins at |now_ns|.
  Choice choose(size_t device, StreamDirection direction, uint64_t bytes,
                uint64_t now_ns) HETCOMM_UNDER_BATON {
    const bool staged = users_[{device, direction}].chooser.prefer_get(bytes) == kStaged;
    return {true, staged, device, direction, now_ns};
  }
  // The transfer of |bytes| for which |choice| was made has ended well.
  void measured(const Choice& choice, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    const auto user = users_.find({choice.device, choice.direction});
    if (user == users_.end()) return;
    // Beside its predecessors it has had the way for itself for this time.
    const uint64_t from =
        std::max(choice.since_ns, std::exchange(user->second.last_end_ns, now_ns));
    user->second.chooser.measured(bytes, choice.staged ? kStaged : kDirect, now_ns - from);
  }
  // Returns lines for people, each with the device, the direction and the costs of a size.
  std::string explain() const HETCOMM_UNDER_BATON;

 private:
  // The two ways as the chooser has them. It takes the second, a get, where that is clearly faster.
  static constexpr bool kDirect = false;
  static constexpr bool kStaged = true;

  struct User {
    BulkChooser chooser;
    uint64_t last_end_ns = 0;
  };

  std::map<std::pair<size_t, StreamDirection>, User> users_;
};

}  // namespace hetcomm
