// The judge of a rank knows which other ranks live, and decides which are dead.
//
// It is a state machine without clock, threads or sockets. Time is an argument, the Network has the
// connections, and the Observer receives the decisions. docs/liveness.md has the rules and the
// reasons for them. Each other rank goes through these states:
//
//             no sign of life for T/3, or its connection broke
//     +-------+ --------------------------------------------> +-----------+
//     | alive |                                               | suspected |
//     +-------+ <-------------------------------------------- +-----------+
//        |         a sign of life, its own or a vouch of others     |
//        |                                                          | nobody has heard of it for T;
//        | its goodbye                                              | its process has exited; its
//        v                                                          v address refuses, or is
//        another's
//     +------+   left wins over dead when both are told          +------+
//     | left | <------------------------------------------------ | dead |
//     +------+                                                   +------+
//
// Dead and left are final. They spread as news, which every pair of ranks that connects exchanges.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/liveness/frame.h"
#include "src/liveness/letters.h"
#include "src/liveness/network.h"
#include "src/liveness/news.h"
#include "src/liveness/observer.h"
#include "src/liveness/ring.h"
#include "src/liveness/timing.h"

namespace hetcomm::liveness {

class Judge {
 public:
  struct Setup {
    int rank = 0;
    Timing timing;
    std::shared_ptr<const Ring> ring;
    // One incarnation for each rank; the judge ignores facts of another incarnation.
    std::shared_ptr<const std::vector<uint64_t>> incarnations;
  };
  Judge(Setup setup, Network& network, Observer& observer);

  // --- calls of the owner ---------------------------------------------------------
  // Connects to the neighbours.
  void start(uint64_t now);
  // Returns the neighbours that are not connected yet.
  std::vector<int> missing() const;
  // Returns why the last connection with |rank| ended or could not be made; empty if none has.
  std::string last_failure(int rank) const;
  // Returns the number of ranks that each tick examines.
  size_t active_peers() const { return peers_.size(); }
  Fate fate(int rank) const { return fates_[static_cast<size_t>(rank)]; }
  void post(int rank, LetterType type, uint64_t value, std::string text, uint64_t now);
  // Drops a knock that is no longer needed.
  void forget_knock(int rank);
  // Spreads a kAborted or kFailed notice from this rank.
  void publish(Frame notice);
  // Asks the others about |rank| for one detection time, because this rank cannot connect to it.
  void inquire(int rank, uint64_t now);
  // Says goodbye to all and ends the upcalls. The owner destroys the judge once has_left() is true.
  void leave();
  bool has_left() const { return leaving_ && owed_goodbyes() == 0; }

  // --- calls of the network -------------------------------------------------------
  void on_connection_up(ConnectionId connection, int rank, bool initiated, uint64_t now);
  void on_connection_down(ConnectionId connection, std::string_view why, uint64_t now);
  void on_connect_failed(int rank, ConnectFailure failure, std::string_view why, uint64_t now);
  // Records that the kernel of |rank| took a connection, but its process, perhaps stopped, is
  // silent.
  void on_reached(int rank, uint64_t now);
  // Records that data from |rank| arrived over a data connection.
  void on_data(int rank, uint64_t now);
  void on_frame(ConnectionId connection, const Frame& frame, uint64_t now);
  void on_writable(ConnectionId connection);
  // Records that the process of |rank| has exited, and that all its connections were read.
  void on_exit(int rank, uint64_t now);

  void tick(uint64_t now);
  uint64_t next_timer_ns() const;

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  // The most connection attempts in progress to one suspected rank.
  static constexpr int kMaxAttempts = 3;
  // The most connection attempts in progress for letters, to all ranks.
  static constexpr int kMaxLetterConnections = 16;
  // The most answers that are awaited from one rank.
  static constexpr int kMaxAnswers = 64;

  struct Connection {
    int rank = 0;
    bool initiated = false;
    bool goodbye_taken = false;
    uint64_t news = 0;  // number of news items that were sent
    uint64_t next_beat_ns = 0;
    uint64_t next_release_ns = 0;
  };
  // A rank with which this one has a connection, wants one or had one recently.
  struct Peer {
    int rank = 0;
    std::vector<ConnectionId> connections;  // those that are up, the newest last
    bool proved = false;                    // a connection was up once
    bool wanted = false;                    // it is a neighbour
    bool reached = false;                   // a connection that this rank made was up once
    int connecting = 0;
    int answers_due = 0;           // answers to questions of this rank
    uint64_t heard_ns = 0;         // time of its last frame
    uint64_t own_life_ns = 0;      // its last sign of life to this rank
    uint64_t reached_ns = 0;       // time at which its kernel took a connection without a proof
    uint64_t life_ns = 0;          // the newest of these two and of the vouches from others
    uint64_t suspect_ns = kNever;  // start of the suspicion
    uint64_t wanted_ns = 0;
    uint64_t next_connect_ns = 0;
    uint64_t next_try_ns = 0;  // next attempt to reach a rank that is connected but not |reached|
    uint64_t next_question_ns = 0;
    uint64_t inquiry_end_ns = 0;
    uint64_t used_ns = 0;          // time of the last letter other than a profile
    uint64_t introduced_ns = 0;    // time from which a connection may be for an introduction
    uint64_t next_letters_ns = 0;  // time to resend letters that were not acknowledged
    std::string why;               // reason for which the last connection ended or failed
    Letters letters;
  };
  // The state kept for a peer with which nothing has happened for a detection time.
  struct RestingPeer {
    Letters::Numbers letters;
    uint64_t life_ns = 0;  // its last sign of life to this rank
    bool proved = false;
    bool reached = false;
  };
  // The questions of all ranks about one rank, and the vouches that answer them.
  struct Round {
    uint32_t asked = 0;
    uint32_t vouched = 0;
    uint64_t asked_ns = 0;            // time of the last question from another rank
    uint64_t unanswered_ns = kNever;  // time of the first question without an answer
  };

  bool alive(int rank) const { return fate(rank) == Fate::kAlive; }
  bool over() const { return leaving_ || declared_dead_; }
  Peer& peer(int rank, uint64_t now);
  Peer* find(int rank);
  void connect(int rank, Peer& peer, uint64_t now);
  void attempt_ended(Peer& peer);
  bool may_rest(const Peer& peer, uint64_t now) const;
  void let_rest(uint64_t now);
  void send_all(const Frame& frame, ConnectionId except = 0);
  void pump(ConnectionId id, Connection& connection);
  void pump_all();
  void detach(ConnectionId id);
  void note_life(Peer& peer, uint64_t at);
  Frame fate_frame(int rank, Fate fate, const std::string& why) const;
  void die(int rank, const std::string& why, bool publish, uint64_t now);
  void conclude(int rank, uint64_t now);
  void catch_up(uint64_t now);
  std::string verdict(int rank) const;
  void die_here(const std::string& why);
  void learn_fate(const Frame& frame, int from, uint64_t now);
  void settle(int rank, uint64_t now);
  void question(const Frame& frame, ConnectionId from, uint64_t now);
  void answer(const Frame& frame, ConnectionId from, uint64_t now);
  void ask(int rank, Peer& peer, uint64_t now);
  void take_letter(const Frame& frame, ConnectionId from, Peer& peer, uint64_t now);
  void introduced(ConnectionId connection, Peer& peer, bool asked, uint64_t now);
  void send_letters(int rank, Peer& peer, uint64_t now);
  void send_next_letters(uint64_t now);
  size_t owed_goodbyes() const;

  void start_anew(uint64_t now);
  void beat(uint64_t now);
  void look_at(int rank, Peer& peer, uint64_t now);
  void suspect(Peer& peer, uint64_t now);
  void trust(Peer& peer);
  void pursue(int rank, Peer& peer, uint64_t now);
  void judge(int rank, Peer& peer, bool publish, uint64_t now);
  void cut_off(uint64_t now);
  void believe_silence(uint64_t now);
  void choose_neighbours(uint64_t now);
  void connect_neighbours(uint64_t now);
  void seek_others(uint64_t now);
  bool needs(const Peer& peer, uint64_t now) const;
  bool joined_by_both(const Peer& peer) const;
  void release_idle(uint64_t now);
  void released(ConnectionId connection, const Frame& frame, uint64_t now);
  void check_ready();
  bool mostly_silent(int more = 0) const;
  bool is_newest(ConnectionId id, const Peer& peer) const { return peer.connections.back() == id; }
  // Returns whether at least |ranks| have answered recently.
  bool are_responsive(int ranks, uint64_t now) const;

  Setup setup_;
  Network& network_;
  Observer& observer_;
  std::vector<Fate> fates_;
  std::map<int, Peer> peers_;
  std::map<int, RestingPeer> resting_;
  std::map<ConnectionId, Connection> connections_;
  std::set<int> suspected_;  // the peers whose |suspect_ns| is set
  int connected_ = 0;        // peers with connections
  int connecting_ = 0;       // attempts to connect of all peers
  std::map<int, Round> rounds_;
  std::set<int> waits_for_turn_;          // ranks with letters that wait for a connection attempt
  std::vector<bool> concluded_;           // by rank: conclude() has run
  std::map<int, std::string> dead_here_;  // reasons of deaths that hold for this rank only
  News news_;
  std::vector<int> wants_;
  uint64_t last_tick_ns_ = kNever;
  uint64_t repair_at_ns_ = kNever;  // time to repair the graph after a change
  uint64_t next_extra_ns_ = 0;
  int last_extra_ = 0;          // distance on the ring of the rank that was last sought
  uint64_t last_heard_ns_ = 0;  // time of the last sign of life of any rank
  bool ready_ = false;
  bool behind_ = false;  // some fate may not be concluded yet
  bool leaving_ = false;
  bool declared_dead_ = false;
};

}  // namespace hetcomm::liveness
