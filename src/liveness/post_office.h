// PostOffice sends the letters of this rank, and takes the letters of others (letters.h).
//
// A letter to a rank without a connection starts an attempt to connect. While kMaxConnections
// attempts are in progress, other ranks wait for their turn.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "src/liveness/frame.h"
#include "src/liveness/network.h"
#include "src/liveness/observer.h"
#include "src/liveness/peers.h"
#include "src/liveness/timing.h"

namespace hetcomm::liveness {

class PostOffice {
 public:
  PostOffice(int own_rank, Timing timing, Network& network, Observer& observer, Peers& peers)
      : own_rank_(own_rank),
        timing_(timing),
        network_(network),
        observer_(observer),
        peers_(peers) {}

  void post(Peer& to, LetterType type, uint64_t value, std::string text, uint64_t now);
  // Sends all letters to |to| that it has not acknowledged.
  void send(Peer& to, uint64_t now);
  // Gives the next rank with waiting letters its turn, after a connection attempt has ended.
  void send_next(uint64_t now);
  // Acknowledges a letter, and hands it over if it is new.
  void take(const Frame& letter, ConnectionId from, Peer& sender, uint64_t now);
  // Records that |receiver| has acknowledged its letters up to |number|.
  void taken(Peer& receiver, uint32_t number, uint64_t now);
  // Ends upcalls and send_next(). Letters that still arrive are acknowledged.
  void close() { closed_ = true; }

 private:
  // The most connection attempts in progress for letters, to all ranks.
  static constexpr int kMaxConnections = 16;
  // The most answers that are awaited from one rank.
  static constexpr int kMaxAnswers = 64;

  const int own_rank_;
  const Timing timing_;
  Network& network_;
  Observer& observer_;
  Peers& peers_;
  std::set<int> waits_for_turn_;  // ranks with letters that wait for a connection attempt
  bool closed_ = false;
};

}  // namespace hetcomm::liveness
