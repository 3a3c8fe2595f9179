// Peers holds the ranks with which this one has a connection, needs one or had one recently, and
// all connections of this rank.
//
// A peer that has been idle for a detection time is put to rest: ticks skip it, and only the state
// that must not be lost is kept. These invariants hold: each connection belongs to a peer, a peer
// lists its connections with the newest last, and suspected() are the suspected peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/liveness/letters.h"
#include "src/liveness/network.h"
#include "src/liveness/timing.h"

namespace hetcomm::liveness {

struct Connection {
  int rank = 0;
  bool initiated = false;
  bool goodbye_taken = false;
  uint64_t news = 0;  // position in News of the first item that was not sent
  uint64_t next_beat_ns = 0;
  uint64_t next_release_ns = 0;
};

struct Peer {
  bool is_connected() const { return !connections.empty(); }
  bool is_suspected() const { return suspect_ns != kNever; }
  // Returns the connection over which frames to this peer are sent. The peer must be connected.
  ConnectionId newest() const { return connections.back(); }

  int rank = 0;
  std::vector<ConnectionId> connections;  // established ones, newest last
  bool proved = false;                    // a connection was established before
  bool wanted = false;                    // the peer is a neighbour
  bool reached = false;                   // a connection that this rank made was established before
  int connecting = 0;
  int answers_due = 0;           // number of answers that this rank expects from the peer
  uint64_t heard_ns = 0;         // time of the peer's last frame
  uint64_t own_life_ns = 0;      // time of the peer's last sign of life to this rank
  uint64_t reached_ns = 0;       // when the peer's kernel last accepted an unproved connection
  uint64_t life_ns = 0;          // newest of own_life_ns, reached_ns and the vouches from others
  uint64_t suspect_ns = kNever;  // start of the suspicion
  uint64_t wanted_ns = 0;
  uint64_t next_connect_ns = 0;
  uint64_t next_try_ns = 0;  // next attempt to reach a rank that is connected but not |reached|
  uint64_t next_question_ns = 0;
  uint64_t inquiry_end_ns = 0;
  uint64_t used_ns = 0;          // time of the last letter other than a profile
  uint64_t introduced_ns = 0;    // time of the last connection; 0 once profiles were exchanged
  uint64_t next_letters_ns = 0;  // time to resend letters that were not acknowledged
  std::string why;               // reason for which the last connection ended or failed
  Letters letters;
};

class Peers {
 public:
  Peers(Timing timing, Network& network) : timing_(timing), network_(network) {}

  // Returns the peer |rank|. Creates it if it is unknown, and restores it if it is resting.
  Peer& meet(int rank, uint64_t now);
  // Returns nullptr if |rank| is resting or unknown.
  Peer* find(int rank);
  const Peer* find(int rank) const;
  Peer& of(const Connection& connection) { return peers_.at(connection.rank); }
  size_t size() const { return peers_.size(); }
  // Returns the peer with the lowest rank above |rank|, or nullptr. A loop that steps from rank to
  // rank with this can add and forget peers.
  Peer* after(int rank);
  const std::set<int>& suspected() const { return suspected_; }
  // Puts idle peers to rest. Otherwise each tick would examine every rank that was ever a peer.
  void let_rest(uint64_t now);
  // Closes the connections of |rank|, and forgets it.
  void forget(int rank);
  // Closes all connections, and forgets all peers.
  void forget_all();

  // --- connections
  // Starts to connect to |peer|. The caller reports the end with attempt_ended().
  void connect(Peer& peer, uint64_t now);
  void attempt_ended(Peer& peer);
  // Returns the number of connection attempts in progress, to all peers.
  int connecting() const { return connecting_; }
  // Returns the number of peers with connections.
  int connected() const { return connected_; }
  // Adds an established connection. If memory runs out, nothing has changed.
  Connection& attach(ConnectionId id, Peer& peer, bool initiated, uint64_t now);
  // Removes a connection from all lists. The caller closes it.
  void detach(ConnectionId id);
  void close_all(Peer& peer);
  std::map<ConnectionId, Connection>& connections() { return connections_; }
  const std::map<ConnectionId, Connection>& connections() const { return connections_; }
  // Returns nullptr if |id| is not an established connection.
  Connection* find_connection(ConnectionId id);
  // Returns whether each side has made a connection. The higher rank's connection is then
  // redundant.
  bool joined_by_both(const Peer& peer) const;
  // Sends |frame| over the newest connection of each peer, except over |except|.
  void send_all(const Frame& frame, ConnectionId except = 0);

  // --- signs of life
  void note_life(Peer& peer, uint64_t at);
  void suspect(Peer& peer, uint64_t now);
  void trust(Peer& peer);
  // Returns whether at least |ranks| ranks have answered recently.
  bool are_responsive(int ranks, uint64_t now) const;
  // Sends this rank's heartbeats that are due.
  void beat(uint64_t now);
  // Restarts all timers after a time in which this process did not run.
  void start_anew(uint64_t now);

 private:
  // The state that is kept for a resting peer.
  struct Resting {
    Letters::Numbers letters;
    uint64_t life_ns = 0;  // time of the peer's last sign of life to this rank
    bool proved = false;
    bool reached = false;
  };

  bool may_rest(const Peer& peer, uint64_t now) const;

  const Timing timing_;
  Network& network_;
  std::map<int, Peer> peers_;
  std::map<int, Resting> resting_;
  std::map<ConnectionId, Connection> connections_;
  std::set<int> suspected_;
  int connected_ = 0;
  int connecting_ = 0;
};

}  // namespace hetcomm::liveness
