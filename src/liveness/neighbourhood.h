// Neighbourhood decides which connections this rank makes and keeps.
//
// This rank keeps the connections to its neighbours on the ring. While too few ranks answer, it
// connects to further ones, since its neighbours may be stopped or lost with their host. It also
// makes connections to send letters and to exchange profiles. It offers to end each connection that
// it made and no longer needs. The connection ends when both sides agree.
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
  // Records that a rank is gone. repair() chooses new neighbours after Timing::repair_ns().
  void note_loss(uint64_t now);
  // Chooses new neighbours after a loss, and connects to those that are missing.
  void repair(uint64_t now);
  // Connects to further ranks, a few at a time, while fewer than two ranks answer or most are
  // silent.
  void seek_others(uint64_t now);

  // Returns the neighbours that are not connected yet.
  std::vector<int> missing() const;
  // Returns whether all neighbours were connected at the same time at least once.
  bool is_ready() const { return ready_; }
  void set_ready() { ready_ = true; }
  // Returns whether most of the ranks with which this one had connections are silent, or would be
  // with |more| silent ones. In that case this rank itself may be cut off.
  bool mostly_silent(int more = 0) const;

  // Offers to end the connections that this rank made and does not need.
  void release_idle(uint64_t now);
  // Handles the arrival of the peer's profile. If the peer has |asked| for this rank's profile, the
  // peer will offer to end the connection. Otherwise this rank may offer it.
  void introduced(ConnectionId id, Peer& peer, bool asked, uint64_t now);
  // Handles a kRelease frame, by which the peer offers or agrees to end the connection. Accepts an
  // offer, and notifies the peer, if this rank does not need the connection. Returns whether the
  // connection ends now.
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
  uint64_t repair_at_ns_ = kNever;  // time to choose new neighbours after a loss
  uint64_t next_extra_ns_ = 0;
  int last_extra_ = 0;  // ring distance of the rank that seek_others() tried last
  bool ready_ = false;
};

}  // namespace hetcomm::liveness
