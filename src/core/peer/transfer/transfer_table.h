// TransferTable holds the transfers in progress with one peer, indexed by the ids that messages
// contain, and the state that the transfers share. All callers hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/transfer/bulk_chooser.h"
#include "src/core/peer/transfer/far_ways.h"
#include "src/core/peer/transfer/offers.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/id_chains.h"
#include "src/core/progress/slot_table.h"
#include "src/system/clock.h"

namespace hetcomm {

class SendTransfer;
class ReceiveTransfer;

// A PutTarget is memory that was exposed under a cookie and granted to the peer.
class PutTarget {
 public:
  // Called when another |length| bytes of puts have arrived.
  virtual void on_arrived(uint64_t length) HETCOMM_UNDER_BATON = 0;
  // Called when the peer's transfer |sender_id| offers bytes instead of putting them.
  virtual void on_offered(const OfferBody& offer, uint64_t sender_id) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PutTarget() = default;
};

class TransferTable {
 public:
  TransferTable(Association& association, DataServices& data)
      : association_(association), data_(data) {}
  TransferTable(const TransferTable&) = delete;
  TransferTable& operator=(const TransferTable&) = delete;

  Association& association() HETCOMM_UNDER_BATON { return association_; }
  DataServices& data() HETCOMM_UNDER_BATON { return data_; }
  SlotTable<SendTransfer>& sends() HETCOMM_UNDER_BATON { return sends_; }
  SlotTable<ReceiveTransfer>& receives() HETCOMM_UNDER_BATON { return receives_; }
  // Adds |receive|, which receives the data of the peer's transfer |sender_id|. Returns its id in
  // receives(). May throw std::bad_alloc.
  template <typename Receive>
  uint64_t add(Receive& receive, uint64_t sender_id) HETCOMM_UNDER_BATON {
    by_sender_.make_room();
    const uint64_t id = receives_.insert(&receive);
    by_sender_.insert(receive, sender_id);
    return id;
  }
  // Removes |receive|, whose id in receives() is |id|. Does nothing if it was removed before.
  template <typename Receive>
  void remove(Receive& receive, uint64_t id) HETCOMM_UNDER_BATON {
    if (receives_.erase(id)) by_sender_.erase(receive);
  }
  // Returns the receive for the peer's transfer |sender_id|, or null.
  ReceiveTransfer* find_receive(uint64_t sender_id) const HETCOMM_UNDER_BATON;
  // Returns the put targets, indexed by cookie.
  SlotTable<PutTarget>& targets() HETCOMM_UNDER_BATON { return targets_; }
  bool empty() const HETCOMM_UNDER_BATON {
    return unanswered_ == 0 && sends_.empty() && receives_.empty() && targets_.empty();
  }

  // Returns whether another announcement can be sent. The number of announcements that the peer has
  // not matched is limited.
  bool may_announce() const HETCOMM_UNDER_BATON { return unanswered_ < kMaxAnnounced; }
  void announcement_left() HETCOMM_UNDER_BATON { ++unanswered_; }
  // Records that the peer has matched an announcement, or that its transfer has ended. Sends that
  // wait for this start at the end of the pass.
  void announcement_answered() HETCOMM_UNDER_BATON {
    if (unanswered_-- == kMaxAnnounced) {
      association_.update_due();
    }
  }

  Offers& offers() HETCOMM_UNDER_BATON { return offers_; }
  // Returns the chooser that decides whether the receiver reads or the sender writes.
  BulkChooser& chooser() HETCOMM_UNDER_BATON { return chooser_; }
  FarWays& far_ways() HETCOMM_UNDER_BATON { return far_ways_; }
  // Returns whether data of |operation| should be staged although |rail| can access it directly.
  // The decision is made for the first piece over a far network interface and applies to the whole
  // transfer. |choice| records it.
  bool prefers_staging(const Operation& operation, const Rail& rail, StreamDirection direction,
                       uint64_t bytes, FarWays::Choice& choice) HETCOMM_UNDER_BATON {
    const std::optional<size_t> device = data_.far_device(operation, rail.ends.own);
    if (!device) return false;
    if (!choice.made) choice = far_ways_.choose(*device, direction, bytes, now_ns());
    return choice.staged;
  }
  // Returns whether data of |operation| counts as moved in the chosen way: |rail| uses a far
  // network interface, and |staged| is as |choice| says.
  bool is_as_chosen(const Operation& operation, const Rail& rail, bool staged,
                    const FarWays::Choice& choice) HETCOMM_UNDER_BATON {
    return choice.made && staged == choice.staged && data_.far_device(operation, rail.ends.own);
  }
  // Returns the duration of a transfer that began at |started_ns| and has just finished. The time
  // before the previous transfer finished does not count.
  uint64_t service_time(uint64_t started_ns, uint64_t now_ns) HETCOMM_UNDER_BATON {
    const uint64_t from = std::max(started_ns, std::exchange(last_end_ns_, now_ns));
    return now_ns - from;
  }

 private:
  Association& association_;
  DataServices& data_;
  SlotTable<PutTarget> targets_;
  SlotTable<SendTransfer> sends_;
  SlotTable<ReceiveTransfer> receives_;
  IdChains<ReceiveTransfer> by_sender_;
  uint64_t unanswered_ = 0;  // announcements that the peer has not matched yet
  Offers offers_;
  BulkChooser chooser_;
  FarWays far_ways_;
  uint64_t last_end_ns_ = 0;
};

}  // namespace hetcomm
