// ExtraRails manages the connections of a pair other than the one that carries its messages.
//
// The lower rank makes these connections over transports that are better or would share the load.
// After a failure it first lets a transport cool down. Its choice depends on the data seen so far
// (rail_needs.h). The higher rank reports which transports its own data needs (kRailsWanted). After
// a failover, messages return to their preferred connection as soon as it can be made again. A rail
// that is no longer useful, for example because a better one has replaced it, is closed if a later
// check finds it unused. The lower rank announces that it no longer uses the rail (kRailUnused).
// Once the higher rank has nothing in flight on the rail, it closes the rail and answers
// (kRailClosed). All callers hold the baton.
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
  ExtraRails(Association& association, Traffic& traffic, const ConnectionServices& services)
      : association_(association),
        services_(services),
        traffic_(traffic),
        cool_downs_(services.terms.cool_down_ns) {}
  ExtraRails(const ExtraRails&) = delete;
  ExtraRails& operator=(const ExtraRails&) = delete;

  CoolDowns& cool_downs() HETCOMM_UNDER_BATON { return cool_downs_; }

  // Called when data has to be sent between transports of |masks| for the first time. If a
  // connection between these transports is likely to open, the data waits for it.
  void need(const RailMasks& masks) HETCOMM_UNDER_BATON;
  // Handles the report of the peer, the higher rank, that it has data for transports of |masks|.
  void wanted_by_peer(const RailMasks& masks) HETCOMM_UNDER_BATON;
  // Returns whether |rail| should take over the messages from the current rail. It should if it is
  // clearly better or, on the lower rank, if it is the preferred rail.
  bool is_better(const Rail& rail) HETCOMM_UNDER_BATON;
  Rail* better_one() HETCOMM_UNDER_BATON;
  // Makes connections over the useful transports that have cooled down. Does nothing on the higher
  // rank.
  void connect() HETCOMM_UNDER_BATON;
  // Records that a connection between |ends| could not be made.
  void connect_failed(const RailEnds& ends, const Status& why) HETCOMM_UNDER_BATON;
  // Schedules a check that closes the superfluous rails that are unused at that time.
  void plan_to_close() HETCOMM_UNDER_BATON { plan_to_close(kCoolDowns); }
  // Handle the peer's reports that it no longer uses rail |id|, or that it has closed it.
  void receive_unused(uint64_t id) HETCOMM_UNDER_BATON;
  void receive_closed(uint64_t id) HETCOMM_UNDER_BATON;
  // Returns whether this rank has, or will have, anything in flight on |rail|, or uses it for
  // messages.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON;
  // Stops this object because the peer has left or the pair is lost.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }

  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON {
    return stopped_ ? kForever
                    : std::min({connect_at_ns_, close_at_ns_, association_.expected_until_ns(),
                                association_.needs().next_timer_ns()});
  }
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;

 private:
  // Superfluous rails are checked after this many cool-downs, since they may be needed again soon.
  // Those that are unused at that moment are closed.
  static constexpr uint64_t kCoolDowns = 10;

  void plan_to_close(uint64_t cool_downs) HETCOMM_UNDER_BATON;
  void expect() HETCOMM_UNDER_BATON;
  bool is_under_way(const RailMasks& masks) HETCOMM_UNDER_BATON;
  void settle(uint64_t now_ns) HETCOMM_UNDER_BATON;
  std::vector<RailEnds> useful() HETCOMM_UNDER_BATON;
  // Returns the ends of the connection that would carry the messages if nothing had failed.
  // Requires a current connection.
  RailEnds preferred() HETCOMM_UNDER_BATON;
  std::vector<Rail*> superfluous() HETCOMM_UNDER_BATON;
  void close_unused() HETCOMM_UNDER_BATON;

  Association& association_;
  const ConnectionServices& services_;
  Traffic& traffic_;
  CoolDowns cool_downs_;
  bool stopped_ = false;
  uint64_t connect_at_ns_ = kForever;  // when to connect over a transport that has cooled down
  uint64_t close_at_ns_ = kForever;    // when to look for superfluous rails
};

}  // namespace hetcomm
