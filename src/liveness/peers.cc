#include "src/liveness/peers.h"

#include <algorithm>

namespace hetcomm::liveness {

Peer& Peers::meet(int rank, uint64_t now) {
  const auto [found, added] = peers_.try_emplace(rank);
  Peer& one = found->second;
  if (!added) return one;
  one.rank = rank;
  one.own_life_ns = one.life_ns = now;
  const auto rested = resting_.find(rank);
  if (rested == resting_.end()) return one;
  one.letters.go_on_from(rested->second.letters);
  one.own_life_ns = one.life_ns = rested->second.life_ns;
  one.proved = rested->second.proved;
  one.reached = rested->second.reached;
  resting_.erase(rested);
  return one;
}

Peer* Peers::find(int rank) {
  const auto found = peers_.find(rank);
  return found != peers_.end() ? &found->second : nullptr;
}

const Peer* Peers::find(int rank) const {
  const auto found = peers_.find(rank);
  return found != peers_.end() ? &found->second : nullptr;
}

Peer* Peers::after(int rank) {
  const auto found = peers_.upper_bound(rank);
  return found != peers_.end() ? &found->second : nullptr;
}

// Returns whether |one| has been idle for a detection time, so that only a Resting has to be kept.
bool Peers::may_rest(const Peer& one, uint64_t now) const {
  const bool idle = !one.is_connected() && one.connecting == 0 && !one.wanted &&
                    !one.is_suspected() && one.letters.waiting().empty();
  const uint64_t last = std::max({one.heard_ns, one.own_life_ns, one.reached_ns, one.life_ns,
                                  one.used_ns, one.inquiry_end_ns, one.next_connect_ns});
  return idle && now >= last + timing_.detection_ns;
}

void Peers::let_rest(uint64_t now) {
  for (auto at = peers_.begin(); at != peers_.end();) {
    const Peer& one = at->second;
    if (!may_rest(one, now)) {
      ++at;
      continue;
    }
    resting_[at->first] = {.letters = one.letters.numbers(),
                           .life_ns = one.own_life_ns,
                           .proved = one.proved,
                           .reached = one.reached};
    at = peers_.erase(at);
  }
}

void Peers::forget(int rank) {
  if (Peer* one = find(rank); one != nullptr) {
    close_all(*one);
    trust(*one);
    connecting_ -= one->connecting;
    peers_.erase(rank);
  }
  resting_.erase(rank);
}

void Peers::forget_all() {
  for (const auto& [id, connection] : connections_) network_.close(id);
  connections_.clear();
  peers_.clear();
  resting_.clear();
  suspected_.clear();
  connected_ = connecting_ = 0;
}

// --- connections ----------------------------------------------------------------

void Peers::connect(Peer& one, uint64_t now) {
  one.next_connect_ns = now + timing_.beat_ns();
  network_.connect(one.rank);
  ++one.connecting;
  ++connecting_;
}

void Peers::attempt_ended(Peer& one) {
  if (one.connecting == 0) return;
  --one.connecting;
  --connecting_;
}

Connection& Peers::attach(ConnectionId id, Peer& one, bool initiated, uint64_t now) {
  one.connections.reserve(one.connections.size() + 1);
  Connection& connection = connections_[id];  // the last allocation: on failure nothing has changed
  connection.rank = one.rank;
  connection.initiated = initiated;
  if (!one.is_connected()) ++connected_;
  one.connections.push_back(id);
  one.proved = true;
  one.reached = one.reached || initiated;
  one.heard_ns = one.introduced_ns = now;
  note_life(one, now);
  return connection;
}

void Peers::detach(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Peer& one = of(found->second);
  std::erase(one.connections, id);
  if (!one.is_connected()) --connected_;
  connections_.erase(found);
}

void Peers::close_all(Peer& one) {
  for (const ConnectionId id : std::vector<ConnectionId>(one.connections)) {
    detach(id);
    network_.close(id);
  }
}

Connection* Peers::find_connection(ConnectionId id) {
  const auto found = connections_.find(id);
  return found != connections_.end() ? &found->second : nullptr;
}

bool Peers::joined_by_both(const Peer& one) const {
  const auto initiated = [this](ConnectionId id) {
    const auto found = connections_.find(id);
    return found != connections_.end() && found->second.initiated;
  };
  return std::any_of(one.connections.begin(), one.connections.end(), initiated) &&
         !std::all_of(one.connections.begin(), one.connections.end(), initiated);
}

void Peers::send_all(const Frame& frame, ConnectionId except) {
  for (const auto& [id, connection] : connections_) {
    if (id != except && id == of(connection).newest()) (void)network_.send(id, frame);
  }
}

// --- signs of life --------------------------------------------------------------

void Peers::note_life(Peer& one, uint64_t at) {
  one.own_life_ns = std::max(one.own_life_ns, at);
  one.life_ns = std::max(one.life_ns, at);
  trust(one);
}

void Peers::suspect(Peer& one, uint64_t now) {
  if (one.is_suspected()) return;
  suspected_.insert(one.rank);
  one.suspect_ns = now;
}

void Peers::trust(Peer& one) {
  if (!one.is_suspected()) return;
  suspected_.erase(one.rank);
  one.suspect_ns = kNever;
}

bool Peers::are_responsive(int ranks, uint64_t now) const {
  for (const auto& [id, connection] : connections_) {
    if (ranks <= 0) break;
    const Peer& one = peers_.at(connection.rank);
    if (id == one.newest() && now < one.heard_ns + timing_.suspicion_ns()) --ranks;
  }
  return ranks <= 0;
}

void Peers::beat(uint64_t now) {
  for (auto& [id, connection] : connections_) {
    if (now < connection.next_beat_ns) continue;
    const bool answers = now < of(connection).heard_ns + timing_.detection_ns;
    // A stopped process reads nothing. Fewer heartbeats keep its socket buffer from filling up.
    connection.next_beat_ns = now + (answers ? timing_.beat_ns() : timing_.detection_ns / 4);
    (void)network_.send(id, Frame{});
  }
}

void Peers::start_anew(uint64_t now) {
  for (auto& [rank, one] : peers_) {
    one.own_life_ns = one.life_ns = one.wanted_ns = now;
    if (!one.is_suspected()) continue;
    if (!one.is_connected()) {
      one.suspect_ns = now;
    } else {
      trust(one);
    }
  }
}

}  // namespace hetcomm::liveness
