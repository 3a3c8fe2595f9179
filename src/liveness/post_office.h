// PostOffice sends the letters of this rank, and receives the letters of others (letters.h).
//
// A letter to a rank without a connection starts an attempt to connect. While kMaxConnections
// attempts are in progress, other ranks with letters have to wait.
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
  // Sends all letters that |to| has not acknowledged, or starts to connect to it.
  void send(Peer& to, uint64_t now);
  // Calls send() for the next waiting rank that has letters, after a connection attempt has ended.
  void send_next(uint64_t now);
  // Acknowledges a numbered letter, and passes |letter| to the observer if it is new or has no
  // number. Drops an answer that this rank does not expect.
  void take(const Frame& letter, ConnectionId from, Peer& sender, uint64_t now);
  // Records that |receiver| has acknowledged its letters up to |number|.
  void taken(Peer& receiver, uint32_t number, uint64_t now);
  // Stops upcalls and send_next(). Letters that still arrive are acknowledged.
  void close() { closed_ = true; }

 private:
  // No connection attempt is started for letters while this many attempts are in progress.
  static constexpr int kMaxConnections = 16;
  // The largest number of answers expected from one rank.
  static constexpr int kMaxAnswers = 64;

  const int own_rank_;
  const Timing timing_;
  Network& network_;
  Observer& observer_;
  Peers& peers_;
  std::set<int> waits_for_turn_;  // ranks with letters that could not start to connect yet
  bool closed_ = false;
};

}  // namespace hetcomm::liveness
