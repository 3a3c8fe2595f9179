// Judge: what one rank knows of the life of all others, and how it comes to know it.
//
// A state machine without clock, threads or sockets: time comes as an argument, connections are the
// Network's, what was decided goes to the Observer. docs/liveness.md has the rules and their
// reasons. In short, for each rank:
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
#include "src/liveness/news.h"
#include "src/liveness/ring.h"

namespace hetcomm::liveness {

// Names a proved connection; never used twice.
using ConnectionId = uint64_t;

enum class ConnectFailure : uint8_t {
  kOther,             // it says nothing about the peer
  kRefused,           // an address at which the peer took a connection once refuses now
  kOtherIncarnation,  // another process proved itself there
};

// The connections of one rank. No call of it calls the judge.
class Network {
 public:
  // Ends in on_connection_up() or on_connect_failed() of the judge.
  virtual void connect(int rank) = 0;
  // False: there is no room, on_writable() will be called. Frames of a connection keep their order.
  virtual bool send(ConnectionId connection, const Frame& frame) = 0;
  // Frames that were sent still leave. No upcall comes for |connection| any more.
  virtual void close(ConnectionId connection) = 0;
  // When the peer's kernel acknowledged something on |connection| last, or was seen to run its process.
  virtual uint64_t last_acknowledged_ns(ConnectionId connection) = 0;

 protected:
  ~Network() = default;
};

// Hears of decisions, news and letters. Never calls the judge.
class Observer {
 public:
  // All neighbours are connected.
  virtual void on_ready() = 0;
  virtual void on_dead(int rank, const std::string& why) = 0;
  virtual void on_left(int rank) = 0;
  // The others hold this rank for dead: it cannot go on.
  virtual void on_declared_dead(const std::string& why) = 0;
  // kAborted or kFailed, of |notice.subject|.
  virtual void on_notice(const Frame& notice) = 0;
  virtual void on_letter(int from, const Frame& letter) = 0;
  // After inquire(): others have heard of |rank| lately.
  virtual void on_vouch(int rank) = 0;
  // Comes again and again while |rank| is suspected: whoever has data of it says so by on_data().
  virtual void on_suspect(int rank) = 0;

 protected:
  ~Observer() = default;
};

// All times follow from the detection time T.
struct Timing {
  uint64_t detection_ns = 0;
  uint64_t suspicion_ns() const { return detection_ns / 3; }
  // Between signs of life, questions, and attempts to connect.
  uint64_t beat_ns() const { return detection_ns / 10; }
  uint64_t repair_ns() const { return detection_ns / 8; }
  uint64_t tick_ns() const { return detection_ns / 20; }
  // A tick that comes this late was missed: this process did not run.
  uint64_t pause_ns() const { return detection_ns / 6; }
};

class Judge {
 public:
  struct Setup {
    int rank = 0;
    Timing timing;
    std::shared_ptr<const Ring> ring;
    // Of each rank; facts of another incarnation are ignored.
    std::shared_ptr<const std::vector<uint64_t>> incarnations;
  };
  Judge(Setup setup, Network& network, Observer& observer);

  // --- from the owner ---------------------------------------------------------
  // Connects to the neighbours.
  void start(uint64_t now);
  // Neighbours that are not connected yet.
  std::vector<int> missing() const;
  Fate fate(int rank) const { return fates_[static_cast<size_t>(rank)]; }
  void post(int rank, LetterType type, uint64_t value, std::string text, uint64_t now);
  // A knock that nobody needs any more.
  void forget_knock(int rank);
  // Spreads kAborted or kFailed of this rank.
  void publish(Frame notice);
  // Asks the others about |rank|, to which this one cannot connect, for a detection time.
  void inquire(int rank, uint64_t now);
  // Says goodbye to all. Upcalls end. The owner destroys the judge when has_left(), or later.
  void leave();
  bool has_left() const { return leaving_ && owed_goodbyes() == 0; }

  // --- from the network -------------------------------------------------------
  void on_connection_up(ConnectionId connection, int rank, bool initiated, uint64_t now);
  void on_connection_down(ConnectionId connection, std::string_view why, uint64_t now);
  void on_connect_failed(int rank, ConnectFailure failure, std::string_view why, uint64_t now);
  // The kernel of |rank| took a connection, its process has not answered yet: it may be stopped.
  void on_reached(int rank, uint64_t now);
  // Data of |rank| came over some other connection.
  void on_data(int rank, uint64_t now);
  void on_frame(ConnectionId connection, const Frame& frame, uint64_t now);
  void on_writable(ConnectionId connection);
  // The process of |rank| has exited, and all that its connections held was read.
  void on_exit(int rank, uint64_t now);

  void tick(uint64_t now);
  uint64_t next_timer_ns() const;

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  // Connections under way to one suspected rank, and for letters to all.
  static constexpr int kMostAttempts = 3;
  static constexpr int kMostLetterConnections = 16;
  // Answers to questions that a rank may have to come.
  static constexpr int kMostAnswers = 64;

  struct Connection {
    int rank = 0;
    bool initiated = false;
    bool goodbye_taken = false;
    uint64_t news = 0;  // items sent
    uint64_t next_beat_ns = 0;
    uint64_t next_release_ns = 0;
  };
  // A rank that this one has to do with.
  struct Peer {
    std::vector<ConnectionId> connections;  // up; the newest last
    bool proved = false;                    // a connection stood once
    bool wanted = false;                    // a neighbour
    bool reached = false;                   // a connection that this rank made stood once
    int connecting = 0;
    int answers_due = 0;           // to questions
    uint64_t heard_ns = 0;         // last frame
    uint64_t own_life_ns = 0;      // last sign of life to this rank
    uint64_t reached_ns = 0;       // its kernel took a connection, and nobody proved anything
    uint64_t life_ns = 0;          // any of this, or a vouch of others
    uint64_t suspect_ns = kNever;  // since when
    uint64_t wanted_ns = 0;
    uint64_t next_connect_ns = 0;
    uint64_t next_try_ns = 0;  // to connect to one that is connected, but was not reached yet
    uint64_t next_question_ns = 0;
    uint64_t inquiry_end_ns = 0;
    uint64_t used_ns = 0;          // last letter
    uint64_t next_letters_ns = 0;  // when those that nobody took go again
    std::string why;               // the last connection ended or failed
    Letters letters;
  };
  struct Round {  // of questions about one rank
    uint32_t asked = 0;
    uint32_t vouched = 0;
    uint64_t asked_ns = 0;            // last question of others
    uint64_t unanswered_ns = kNever;  // the first of them that nobody has answered
  };

  bool alive(int rank) const { return fate(rank) == Fate::kAlive; }
  bool over() const { return leaving_ || declared_dead_; }
  Peer& peer(int rank, uint64_t now);
  Peer* find(int rank);
  void connect(int rank, Peer& peer, uint64_t now);
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
  void send_letters(int rank, Peer& peer, uint64_t now);
  size_t owed_goodbyes() const;

  void start_anew(uint64_t now);
  void beat(uint64_t now);
  void look_at(int rank, Peer& peer, uint64_t now);
  void suspect(Peer& peer, uint64_t now);
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
  int responsive(uint64_t now) const;

  Setup setup_;
  Network& network_;
  Observer& observer_;
  std::vector<Fate> fates_;
  std::map<int, Peer> peers_;
  std::map<ConnectionId, Connection> connections_;
  std::map<int, Round> rounds_;
  std::vector<bool> concluded_;           // what follows from a fate was done
  std::map<int, std::string> dead_here_;  // dead for this rank, not for the others; why
  News news_;
  std::vector<int> wants_;
  uint64_t last_tick_ns_ = kNever;
  uint64_t repair_at_ns_ = kNever;  // the graph has changed
  uint64_t next_extra_ns_ = 0;
  int last_extra_ = 0;          // how far on the ring
  uint64_t last_heard_ns_ = 0;  // of anybody
  bool ready_ = false;
  bool behind_ = false;  // some fate is not concluded
  bool leaving_ = false;
  bool declared_dead_ = false;
};

}  // namespace hetcomm::liveness
