// FarWays: whether bulk data of a device goes direct or staged over a network interface that lies
// beyond the root complex of the device.
//
// Between root complexes a direct access may be slower than a copy to the host that a near network
// interface reads, and it depends on the machine and on its load. So both ways are measured on the
// transfers of a pair, for each device, direction and size class, again and again (bulk_chooser.h).
// Staging has to be clearly faster, since it takes more of the host.
//
// Both ends of a transfer may have such a choice, and neither knows of the other's. They take turns
// with their trials, by the number of the transfer, so that what one of them measures is not what
// the other one tries. Under the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/memory/memory.h"
#include "src/core/peer/transfer/bulk_chooser.h"

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
    bool changed = false;      // some of it may have gone the other way
    uint64_t moved_bytes = 0;  // over far network interfaces, the way that was chosen

    // There is nothing to stage through: what is left goes direct.
    void give_up_staging() {
      staged = false;
      changed = true;
    }
  };

  // Chooses for a transfer of |bytes| that begins at |now_ns|.
  Choice choose(size_t device, StreamDirection direction, uint64_t bytes,
                uint64_t now_ns) HETCOMM_UNDER_BATON {
    User& user = users_[{device, direction}];
    const bool first_turn = user.transfers++ / kTurn % 2 == 0;
    const bool may_try = first_turn == (direction == StreamDirection::kToHost);
    const bool staged = user.chooser.prefer_get(bytes, may_try) == kStaged;
    return {.made = true,
            .staged = staged,
            .device = device,
            .direction = direction,
            .since_ns = now_ns};
  }
  // The transfer of |bytes| for which |choice| was made has ended well. It counts if all of it went
  // as chosen: other network interfaces may be near the device, or have stood in for one.
  void measured(const Choice& choice, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    const auto user = users_.find({choice.device, choice.direction});
    if (user == users_.end()) return;
    // Beside its predecessors it has had the way for itself for this time.
    const uint64_t from =
        std::max(choice.since_ns, std::exchange(user->second.last_end_ns, now_ns));
    if (choice.changed || choice.moved_bytes != bytes) return;
    user->second.chooser.measured(bytes, choice.staged ? kStaged : kDirect, now_ns - from);
  }
  // Returns lines for people, each with the device, the direction and the costs of a size.
  std::string explain() const HETCOMM_UNDER_BATON;

 private:
  // The two ways as the chooser has them. It takes the second, a get, where that is clearly faster.
  static constexpr bool kDirect = false;
  static constexpr bool kStaged = true;

  // Transfers of a turn. The first trials of both ways fit into one.
  static constexpr uint64_t kTurn = 8;
  static_assert(kTurn >= 2 * TwoWays::kBurst);

  struct User {
    BulkChooser chooser;
    uint64_t transfers = 0;  // that have begun
    uint64_t last_end_ns = 0;
  };

  std::map<std::pair<size_t, StreamDirection>, User> users_;
};

}  // namespace hetcomm
