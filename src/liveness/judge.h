// The judge of a rank tracks which other ranks are alive, and decides which are dead.
//
// It is a state machine without clock, threads or sockets. Time is an argument, Network makes the
// connections, and Observer receives the decisions. docs/liveness.md has the rules and the reasons
// for them. Each other rank goes through these states:
//
//             no sign of life for T/3, or its connection broke
//     +-------+ --------------------------------------------> +-----------+
//     | alive |                                               | suspected |
//     +-------+ <-------------------------------------------- +-----------+
//        |         a sign of life, or a vouch of another rank       |
//        |                                                          | no rank heard from it for T;
//        | its goodbye                                              | its process has exited;
//        |                                                          | its address refuses;
//        v                                                          v another process has its place
//     +------+   left overrides dead if both are known           +------+
//     | left | <------------------------------------------------ | dead |
//     +------+                                                   +------+
//
// Dead and left are final, except that a late goodbye turns dead into left. They spread as news:
// two ranks that connect exchange all their news.
//
// The judge itself decides on suspicions and deaths. Its parts track the ranks that this one
// communicates with (peers.h), choose connections (neighbourhood.h), ask other ranks (questions.h),
// send letters (post_office.h), and record the fates (fates.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/liveness/fates.h"
#include "src/liveness/frame.h"
#include "src/liveness/neighbourhood.h"
#include "src/liveness/network.h"
#include "src/liveness/news.h"
#include "src/liveness/observer.h"
#include "src/liveness/peers.h"
#include "src/liveness/post_office.h"
#include "src/liveness/questions.h"
#include "src/liveness/ring.h"
#include "src/liveness/timing.h"

namespace hetcomm::liveness {

class Judge {
 public:
  struct Setup {
    int rank = 0;
    Timing timing;
    std::shared_ptr<const Ring> ring;
    // One incarnation for each rank. The judge ignores facts about other incarnations.
    std::shared_ptr<const std::vector<uint64_t>> incarnations;
  };
  Judge(Setup setup, Network& network, Observer& observer);

  // --- calls of the owner ---------------------------------------------------------
  // Connects to the neighbours.
  void start(uint64_t now);
  // Returns the neighbours that are not connected yet.
  std::vector<int> missing() const { return neighbourhood_.missing(); }
  // Returns why the last connection with |rank| ended or could not be made; empty if none has.
  std::string last_failure(int rank) const;
  // Returns the number of ranks that each tick examines.
  size_t active_peers() const { return peers_.size(); }
  Fate fate(int rank) const { return fates_.of(rank); }
  void post(int rank, LetterType type, uint64_t value, std::string text, uint64_t now);
  // Drops a knock that is no longer needed.
  void forget_knock(int rank);
  // Spreads a kAborted or kFailed notice from this rank.
  void publish(Frame notice);
  // Asks the other ranks about |rank| for one detection time, because this rank cannot connect to
  // it.
  void inquire(int rank, uint64_t now);
  // Says goodbye to all connected ranks and stops all upcalls. The owner destroys the judge once
  // has_left() is true.
  void leave();
  bool has_left() const { return leaving_ && owed_goodbyes() == 0; }

  // --- calls of the network -------------------------------------------------------
  void on_connection_up(ConnectionId connection, int rank, bool initiated, uint64_t now);
  void on_connection_down(ConnectionId connection, std::string_view why, uint64_t now);
  void on_connect_failed(int rank, ConnectFailure failure, std::string_view why, uint64_t now);
  // Records that the kernel of |rank|'s host accepted a connection, but that its process, which may
  // be stopped, is silent.
  void on_reached(int rank, uint64_t now);
  // Records that data from |rank| arrived over a data connection.
  void on_data(int rank, uint64_t now);
  void on_frame(ConnectionId connection, const Frame& frame, uint64_t now);
  void on_writable(ConnectionId connection);
  // Records that the process of |rank| has exited, and that everything it sent has been read.
  void on_exit(int rank, uint64_t now);

  void tick(uint64_t now);
  uint64_t next_timer_ns() const;

 private:
  // The largest number of simultaneous connection attempts to one suspected rank.
  static constexpr int kMaxAttempts = 3;

  bool alive(int rank) const { return fates_.alive(rank); }
  bool over() const { return leaving_ || declared_dead_; }
  void check_ready();

  void turn_away(ConnectionId id, int rank);
  void learn_notice(const Frame& frame, int from);
  void learn_fate(const Frame& frame, int from, uint64_t now);
  void take_letter(const Frame& frame, ConnectionId from, Peer& peer, uint64_t now);
  void released(ConnectionId id, Peer& peer, const Frame& frame, uint64_t now);
  void pump(ConnectionId id, Connection& connection);
  void pump_all();
  size_t owed_goodbyes() const;

  void look_at(Peer& peer, uint64_t now);
  void pursue(Peer& peer, uint64_t now);
  void judge(const Peer& peer, bool publish, uint64_t now);
  void believe_silence(uint64_t now);
  void cut_off(uint64_t now);
  void start_anew(uint64_t now);

  void die(int rank, const std::string& why, bool publish, uint64_t now);
  void conclude(int rank, uint64_t now);
  void catch_up(uint64_t now);
  void settle(int rank, uint64_t now);
  void die_here(const std::string& why);

  const Setup setup_;
  Network& network_;
  Observer& observer_;
  News news_;
  Fates fates_;
  Peers peers_;
  Neighbourhood neighbourhood_;
  Questions questions_;
  PostOffice post_office_;
  std::vector<bool> concluded_;  // by rank: conclude() has run
  bool behind_ = false;          // conclude() may have failed for some rank; tick() repeats it
  uint64_t last_tick_ns_ = kNever;
  uint64_t last_heard_ns_ = 0;  // time of the last sign of life of any rank
  bool leaving_ = false;
  bool declared_dead_ = false;
};

}  // namespace hetcomm::liveness
