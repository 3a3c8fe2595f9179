// A Pair connects this rank with one peer. It makes connections, continues over the remaining ones
// when one fails, and fails all operations when the peer is lost.
//
//   kIdle --first use--> kConnecting --connected, kOpen exchanged--> kReady
//                             ^                                         |
//                             +--- last connection broke, peer alive ---+
//   kReady --idle connection closed--> kIdle
//   any --peer lost--> kLost
//
// A pair can have several connections (rails). Messages are sent over one of them, which each side
// chooses independently. Bulk data is sent over all rails that are worth using. A failed rail is
// fenced, and the peer is notified (kRailDown) before any data is sent again. Data that was in
// flight on the failed rail is sent over the remaining rails, or over the next connection.
//
// The lower rank of a pair makes the connections. The higher rank requests one through the control
// plane, which is called a knock. It also knocks when it has lost its last rail, since the lower
// rank may not have noticed. All callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/extra_rails.h"
#include "src/core/peer/idle_closer.h"
#include "src/core/peer/pair_services.h"
#include "src/core/peer/rail_switch.h"
#include "src/core/peer/rails/blocked_paths.h"
#include "src/core/peer/rails/reachability.h"
#include "src/core/peer/traffic.h"
#include "transports/transport.h"

namespace hetcomm {

class Pair final : public PairBase {
 public:
  // |credit|: bytes that the peer lets this rank send before they are matched.
  Pair(const PairServices& services, int rank, uint32_t credit);
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  int rank() const HETCOMM_UNDER_BATON { return association_.rank(); }
  PairState state() const HETCOMM_UNDER_BATON { return association_.state(); }
  const Status& lost_because() const HETCOMM_UNDER_BATON { return lost_; }
  Association& association() HETCOMM_UNDER_BATON { return association_; }
  const Association& association() const HETCOMM_UNDER_BATON { return association_; }
  Traffic& traffic() HETCOMM_UNDER_BATON { return traffic_; }
  RemoteAccess& access() HETCOMM_UNDER_BATON { return traffic_.access(); }
  ExtraRails& extra_rails() HETCOMM_UNDER_BATON { return extra_rails_; }
  IdleCloser& idle_closer() HETCOMM_UNDER_BATON { return idle_closer_; }

  // --- operations ---
  // Starts a pending send, one-sided operation or run of a track, or queues it if it cannot start
  // yet. Fails it if the pair is lost.
  void submit(Operation& operation) HETCOMM_UNDER_BATON;
  void end(Operation& operation, Code code, std::string text) override HETCOMM_UNDER_BATON {
    traffic_.end(operation, code, std::move(text));
  }
  // Opens |track|, which must stay valid until close_track() and cannot be reopened afterwards. May
  // throw std::bad_alloc.
  void open_track(Track& track) HETCOMM_UNDER_BATON;
  // Calls Tracks::close() unless the pair is lost.
  void close_track(Track& track, const Status& why, bool unmatched = false) HETCOMM_UNDER_BATON {
    if (!association_.is_lost()) traffic_.tracks().close(track, why, unmatched);
  }
  // Call Tracks::skip() and Tracks::give_up() unless the pair is lost. If it is lost, skip_runs()
  // returns true.
  bool skip_runs(Track& track, uint64_t runs) HETCOMM_UNDER_BATON {
    return association_.is_lost() || traffic_.tracks().skip(track, runs);
  }
  void give_up_runs(Track& track, uint64_t from, uint64_t runs) HETCOMM_UNDER_BATON {
    if (!association_.is_lost()) traffic_.tracks().give_up(track, from, runs);
  }
  // Returns whether nothing is left to send, or the pair is idle or lost.
  bool flushed() const HETCOMM_UNDER_BATON;

  // --- connections ---
  // Starts connecting if no attempt is in progress.
  void ensure_connected() HETCOMM_UNDER_BATON;
  // Adds a new connection that this rank or the peer has made.
  void adopt(std::unique_ptr<Endpoint> endpoint, const RailEnds& ends) HETCOMM_UNDER_BATON;
  // Handles the failure of all transports to reach the peer. |may_change| is true if a later
  // attempt may succeed.
  void connect_failed(const Status& why, bool may_change) HETCOMM_UNDER_BATON;
  // Handles a knock: the peer has no connection and requests one. It has lost all connections with
  // numbers up to |lost|.
  void knocked(uint32_t lost) HETCOMM_UNDER_BATON;
  // Handles the report of the peer, the lower rank, that it cannot connect to this rank.
  void refused_by_peer(const Status& why) HETCOMM_UNDER_BATON;

  // --- the peer's life ---
  // Returns whether messages have arrived since the last call. Returns false if that call was more
  // than |longest_ns| ago.
  bool has_received_since_asked(uint64_t now_ns, uint64_t longest_ns) HETCOMM_UNDER_BATON;
  // Returns a text that explains why no data is sent or received. The text is empty if no reason is
  // known.
  std::string trouble() HETCOMM_UNDER_BATON;
  // Records that other ranks can reach the peer although this rank cannot.
  void vouched() HETCOMM_UNDER_BATON { reachability_.vouched(); }
  // Fails all operations with the peer, which is permanently gone, and closes all connections.
  // Works even when memory has run out.
  void lose(const Status& why) HETCOMM_UNDER_BATON;
  // Handles the peer's clean exit: delivers what the peer sent before it left, then ends the pair
  // as lose() does.
  void peer_left() HETCOMM_UNDER_BATON;
  // Ends the pair because memory ran out partway through some work. Data may be missing, so this
  // rank can no longer keep its guarantees to the peer.
  void out_of_memory() override HETCOMM_UNDER_BATON;

  // --- at the end of a pass ---
  void send_update() override HETCOMM_UNDER_BATON;
  uint64_t unsent_bytes(size_t link) const override HETCOMM_UNDER_BATON;
  bool copy_some() override HETCOMM_UNDER_BATON {
    return traffic_.access().initiator().mapped().copy_some();
  }
  void tick(uint64_t now_ns) override HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const override HETCOMM_UNDER_BATON;

 private:
  class OwnRail;

  // PairBase
  void violated(Rail& rail, std::string_view what) override HETCOMM_UNDER_BATON;
  void pump() override HETCOMM_UNDER_BATON { traffic_.pump(); }
  void protocol_message_left(MessageKind kind) override HETCOMM_UNDER_BATON {
    traffic_.access().initiator().protocol_message_left(kind);
  }
  void receive_connection_message(const WireHeader& header) override HETCOMM_UNDER_BATON;
  void rails_needed(const RailMasks& masks) override HETCOMM_UNDER_BATON {
    extra_rails_.need(masks);
  }
  void close_unused(Rail& rail) override HETCOMM_UNDER_BATON;
  void give_up(const Status& why) override HETCOMM_UNDER_BATON;

  RailSet& rails() HETCOMM_UNDER_BATON { return association_.rails(); }
  bool is_higher() const HETCOMM_UNDER_BATON { return association_.is_higher(); }

  // The following functions open, fail and resume connections (pair_connection.cc).
  void send_open(Rail& rail) HETCOMM_UNDER_BATON;
  void receive_unopened(Rail& rail, const WireHeader& header) HETCOMM_UNDER_BATON;
  void opened(Rail& rail, const WireHeader& header) HETCOMM_UNDER_BATON;
  bool learn_ends(Rail& rail, size_t peers_transport) HETCOMM_UNDER_BATON;
  void replace(const RailEnds& ends) HETCOMM_UNDER_BATON;
  void writable(Rail& rail) HETCOMM_UNDER_BATON;
  void rail_failed(Rail& rail, const Status& why, bool tell = true) HETCOMM_UNDER_BATON;
  bool give_up_blocked(const RailEnds& ends, Passage passage,
                       const Status& why) HETCOMM_UNDER_BATON;
  void go_on_without(const Status& why) HETCOMM_UNDER_BATON;
  void reconnect(const Status& why) HETCOMM_UNDER_BATON;
  void fail_unknown_rails() HETCOMM_UNDER_BATON;
  void drop_rail(Rail& rail, bool peer_has_to_know) HETCOMM_UNDER_BATON;
  void drop_all_rails() HETCOMM_UNDER_BATON;
  void left_by_peer(Rail& rail) HETCOMM_UNDER_BATON;
  void stay_connected() HETCOMM_UNDER_BATON;
  void retry_at(uint64_t at_ns) HETCOMM_UNDER_BATON;
  void tell_loss() HETCOMM_UNDER_BATON;

  const ConnectionServices& services_;
  DataServices& data_;
  Association association_;
  Traffic traffic_;
  ExtraRails extra_rails_;
  RailSwitch rail_switch_;
  IdleCloser idle_closer_;
  Reachability reachability_;
  BlockedPaths blocked_paths_;
  Status trouble_;  // why the last connection broke or failed to open
  Status lost_;
  bool left_ = false;
  bool replaced_ = false;      // a connection is being replaced
  bool lost_unknown_ = false;  // a rail without a number was lost since a rail last opened
  bool untold_ = false;        // the peer is not yet notified that the pair is lost
  uint64_t retry_at_ns_ = kForever;
  Status verdict_;  // why a lossless connection broke; used if the control plane reports nothing
  uint32_t received_when_asked_;
  uint64_t asked_ns_ = 0;
};

}  // namespace hetcomm
