// FarWays decides whether bulk data in device memory is moved directly or staged over a network
// interface that is beyond the device's root complex (a far network interface).
//
// Direct access across root complexes can be slower than staging through host memory. The faster
// way depends on the machine and on its load. Both are therefore measured repeatedly on the
// transfers of a pair, for each device, direction and size class (bulk_chooser.h). Staging is
// chosen only if it is clearly faster, since it uses more resources of the host.
//
// Each end of a transfer can have this choice, and does not know the other end's choice. The ends
// alternate their trials by the number of the transfer, so neither measures the other's trial. All
// callers hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/peer/transfer/bulk_chooser.h"

namespace hetcomm {

class FarWays {
 public:
  // The choice for one transfer, and a record of the way that its bytes were moved.
  struct Choice {
    bool made = false;
    bool staged = false;
    size_t device = 0;
    StreamDirection direction = StreamDirection::kToHost;
    uint64_t since_ns = 0;
    bool changed = false;      // some bytes may not have been moved as |staged| says
    uint64_t moved_bytes = 0;  // bytes moved the chosen way over far interfaces

    // Records that the rest is moved directly because there is no memory for staging.
    void give_up_staging() {
      staged = false;
      changed = true;
    }
  };

  // Chooses direct or staged for a transfer of |bytes| that begins at |now_ns|.
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
  // Records that the transfer of |bytes| for which |choice| was made has succeeded. The time counts
  // only if all bytes were moved the chosen way, and none over a network interface near the device.
  void measured(const Choice& choice, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    const auto user = users_.find({choice.device, choice.direction});
    if (user == users_.end()) return;
    // The time counts from the beginning of the transfer or, if that is later, from the end of the
    // previous one.
    const uint64_t from =
        std::max(choice.since_ns, std::exchange(user->second.last_end_ns, now_ns));
    if (choice.changed || choice.moved_bytes != bytes) return;
    user->second.chooser.measured(bytes, choice.staged ? kStaged : kDirect, now_ns - from);
  }
  // Returns a readable text, with a line for each device, direction and size whose two costs are
  // known.
  std::string explain() const HETCOMM_UNDER_BATON;

 private:
  // The two ways as results of BulkChooser::prefer_get(). It returns true if a get, here staging,
  // is clearly faster.
  static constexpr bool kDirect = false;
  static constexpr bool kStaged = true;

  // The two ends take turns with their trials. A turn lasts for this many transfers, which is
  // enough for the first trials of both ways.
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
