// Neighbourhood decides which connections this rank makes and keeps.
//
// This rank keeps the connections to its neighbours on the ring. It seeks further ranks while too
// few answer, since its neighbours may be stopped or lost with their host. It makes other
// connections for letters and introductions. It offers to end each connection that it made and no
// longer needs. The connection ends when both ends agree.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/liveness/fates.h"
#include "src/liveness/frame.h"
#include "src/liveness/network.h"
#include "src/liveness/peers.h"
#include "src/liveness/ring.h"
#include "src/liveness/timing.h"

namespace hetcomm::liveness {

class Neighbourhood {
 public:
  Neighbourhood(int own_rank, Timing timing, std::shared_ptr<const Ring> ring, Network& network,
                const Fates& fates, Peers& peers)
      : own_rank_(own_rank),
        timing_(timing),
        ring_(std::move(ring)),
        network_(network),
        fates_(fates),
        peers_(peers) {}

  // Chooses the neighbours and connects to them.
  void start(uint64_t now);
  // Records that a rank is gone. repair() chooses neighbours anew after Timing::repair_ns().
  void note_loss(uint64_t now);
  // Chooses neighbours anew after a loss, and connects to those that are missing.
  void repair(uint64_t now);
  // Connects to further ranks until two answer, or all are tried.
  void seek_others(uint64_t now);

  // Returns the neighbours that are not connected yet.
  std::vector<int> missing() const;
  // Returns whether all neighbours have been connected, at the same time, at least once.
  bool is_ready() const { return ready_; }
  void set_ready() { ready_ = true; }
  // Returns whether most ranks to which this one was connected are silent, or would be if |more|
  // further ranks were. This rank may then be the one that is cut off.
  bool mostly_silent(int more = 0) const;

  // Offers to end the connections that this rank made and does not need.
  void release_idle(uint64_t now);
  // Handles the arrival of the peer's profile. If the peer has |asked| for this rank's profile, the
  // peer is the one that offers to end the connection. Otherwise this rank may offer it.
  void introduced(ConnectionId id, Peer& peer, bool asked, uint64_t now);
  // Handles a kRelease frame, by which the other end offers to end the connection or agrees to end
  // it. Returns whether the connection ends now. Agrees to an offer, and tells the other end, if
  // this rank does not need the connection.
  bool release(ConnectionId id, const Frame& frame, uint64_t now);

 private:
  void choose_neighbours(uint64_t now);
  void connect_neighbours(uint64_t now);
  bool connects_first(const Peer& peer, uint64_t now) const;
  bool needs(const Peer& peer, uint64_t now) const;
  void offer_release(ConnectionId id, Connection& connection, uint64_t now);

  const int own_rank_;
  const Timing timing_;
  const std::shared_ptr<const Ring> ring_;
  Network& network_;
  const Fates& fates_;
  Peers& peers_;
  std::vector<int> wants_;
  uint64_t repair_at_ns_ = kNever;  // time to repair the graph after a change
  uint64_t next_extra_ns_ = 0;
  int last_extra_ = 0;  // distance on the ring of the rank that was last sought
  bool ready_ = false;
};

}  // namespace hetcomm::liveness
