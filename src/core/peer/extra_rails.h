// ExtraRails: the connections of a pair beside the one that messages go over.
//
// The lower rank makes them, over transports that would share the load, or would be better, once
// those have cooled down. Which ones would, follows from the data that has come up (rail_needs.h):
// the higher rank tells of its own (kRailsWanted). A rail that a better one has replaced, or that
// stood in for one that was down, is closed when it stays unused: the lower rank says so
// (kRailUnused), the higher one closes it once nothing of its own is under way there, and answers
// (kRailClosed). After a failover messages return to the connection that they would have gone over
// first, as soon as it can be made again. Under the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/rails/cool_downs.h"
#include "src/core/peer/traffic.h"
#include "src/system/clock.h"

namespace hetcomm {

class ExtraRails {
 public:
  ExtraRails(Association& association, Traffic& traffic)
      : association_(association),
        traffic_(traffic),
        cool_downs_(association.common().cool_down_ns) {}
  ExtraRails(const ExtraRails&) = delete;
  ExtraRails& operator=(const ExtraRails&) = delete;

  CoolDowns& cool_downs() HETCOMM_UNDER_BATON { return cool_downs_; }

  // Data has come up that goes between transports of |masks|, which are a new need of the
  // association. Its first data waits if there is hope for such a connection.
  void need(const RailMasks& masks) HETCOMM_UNDER_BATON;
  // The peer, the higher rank, has such data.
  void wanted_by_peer(const RailMasks& masks) HETCOMM_UNDER_BATON;
  // |rail| should take over the messages from the current one: it is clearly better, or has failed
  // before and is the one that the lower rank would have taken first.
  bool is_better(const Rail& rail) HETCOMM_UNDER_BATON;
  Rail* better_one() HETCOMM_UNDER_BATON;
  // Connects to what is useful and has cooled down.
  void connect() HETCOMM_UNDER_BATON;
  // A connection between |ends| could not be made.
  void connect_failed(const RailEnds& ends, const Status& why) HETCOMM_UNDER_BATON;
  // Some rail may be superfluous: it is closed when it has not been used for a while.
  void plan_to_close() HETCOMM_UNDER_BATON { plan_to_close(kCoolDowns); }
  // The peer says that it uses that rail no more, or has closed it.
  void receive_unused(uint64_t id) HETCOMM_UNDER_BATON;
  void receive_closed(uint64_t id) HETCOMM_UNDER_BATON;
  // Something of this side's is under way on |rail|, or will be.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON;
  // The peer has left, or the pair is lost: nothing is done any more.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }

  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON {
    return stopped_
               ? kForever
               : std::min({connect_at_ns_, close_at_ns_, association_.needs().next_timer_ns()});
  }
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;

 private:
  // A rail that nobody has used for so many cool-downs is closed: it may be needed again soon.
  static constexpr uint64_t kCoolDowns = 10;

  void plan_to_close(uint64_t cool_downs) HETCOMM_UNDER_BATON;
  bool is_under_way(const RailMasks& masks) HETCOMM_UNDER_BATON;
  void settle(uint64_t now_ns) HETCOMM_UNDER_BATON;
  std::vector<RailEnds> useful() HETCOMM_UNDER_BATON;
  // The ends of the connection that messages would go over if nothing had failed. There is a
  // current connection.
  RailEnds preferred() HETCOMM_UNDER_BATON;
  std::vector<Rail*> superfluous() HETCOMM_UNDER_BATON;
  void close_unused() HETCOMM_UNDER_BATON;

  Association& association_;
  Traffic& traffic_;
  CoolDowns cool_downs_;
  bool stopped_ = false;
  uint64_t connect_at_ns_ = kForever;  // when a transport has cooled down
  uint64_t close_at_ns_ = kForever;    // when superfluous rails are looked at
};

}  // namespace hetcomm
