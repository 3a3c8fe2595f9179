// Questions asks the other ranks about suspected ranks. A vouch answers such a question: its sender
// has heard from the suspected rank.
//
// The questions of all ranks about one rank are numbered together. Each rank forwards every
// question and every vouch once, so all ranks receive it. A vouch answers all questions up to its
// number.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "src/liveness/frame.h"
#include "src/liveness/network.h"
#include "src/liveness/peers.h"
#include "src/liveness/timing.h"

namespace hetcomm::liveness {

class Questions {
 public:
  Questions(int own_rank, Timing timing, Network& network, Peers& peers)
      : own_rank_(own_rank), timing_(timing), network_(network), peers_(peers) {}

  // Asks all ranks about |peer|.
  void ask(Peer& peer, uint64_t now);
  // Asks about |peer| for one detection time. Returns true, and sends no question yet, if |peer| is
  // connected and not suspected.
  bool inquire(Peer& peer, uint64_t now);
  // Forwards another rank's question about a rank that is alive. Vouches for that rank if this rank
  // has recently heard from it.
  void question(const Frame& frame, ConnectionId from, uint64_t now);
  // Forwards a vouch for another rank that is alive. Returns true if it answers an inquiry of this
  // rank.
  bool answer(const Frame& frame, ConnectionId from, uint64_t now);
  // Returns the ranks about which others have been asking for |patience_ns| without an answer.
  std::vector<int> unanswered(uint64_t patience_ns, uint64_t now) const;
  void forget(int rank) { rounds_.erase(rank); }
  // Restarts all timers after a time in which this process did not run.
  void start_anew();

 private:
  // The questions of all ranks about one rank, and the vouches that answer them.
  struct Round {
    uint32_t asked = 0;
    uint32_t vouched = 0;
    uint64_t asked_ns = 0;            // time of the last question from another rank
    uint64_t unanswered_ns = kNever;  // time of the first question without an answer
  };

  uint64_t silent_ns(int rank, ConnectionId from, uint64_t now);

  const int own_rank_;
  const Timing timing_;
  Network& network_;
  Peers& peers_;
  std::map<int, Round> rounds_;
};

}  // namespace hetcomm::liveness
