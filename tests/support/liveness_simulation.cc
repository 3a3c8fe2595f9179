#include "tests/support/liveness_simulation.h"

#include <algorithm>

#include <fmt/core.h>

namespace hetcomm_test {

using live::ConnectionId;
using live::Fate;
using live::Frame;

// A connection: two directions, each an ordered stream.
struct Simulation::Wire {
  struct Direction {
    std::deque<Frame> sent;  // not delivered yet
    bool under_way = false;
    uint64_t acknowledged_ns = 0;  // when the sender last heard from the receiver's kernel
    bool closed = false;           // the end of the stream follows
  };
  int rank[2];
  bool open[2] = {true, true};  // for each end, as its judge sees the connection
  bool up = false;              // the initiator knows that the connection is established
  Direction direction[2];       // from each end
};

struct Simulation::Node final : live::Network, live::Observer {
  Node(Simulation& owner, int own_rank) : simulation(owner), rank(own_rank) {
    judge = std::make_unique<live::Judge>(
        live::Judge::Setup{rank, owner.timing_, owner.ring_, owner.incarnations_}, *this, *this);
  }

  // Network:
  void connect(int to) override { simulation.connect(rank, to); }
  bool send(ConnectionId connection, const Frame& frame) override {
    const auto found = simulation.wires_.find(connection);
    if (found == simulation.wires_.end()) return true;
    Wire& wire = found->second;
    const int side = wire.rank[0] == rank ? 0 : 1;
    ++simulation.frames_;
    simulation.bytes_ += live::kFrameHeaderBytes + frame.text.size();
    wire.direction[side].sent.push_back(frame);
    if (!wire.direction[side].under_way) {
      wire.direction[side].under_way = true;
      simulation.transmit(connection, side, 0);
    }
    return true;
  }
  void close(ConnectionId connection) override {
    const auto found = simulation.wires_.find(connection);
    if (found == simulation.wires_.end()) return;
    Wire& wire = found->second;
    const int side = wire.rank[0] == rank ? 0 : 1;
    wire.open[side] = false;
    wire.direction[side].closed = true;
    if (!wire.direction[side].under_way) {
      wire.direction[side].under_way = true;
      simulation.transmit(connection, side, 0);
    }
    connections.erase(connection);
  }
  uint64_t last_acknowledged_ns(ConnectionId connection) override {
    const auto found = simulation.wires_.find(connection);
    if (found == simulation.wires_.end()) return 0;
    Wire& wire = found->second;
    const int side = wire.rank[0] == rank ? 0 : 1;
    return std::min(simulation.now_, wire.direction[side].acknowledged_ns);
  }
  // All ranks know all addresses in advance.
  std::string addresses_of(int /*rank*/) override { return {}; }
  void learn_addresses(int /*rank*/, const std::string& /*addresses*/) override {}

  // Observer:
  void on_ready() override { ready = true; }
  void on_dead(int other, const std::string& why) override {
    learned(other);
    simulation.judge_death(other, rank, why.find("cut off") == std::string::npos);
  }
  void on_left(int other) override { learned(other); }
  void on_declared_dead(const std::string& /*why*/) override { declared_dead = true; }
  void on_notice(const Frame& /*notice*/) override { ++aborts; }
  void on_letter(int from, const Frame& letter) override {
    ++letters;
    if (letter.code != static_cast<uint8_t>(live::LetterType::kProfile)) return;
    profiles.insert(from);
    if (letter.value != 0) answer(from);
  }
  void on_vouch(int /*other*/) override { ++vouches; }
  void on_suspect(int /*other*/) override {}

  // Sends an answer over the newest connection, as Plane does.
  void answer(int to) {
    const Frame profile{.type = live::FrameType::kLetter,
                        .code = static_cast<uint8_t>(live::LetterType::kProfile),
                        .subject = rank,
                        .number = live::kUncounted,
                        .text = "a profile"};
    for (auto at = connections.rbegin(); at != connections.rend(); ++at) {
      const auto wire = simulation.wires_.find(*at);
      if (wire == simulation.wires_.end()) continue;
      if (wire->second.rank[0] != to && wire->second.rank[1] != to) continue;
      send(*at, profile);
      return;
    }
  }

  void learned(int other) const {
    simulation.known_ns_[static_cast<size_t>(other)] = simulation.now_;
  }

  Simulation& simulation;
  int rank;
  std::unique_ptr<live::Judge> judge;
  State state = State::kRuns;
  std::set<ConnectionId> connections;
  std::deque<std::function<void(Node&)>> inbox;  // filled while the process is stopped
  bool ready = false;
  bool declared_dead = false;
  bool timer_armed = false;
  int aborts = 0;
  uint64_t letters = 0;
  std::set<int> profiles;
  uint64_t vouches = 0;
  bool leaving = false;
};

Simulation::Simulation(uint64_t seed, const std::vector<int>& hosts, uint64_t detection_ns)
    : random_(seed), timing_{detection_ns}, hosts_(hosts), groups_(hosts.size(), 0) {
  ring_ = std::make_shared<live::Ring>(std::vector<uint32_t>(hosts.begin(), hosts.end()));
  incarnations_ = std::make_shared<std::vector<uint64_t>>(hosts.size(), 7);
  known_ns_.resize(hosts.size());
  now_ = kSecond;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    nodes_.push_back(std::make_unique<Node>(*this, static_cast<int>(rank)));
  }
}

Simulation::~Simulation() = default;

void Simulation::schedule(uint64_t when_ns, std::function<void()> action) {
  events_.push({std::max(when_ns, now_), ++order_, std::move(action)});
}

void Simulation::start() {
  for (auto& each : nodes_) {
    Node& one = *each;
    schedule(now_ + below(20 * kMilli), [this, &one] {
      one.judge->start(now_);
      arm(one);
    });
  }
}

void Simulation::arm(Node& of) {
  const uint64_t next = of.judge->next_timer_ns();
  if (of.timer_armed || next == UINT64_MAX || of.state != State::kRuns) return;
  of.timer_armed = true;
  // Threads wake slightly late.
  schedule(next + below(timing_.detection_ns / 200), [this, &of] {
    of.timer_armed = false;
    if (of.state != State::kRuns) return;
    of.judge->tick(now_);
    most_connections_ = std::max(most_connections_, of.connections.size());
    arm(of);
  });
}

bool Simulation::run_until_ready(uint64_t limit_ns) {
  const uint64_t end = now_ + limit_ns;
  const auto all_ready = [&] {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const auto& one) { return one->ready; });
  };
  while (!all_ready()) {
    if (now_ >= end) return false;
    run(5 * kMilli);
  }
  return true;
}

void Simulation::run(uint64_t duration_ns) {
  const uint64_t end = now_ + duration_ns;
  while (!events_.empty() && events_.top().at <= end) {
    Event event = events_.top();
    events_.pop();
    now_ = event.at;
    event.action();
  }
  now_ = end;
}

bool Simulation::host_is_up(int rank) const {
  return dead_hosts_.count(hosts_[static_cast<size_t>(rank)]) == 0;
}

bool Simulation::path(int from, int to) const {
  return groups_[static_cast<size_t>(from)] == groups_[static_cast<size_t>(to)] &&
         cuts_.count({from, to}) == 0 && host_is_up(from) && host_is_up(to);
}

// Runs |what| in |to|'s process, now or when it resumes.
void Simulation::give(Node& to, std::function<void(Node&)> what) {
  if (to.state == State::kDead || to.state == State::kGone) return;
  if (to.state == State::kStopped) {
    to.inbox.push_back(std::move(what));
  } else {
    what(to);
  }
}

// --- connections ----------------------------------------------------------------

void Simulation::connect(int from, int to) {
  const uint64_t deadline = now_ + timing_.suspicion_ns();
  schedule(now_ + latency(), [this, from, to, deadline] { answer_connect(from, to, deadline); });
}

// Handles a connection request that has reached |to|'s host or was lost.
void Simulation::answer_connect(int from, int to, uint64_t deadline_ns) {
  const auto fail = [this, from, to](uint64_t at_ns, live::ConnectFailure failure,
                                     const char* why) {
    schedule(at_ns, [this, from, to, failure, why] {
      give(node(from), [this, to, failure, why](Node& one) {
        one.judge->on_connect_failed(to, failure, why, now_);
      });
    });
  };
  if (now_ >= deadline_ns) {
    fail(now_, live::ConnectFailure::kOther, "timed out");
    return;
  }
  if (!path(from, to) || !path(to, from)) {
    // The request is sent again after a while.
    schedule(std::min(deadline_ns, now_ + kSecond),
             [this, from, to, deadline_ns] { answer_connect(from, to, deadline_ns); });
    return;
  }
  Node& target = node(to);
  const bool gone = target.state == State::kDead || target.state == State::kGone;
  if (gone || refused_.count({from, to}) != 0) {
    const bool other = gone && restarted_.count(to) != 0;
    const live::ConnectFailure failure =
        other ? live::ConnectFailure::kOtherIncarnation : live::ConnectFailure::kRefused;
    const bool evidence = reached_.count({from, to}) != 0;
    fail(now_ + latency(), evidence ? failure : live::ConnectFailure::kOther,
         other ? "another incarnation" : "refused");
    return;
  }
  if (target.state == State::kStopped) {
    // The host's kernel accepts the connection before anything is proved.
    if (reached_.count({from, to}) != 0) {
      give(node(from), [this, to](Node& one) { one.judge->on_reached(to, now_); });
    }
    schedule(std::min(deadline_ns, now_ + timing_.tick_ns()),
             [this, from, to, deadline_ns] { answer_connect(from, to, deadline_ns); });
    return;
  }
  const uint64_t id = next_wire_++;
  Wire& wire = wires_[id];
  wire.rank[0] = from;
  wire.rank[1] = to;
  wire.direction[0].acknowledged_ns = wire.direction[1].acknowledged_ns = now_;
  target.connections.insert(id);
  target.judge->on_connection_up(id, from, false, now_);
  schedule(now_ + latency(), [this, id, from, to] {
    Node& initiator = node(from);
    if (initiator.state == State::kDead || initiator.state == State::kGone) return;
    initiator.connections.insert(id);
    reached_.insert({from, to});
    give(initiator, [this, id, to](Node& one) {
      const auto found = wires_.find(id);
      if (found == wires_.end()) return;
      found->second.up = true;
      one.judge->on_connection_up(id, to, true, now_);
    });
  });
}

// Sends the pending data of |side| to the other side, or retries later if the path is cut.
void Simulation::transmit(uint64_t id, int side, uint64_t backoff_ns) {
  const auto found = wires_.find(id);
  if (found == wires_.end()) return;
  const int from = found->second.rank[side];
  const int to = found->second.rank[1 - side];
  if (!host_is_up(from) || !host_is_up(to)) return;
  if (path(from, to)) {
    schedule(now_ + latency(), [this, id, side] { deliver(id, side); });
    return;
  }
  const uint64_t next = std::min(backoff_ns == 0 ? 200 * kMilli : 2 * backoff_ns, 120 * kSecond);
  schedule(now_ + next, [this, id, side, next] { transmit(id, side, next); });
}

void Simulation::deliver(uint64_t id, int side) {
  const auto found = wires_.find(id);
  if (found == wires_.end()) return;
  Wire& wire = found->second;
  Wire::Direction& direction = wire.direction[side];
  const int from = wire.rank[side];
  const int to = wire.rank[1 - side];
  if (side == 1 && !wire.up) {
    // The receiver's buffer has the data.
    schedule(now_ + kMilli, [this, id, side] { deliver(id, side); });
    return;
  }
  direction.under_way = false;
  if (!host_is_up(from) || !host_is_up(to)) return;
  const std::deque<Frame> frames = std::exchange(direction.sent, {});
  const bool ends = direction.closed;
  if (path(to, from)) direction.acknowledged_ns = now_ + 50'000;
  for (const Frame& frame : frames) {
    give(node(to), [this, id, frame](Node& one) {
      if (one.connections.count(id) != 0) one.judge->on_frame(id, frame, now_);
    });
  }
  if (ends) {
    give(node(to), [this, id](Node& one) {
      if (one.connections.erase(id) != 0) one.judge->on_connection_down(id, "it exited", now_);
    });
    wires_.erase(id);
  }
}

// Closes a terminated process's connections, as its kernel does.
void Simulation::end_wires(int rank) {
  const std::set<ConnectionId> connections = std::exchange(node(rank).connections, {});
  for (const ConnectionId id : connections) {
    const auto found = wires_.find(id);
    if (found == wires_.end()) continue;
    const int side = found->second.rank[0] == rank ? 0 : 1;
    Wire::Direction& direction = found->second.direction[side];
    direction.closed = true;
    if (!direction.under_way) {
      direction.under_way = true;
      transmit(id, side, 0);
    }
  }
}

// --- what happens to ranks ------------------------------------------------------

void Simulation::kill(int rank) {
  Node& one = node(rank);
  if (one.state == State::kDead || one.state == State::kGone) return;
  std::set<int> watchers;
  for (const ConnectionId id : one.connections) {
    const auto found = wires_.find(id);
    if (found == wires_.end()) continue;
    const int other = found->second.rank[0] == rank ? found->second.rank[1] : found->second.rank[0];
    if (ring_->same_host(rank, other)) watchers.insert(other);
  }
  one.state = State::kDead;
  one.inbox.clear();
  end_wires(rank);
  for (const int watcher : watchers) {
    schedule(now_ + kMilli, [this, rank, watcher] {
      give(node(watcher), [this, rank](Node& each) { each.judge->on_exit(rank, now_); });
    });
  }
}

void Simulation::kill_host(int host) {
  dead_hosts_.insert(host);
  for (auto& one : nodes_) {
    if (hosts_[static_cast<size_t>(one->rank)] == host) one->state = State::kDead;
  }
}

void Simulation::stop(int rank) {
  if (node(rank).state == State::kRuns && !node(rank).leaving) node(rank).state = State::kStopped;
}

void Simulation::resume(int rank) {
  Node& one = node(rank);
  if (one.state != State::kStopped) return;
  one.state = State::kRuns;
  while (!one.inbox.empty() && one.state == State::kRuns) {
    const auto what = std::move(one.inbox.front());
    one.inbox.pop_front();
    what(one);
  }
  one.timer_armed = false;
  if (one.state == State::kRuns) one.judge->tick(now_);
  arm(one);
}

void Simulation::leave(int rank) {
  Node& one = node(rank);
  if (one.state != State::kRuns || one.declared_dead) return;
  one.judge->leave();
  one.leaving = true;
  // The process waits at most a second for the other ranks.
  const uint64_t limit = now_ + kSecond;
  const auto look = [this, &one, limit](auto&& self) -> void {
    if (one.state != State::kRuns) return;
    if (one.judge->has_left() || now_ >= limit) {
      one.state = State::kGone;
      end_wires(one.rank);
      return;
    }
    schedule(now_ + kMilli, [self] { self(self); });
  };
  look(look);
}

void Simulation::cut(int from, int to, bool is_cut) {
  if (is_cut) {
    cuts_.insert({from, to});
  } else {
    cuts_.erase({from, to});
  }
  cut_since_[{from, to}] = now_;
}

void Simulation::partition(const std::vector<int>& groups) {
  groups_ = groups;
  partition_changed_ns_ = now_;
}

void Simulation::heal() { partition(std::vector<int>(nodes_.size(), 0)); }

void Simulation::reset_connections(int one, int other) {
  std::vector<uint64_t> ids;
  for (const ConnectionId id : node(one).connections) {
    const auto found = wires_.find(id);
    if (found == wires_.end()) continue;
    if (found->second.rank[0] == other || found->second.rank[1] == other) ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    wires_.erase(id);
    for (const int rank : {one, other}) {
      give(node(rank), [this, id](Node& each) {
        if (each.connections.erase(id) != 0)
          each.judge->on_connection_down(id, "connection reset", now_);
      });
    }
  }
}

void Simulation::first_contact(int from, int to) {
  give(node(from), [this, to](Node& one) {
    one.judge->post(to, live::LetterType::kKnock, 0, {}, now_);
    if (cuts_.count({one.rank, to}) != 0) one.judge->inquire(to, now_);
  });
}

void Simulation::introduce(int from, int to) {
  give(node(from), [this, to](Node& one) {
    one.judge->post(to, live::LetterType::kProfile, 1, "a profile", now_);
  });
}

void Simulation::abort(int rank, uint32_t communicator) {
  give(node(rank), [communicator](Node& one) {
    one.judge->publish({.type = live::FrameType::kAborted, .number = communicator, .text = "why"});
  });
}

// --- outcomes -------------------------------------------------------------------

Simulation::State Simulation::state(int rank) const { return node(rank).state; }
Fate Simulation::fate(int of, int as_seen_by) const { return node(as_seen_by).judge->fate(of); }
bool Simulation::declared_dead(int rank) const { return node(rank).declared_dead; }
int Simulation::aborts_seen(int rank) const { return node(rank).aborts; }
bool Simulation::has_profile(int rank, int other) const {
  return node(rank).profiles.contains(other);
}

size_t Simulation::connections(int rank) const { return node(rank).connections.size(); }

size_t Simulation::active_peers(int rank) const { return node(rank).judge->active_peers(); }

uint64_t Simulation::letters_seen(int rank) const { return node(rank).letters; }

// Records a violation if a live rank that a running watcher reaches is declared dead.
void Simulation::judge_death(int declared, int by, bool /*published*/) {
  const State truth = node(declared).state;
  if (truth == State::kDead || truth == State::kGone || !host_is_up(declared)) return;
  if (!violation_.empty()) return;
  if (node(declared).declared_dead) return;
  const auto long_open = [&](int a, int b) {
    if (a == b) return true;
    if (!path(a, b) || !path(b, a)) return false;
    for (const auto& pair : {std::pair(a, b), std::pair(b, a)}) {
      const auto changed = cut_since_.find(pair);
      if (changed != cut_since_.end() && now_ < changed->second + timing_.detection_ns)
        return false;
    }
    return now_ >= partition_changed_ns_ + timing_.detection_ns;
  };
  for (const auto& watcher : nodes_) {
    if (watcher->state != State::kRuns || watcher->declared_dead || watcher->rank == declared)
      continue;
    if (!long_open(watcher->rank, declared) || !long_open(watcher->rank, by)) continue;
    // After a partition each side considers the other side dead, permanently.
    if (fate(by, watcher->rank) != Fate::kAlive || fate(watcher->rank, by) != Fate::kAlive)
      continue;
    if (fate(declared, watcher->rank) != Fate::kAlive) continue;
    const bool connected =
        std::any_of(watcher->connections.begin(), watcher->connections.end(), [&](ConnectionId id) {
          const auto found = wires_.find(id);
          return found != wires_.end() &&
                 (found->second.rank[0] == declared || found->second.rank[1] == declared);
        });
    if (!connected) continue;
    violation_ = fmt::format(
        "at {:.3f} s rank {} held rank {} for dead, which lives and which rank {} reaches",
        static_cast<double>(now_) / 1e9, by, declared, watcher->rank);
    return;
  }
}

}  // namespace hetcomm_test
