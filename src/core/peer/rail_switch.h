// RailSwitch moves the messages of a pair from one connection to another. All callers hold the
// baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/extra_rails.h"
#include "src/core/peer/traffic.h"
#include "src/system/clock.h"

namespace hetcomm {

class RailSwitch {
 public:
  RailSwitch(Association& association, Traffic& traffic, ExtraRails& extra_rails, Engine& engine)
      : association_(association), traffic_(traffic), extra_rails_(extra_rails), engine_(engine) {}
  RailSwitch(const RailSwitch&) = delete;
  RailSwitch& operator=(const RailSwitch&) = delete;

  // Starts to use |rail|, which is open in both directions. The messages move to |rail| if it is
  // better than the current rail, or if there is none. Otherwise it only shares the bulk data.
  void use(Rail& rail) HETCOMM_UNDER_BATON;
  // Switches to |rail|, and first resends everything that the peer may not have received.
  void go_over_to(Rail& rail) HETCOMM_UNDER_BATON;
  // Resumes sending after a pause: resends the messages that the last connection may have lost,
  // then sends pending ones. Declares the peer lost if the connection cannot carry the resent
  // messages.
  void resume() HETCOMM_UNDER_BATON;
  // Moves the messages to the connection that the peer uses, if the peer has announced that it no
  // longer uses the current one.
  void follow_peer() HETCOMM_UNDER_BATON;
  // Stops using |rail|, the current connection, which is being dropped.
  void leave(const Rail& rail) HETCOMM_UNDER_BATON;

  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return take_over_at_ns_; }
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void stop() HETCOMM_UNDER_BATON { take_over_at_ns_ = kForever; }

 private:
  void take_over(Rail& rail) HETCOMM_UNDER_BATON;

  Association& association_;
  Traffic& traffic_;
  ExtraRails& extra_rails_;
  Engine& engine_;
  uint64_t take_over_at_ns_ = kForever;  // when to retry the switch to a better rail
};

}  // namespace hetcomm
