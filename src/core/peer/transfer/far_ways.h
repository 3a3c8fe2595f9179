// FarWays: whether bulk data of a device goes directly or staged over a network interface beyond
// the device's root complex.
//
// Between root complexes a direct access may be slower than a copy to the host that a near network
// interface reads. Which is faster depends on the machine and on its load. So both ways are
// measured again and again on the transfers of a pair, for each device, direction and size class
// (bulk_chooser.h). Staging has to be clearly faster, since it uses more of the host.
//
// Both ends of a transfer may have such a choice, and neither knows of the other's. They alternate
// their trials by the number of the transfer, so that one end does not measure what the other end
// tries. Under the baton.
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
  // The part of one transfer in the choice.
  struct Choice {
    bool made = false;
    bool staged = false;
    size_t device = 0;
    StreamDirection direction = StreamDirection::kToHost;
    uint64_t since_ns = 0;
    bool changed = false;      // some of it may have gone the other way
    uint64_t moved_bytes = 0;  // bytes that took the chosen way over far network interfaces

    // There is no memory to stage through: the rest goes directly.
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
  // as chosen: other network interfaces may be near the device, or have replaced one.
  void measured(const Choice& choice, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    const auto user = users_.find({choice.device, choice.direction});
    if (user == users_.end()) return;
    // This is the time since it began or, if later, since its predecessor ended.
    const uint64_t from =
        std::max(choice.since_ns, std::exchange(user->second.last_end_ns, now_ns));
    if (choice.changed || choice.moved_bytes != bytes) return;
    user->second.chooser.measured(bytes, choice.staged ? kStaged : kDirect, now_ns - from);
  }
  // Returns lines of text for people, each with the device, the direction and the costs of a size.
  std::string explain() const HETCOMM_UNDER_BATON;

 private:
  // The chooser's names of the two ways. It takes the second, a get, if that is clearly faster.
  static constexpr bool kDirect = false;
  static constexpr bool kStaged = true;

  // Transfers of one turn. The first trials of both ways fit into one turn.
  static constexpr uint64_t kTurn = 8;
  static_assert(kTurn >= 2 * TwoWays::kBurst);

  struct User {
    BulkChooser chooser;
    uint64_t transfers = 0;  // transfers that have begun
    uint64_t last_end_ns = 0;
  };

  std::map<std::pair<size_t, StreamDirection>, User> users_;
};

}  // namespace hetcomm
