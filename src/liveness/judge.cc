#include "src/liveness/judge.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace hetcomm::liveness {
namespace {

double seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

// Returns the text with which the peer's operations end.
std::string given_up_text(int rank, int peer) {
  return fmt::format(
      "rank {} gave up rank {} after a network cut longer than HETCOMM_DETECTION_TIME; rebuild the "
      "communicator",
      rank, peer);
}

}  // namespace

Judge::Judge(Setup setup, Network& network, Observer& observer)
    : setup_(std::move(setup)),
      network_(network),
      observer_(observer),
      fates_(static_cast<size_t>(setup_.ring->size()), Fate::kAlive),
      concluded_(fates_.size(), false) {}

// --- peers and connections ----------------------------------------------------------

Judge::Peer& Judge::peer(int rank, uint64_t now) {
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

Judge::Peer* Judge::find(int rank) {
  const auto found = peers_.find(rank);
  return found != peers_.end() ? &found->second : nullptr;
}

void Judge::connect(int rank, Peer& peer, uint64_t now) {
  peer.next_connect_ns = now + setup_.timing.beat_ns();
  network_.connect(rank);
  ++peer.connecting;
  ++connecting_;
}

void Judge::attempt_ended(Peer& peer) {
  if (peer.connecting == 0) return;
  --peer.connecting;
  --connecting_;
}

// Returns whether rules need no more of |one| than a RestingPeer keeps.
bool Judge::may_rest(const Peer& one, uint64_t now) const {
  const bool idle = one.connections.empty() && one.connecting == 0 && !one.wanted &&
                    one.suspect_ns == kNever && one.letters.waiting().empty();
  const uint64_t last = std::max({one.heard_ns, one.own_life_ns, one.reached_ns, one.life_ns,
                                  one.used_ns, one.inquiry_end_ns, one.next_connect_ns});
  return idle && now >= last + setup_.timing.detection_ns;
}

// Moves peers to rest. Otherwise each tick would look at every rank that was ever met.
void Judge::let_rest(uint64_t now) {
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

void Judge::on_connection_up(ConnectionId id, int rank, bool initiated, uint64_t now) {
  Peer* known = find(rank);
  if (initiated && known != nullptr) attempt_ended(*known);
  if (declared_dead_ || rank == setup_.rank || fate(rank) == Fate::kLeft) {
    network_.close(id);
    return;
  }
  if (fate(rank) == Fate::kDead) {
    // The rank is told that it was declared dead, or that this rank gave it up if the verdict holds
    // here only.
    if (dead_here_.count(rank) == 0) {
      (void)network_.send(id, fate_frame(rank, Fate::kDead, verdict(rank)));
    } else {
      (void)network_.send(id, Frame{.type = FrameType::kLetter,
                                    .code = static_cast<uint8_t>(LetterType::kGivenUp),
                                    .subject = setup_.rank,
                                    .number = kUncounted,
                                    .text = given_up_text(setup_.rank, rank)});
    }
    network_.close(id);
    return;
  }
  Peer& one = peer(rank, now);
  // The new connection replaces silent ones, and news and letters are sent again over it.
  if (one.suspect_ns != kNever) {
    for (const ConnectionId old : std::vector<ConnectionId>(one.connections)) {
      detach(old);
      network_.close(old);
    }
  }
  one.connections.reserve(one.connections.size() + 1);
  Connection& connection = connections_[id];  // the last allocation: it fails before any change
  connection.rank = rank;
  connection.initiated = initiated;
  if (one.connections.empty()) ++connected_;
  one.connections.push_back(id);
  one.proved = true;
  one.reached = one.reached || initiated;
  one.heard_ns = one.introduced_ns = now;
  note_life(one, now);
  pump(id, connection);
  send_letters(rank, one, now);
  if (initiated) send_next_letters(now);
  check_ready();
}

// Removes the connection from all lists.
void Judge::detach(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Peer& one = peers_[found->second.rank];
  std::erase(one.connections, id);
  if (one.connections.empty()) --connected_;
  connections_.erase(found);
}

void Judge::on_connection_down(ConnectionId id, std::string_view why, uint64_t now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const int rank = found->second.rank;
  detach(id);
  Peer& one = peer(rank, now);
  one.why = why;
  if (over()) return;
  if (!one.connections.empty()) {
    send_letters(rank, one, now);
    return;
  }
  suspect(one, now);
  pursue(rank, one, now);
}

void Judge::on_connect_failed(int rank, ConnectFailure failure, std::string_view why,
                              uint64_t now) {
  Peer* found = find(rank);
  if (found == nullptr || over() || !alive(rank)) return;
  Peer& one = *found;
  attempt_ended(one);
  one.why = why;
  send_next_letters(now);
  if (failure == ConnectFailure::kOtherIncarnation) {
    die(rank,
        fmt::format("another process has taken its place ({}); if it was restarted, rebuild the "
                    "communicator",
                    why),
        true, now);
  } else if (failure == ConnectFailure::kRefused && one.proved && one.connections.empty()) {
    die(rank,
        "its process is gone: its connection broke, and its address refuses a new one; read its "
        "log",
        true, now);
  }
}

// Records that a process listens where the rank was proved: neither a sign of life nor silence.
void Judge::on_reached(int rank, uint64_t now) {
  Peer* one = find(rank);
  if (one == nullptr || !one->proved) return;
  // A process that was stopped for a while answers later. After this time it counts as silent.
  constexpr uint64_t kLongest = 20;
  if (one->suspect_ns != kNever && now > one->suspect_ns + kLongest * setup_.timing.detection_ns) {
    return;
  }
  one->reached_ns = now;
  one->life_ns = std::max(one->life_ns, now);
}

void Judge::on_data(int rank, uint64_t now) {
  Peer* one = find(rank);
  if (one == nullptr || over()) return;
  one->own_life_ns = one->life_ns = now;
  last_heard_ns_ = now;
  // Without a connection the suspicion stays, so that the rank is connected again.
  if (!one->connections.empty()) trust(*one);
}

void Judge::on_exit(int rank, uint64_t now) {
  if (!over() && alive(rank))
    die(rank, "its process has exited; read its log and exit status", true, now);
}

void Judge::note_life(Peer& one, uint64_t at) {
  one.own_life_ns = std::max(one.own_life_ns, at);
  one.life_ns = std::max(one.life_ns, at);
  trust(one);
}

// --- frames -------------------------------------------------------------------

void Judge::send_all(const Frame& frame, ConnectionId except) {
  // The newest connection of each rank is used.
  for (const auto& [id, connection] : connections_) {
    if (id != except && is_newest(id, peers_[connection.rank])) (void)network_.send(id, frame);
  }
}

void Judge::pump(ConnectionId id, Connection& connection) {
  for (; connection.news < news_.end(); ++connection.news) {
    const News::Item& item = news_.at(connection.news);
    if (item.from == connection.rank || item.frame.type == FrameType::kBeat) continue;
    if (!network_.send(id, item.frame)) return;
  }
}

void Judge::pump_all() {
  for (auto& [id, connection] : connections_) pump(id, connection);
}

void Judge::on_writable(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) pump(id, found->second);
}

void Judge::on_frame(ConnectionId id, const Frame& frame, uint64_t now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || declared_dead_) return;
  const int from = found->second.rank;
  Peer& one = peer(from, now);
  one.heard_ns = last_heard_ns_ = now;
  note_life(one, now);
  switch (frame.type) {
    case FrameType::kBeat:
      break;
    case FrameType::kFate:
      if (frame.subject == from && frame.code == static_cast<uint8_t>(Fate::kLeft)) {
        (void)network_.send(id, Frame{.type = FrameType::kGoodbyeTaken});
      }
      learn_fate(frame, from, now);
      break;
    case FrameType::kAborted:
    case FrameType::kFailed:
      // The upcall comes first, because it may fail: the sender repeats the notice over its next
      // connection.
      if (news_.knows(frame)) break;
      if (!leaving_) observer_.on_notice(frame);
      if (news_.add(frame, from)) pump_all();
      break;
    case FrameType::kSuspect:
      question(frame, id, now);
      break;
    case FrameType::kVouch:
      answer(frame, id, now);
      break;
    case FrameType::kLetter:
      take_letter(frame, id, one, now);
      break;
    case FrameType::kLetterTaken:
      if (one.letters.taken(frame.number)) one.used_ns = now;
      break;
    case FrameType::kGoodbyeTaken:
      found->second.goodbye_taken = true;
      break;
    case FrameType::kRelease:
      released(id, frame, now);
      break;
    case FrameType::kHere:
      network_.learn_addresses(from, frame.text);
      break;
  }
}

// --- facts --------------------------------------------------------------------

Frame Judge::fate_frame(int rank, Fate fate, const std::string& why) const {
  return {.type = FrameType::kFate,
          .code = static_cast<uint8_t>(fate),
          .subject = rank,
          .value = (*setup_.incarnations)[static_cast<size_t>(rank)],
          .text = why};
}

// Declares |rank| dead. With |publish| this holds for all ranks, otherwise for this rank only.
void Judge::die(int rank, const std::string& why, bool publish, uint64_t now) {
  std::string text = fmt::format("rank {} lost (detected by rank {}): {}", rank, setup_.rank, why);
  if (publish) {
    news_.add(fate_frame(rank, Fate::kDead, text), -1);
  } else {
    dead_here_.emplace(rank, std::move(text));
  }
  fates_[static_cast<size_t>(rank)] = Fate::kDead;
  conclude(rank, now);
}

// Acts upon the fate of |rank|. If out of memory, tick() does so later.
void Judge::conclude(int rank, uint64_t now) {
  const bool others = std::exchange(behind_, true);
  settle(rank, now);
  pump_all();
  if (!leaving_) {
    if (fate(rank) == Fate::kLeft) {
      observer_.on_left(rank);
    } else {
      observer_.on_dead(rank, verdict(rank));
    }
  }
  concluded_[static_cast<size_t>(rank)] = true;
  behind_ = others;
}

void Judge::catch_up(uint64_t now) {
  for (int rank = 0; rank < setup_.ring->size(); ++rank) {
    if (rank != setup_.rank && !alive(rank) && !concluded_[static_cast<size_t>(rank)]) {
      conclude(rank, now);
    }
  }
  behind_ = false;
}

// Returns why |rank| is dead, as far as this rank knows.
std::string Judge::verdict(int rank) const {
  const auto here = dead_here_.find(rank);
  if (here != dead_here_.end()) return here->second;
  for (uint64_t i = 0; i < news_.end(); ++i) {
    const Frame& frame = news_.at(i).frame;
    if (frame.type == FrameType::kFate && frame.subject == rank) return frame.text;
  }
  return {};
}

void Judge::learn_fate(const Frame& frame, int from, uint64_t now) {
  const int rank = frame.subject;
  const auto told = static_cast<Fate>(frame.code);
  if (frame.value != (*setup_.incarnations)[static_cast<size_t>(rank)]) return;
  if (told != Fate::kDead && told != Fate::kLeft) return;
  if (rank == setup_.rank) {
    if (told == Fate::kDead && !leaving_) die_here(frame.text);
    return;
  }
  const Fate before = fate(rank);
  if (!news_.add(frame, from)) return;
  if (told > before) fates_[static_cast<size_t>(rank)] = told;
  if (before == Fate::kAlive) {
    conclude(rank, now);
  } else {
    pump_all();
  }
}

// Ends everything with |rank|, which is dead or has left.
void Judge::settle(int rank, uint64_t now) {
  if (Peer* one = find(rank); one != nullptr) {
    for (const ConnectionId id : std::vector<ConnectionId>(one->connections)) {
      detach(id);
      network_.close(id);
    }
    trust(*one);
    connecting_ -= one->connecting;
    peers_.erase(rank);
  }
  resting_.erase(rank);
  rounds_.erase(rank);
  if (repair_at_ns_ == kNever) repair_at_ns_ = now + setup_.timing.repair_ns();
  check_ready();
}

void Judge::die_here(const std::string& why) {
  observer_.on_declared_dead(why);
  declared_dead_ = true;
  for (const auto& [id, connection] : connections_) network_.close(id);
  connections_.clear();
  peers_.clear();
  resting_.clear();
  suspected_.clear();
  connected_ = connecting_ = 0;
}

void Judge::publish(Frame notice) {
  notice.subject = setup_.rank;
  if (over() || !news_.add(std::move(notice), -1)) return;
  pump_all();
}

// --- questions about others -----------------------------------------------------

void Judge::ask(int rank, Peer& one, uint64_t now) {
  one.next_question_ns = now + setup_.timing.beat_ns();
  send_all({.type = FrameType::kSuspect, .subject = rank, .number = ++rounds_[rank].asked});
}

void Judge::question(const Frame& frame, ConnectionId from, uint64_t now) {
  const int rank = frame.subject;
  if (!alive(rank) || leaving_) return;  // the asker learns it from the news
  Round& round = rounds_[rank];
  const auto newer = static_cast<int32_t>(frame.number - round.asked);
  if (newer == 0) return;
  if (newer > 0) {
    round.asked = frame.number;
    const bool goes_on = now < round.asked_ns + setup_.timing.suspicion_ns();
    if (round.unanswered_ns == kNever || !goes_on) round.unanswered_ns = now;
    round.asked_ns = now;
    send_all(frame, from);
  }
  uint64_t age = kNever;
  if (rank == setup_.rank) {
    age = 0;
  } else if (Peer* one = find(rank); one != nullptr) {
    for (const ConnectionId id : one->connections) {
      one->own_life_ns = std::max(one->own_life_ns, network_.last_acknowledged_ns(id));
    }
    if (one->proved) age = now - std::min(now, std::max(one->own_life_ns, one->reached_ns));
    // A frame to |rank| makes its kernel acknowledge, which is a sign of life.
    if (!one->connections.empty() && one->connections.back() != from) {
      (void)network_.send(one->connections.back(), Frame{});
    }
  }
  const bool vouches = age < setup_.timing.suspicion_ns();
  const Frame vouch{.type = FrameType::kVouch,
                    .subject = rank,
                    .number = round.asked,
                    .value = age,
                    .text = vouches ? network_.addresses_of(rank) : std::string()};
  if (newer < 0) {
    // The sender has missed questions from other ranks, so it is told the newest number.
    const Frame question{.type = FrameType::kSuspect, .subject = rank, .number = round.asked};
    (void)network_.send(from, vouches ? vouch : question);
  } else if (vouches) {
    round.vouched = frame.number;
    round.unanswered_ns = kNever;
    send_all(vouch);
  }
}

void Judge::answer(const Frame& frame, ConnectionId from, uint64_t now) {
  const int rank = frame.subject;
  if (!alive(rank) || rank == setup_.rank) return;
  Round& round = rounds_[rank];
  if (static_cast<int32_t>(frame.number - round.vouched) <= 0) return;
  round.vouched = frame.number;
  round.unanswered_ns = kNever;
  if (static_cast<int32_t>(frame.number - round.asked) > 0) round.asked = frame.number;
  send_all(frame, from);
  if (!frame.text.empty()) network_.learn_addresses(rank, frame.text);
  Peer* one = find(rank);
  if (one == nullptr || frame.value >= setup_.timing.suspicion_ns()) return;
  one->life_ns = std::max(one->life_ns, now - std::min(now, frame.value));
  if (now < one->inquiry_end_ns && !leaving_) observer_.on_vouch(rank);
}

void Judge::inquire(int rank, uint64_t now) {
  if (over() || !alive(rank) || rank == setup_.rank) return;
  Peer& one = peer(rank, now);
  one.inquiry_end_ns = now + setup_.timing.detection_ns;
  if (!one.connections.empty() && one.suspect_ns == kNever) {
    observer_.on_vouch(rank);
  } else {
    ask(rank, one, now);
  }
}

// --- letters --------------------------------------------------------------------

void Judge::post(int rank, LetterType type, uint64_t value, std::string text, uint64_t now) {
  if (over() || !alive(rank) || rank == setup_.rank) return;
  Peer& one = peer(rank, now);
  if (type == LetterType::kQuestion) one.answers_due = std::min(one.answers_due + 1, kMaxAnswers);
  one.letters.add(setup_.rank, type, value, std::move(text));
  if (type != LetterType::kProfile) one.used_ns = now;
  send_letters(rank, one, now);
}

void Judge::forget_knock(int rank) {
  if (Peer* one = find(rank); one != nullptr) one->letters.drop(LetterType::kKnock);
}

void Judge::send_letters(int rank, Peer& one, uint64_t now) {
  if (one.letters.waiting().empty()) return;
  if (!one.connections.empty()) {
    one.next_letters_ns = now + setup_.timing.detection_ns / 4;
    for (const Frame& letter : one.letters.waiting()) {
      if (network_.send(one.connections.back(), letter)) continue;
      one.next_letters_ns = now;
      return;
    }
  } else if (one.connecting == 0 && now >= one.next_connect_ns) {
    if (connecting_ < kMaxLetterConnections) {
      connect(rank, one, now);
    } else {
      waits_for_turn_.insert(rank);
    }
  }
}

// Gives the next rank with waiting letters its turn, after a connection attempt has ended.
void Judge::send_next_letters(uint64_t now) {
  while (!waits_for_turn_.empty() && !over()) {
    const int rank = *waits_for_turn_.begin();
    waits_for_turn_.erase(waits_for_turn_.begin());
    Peer* one = find(rank);
    if (one == nullptr || one->letters.waiting().empty()) continue;
    send_letters(rank, *one, now);
    return;
  }
}

void Judge::take_letter(const Frame& frame, ConnectionId from, Peer& one, uint64_t now) {
  const int rank = connections_[from].rank;
  if (frame.code != static_cast<uint8_t>(LetterType::kProfile)) one.used_ns = now;
  const bool answers = frame.code == static_cast<uint8_t>(LetterType::kAnswer);
  if (answers && one.answers_due-- <= 0) {
    one.answers_due = 0;
    return;
  }
  const bool counted = frame.number != kUncounted;
  const bool known = frame.code >= 1 && frame.code <= static_cast<uint8_t>(kLastLetterType);
  if (!counted || one.letters.is_new(frame.number)) {
    if (known && !leaving_) observer_.on_letter(rank, frame);
    if (counted) one.letters.received(frame.number);
  }
  if (counted) {
    (void)network_.send(from, Frame{.type = FrameType::kLetterTaken, .number = frame.number});
  }
  if (frame.code == static_cast<uint8_t>(LetterType::kProfile)) {
    introduced(from, one, frame.value != 0, now);
  }
}

// Handles a profile exchange between two ranks that talk for the first time. Most of them have
// nothing more to say by a control connection. Those that have said something else keep it. The
// rank that was |asked| lets the other rank offer its end.
void Judge::introduced(ConnectionId id, Peer& one, bool asked, uint64_t now) {
  one.introduced_ns = 0;
  if (asked) return;
  one.letters.drop(LetterType::kProfile);  // the peer has it, since this is the answer
  Connection& connection = connections_[id];
  if (!connection.initiated || needs(one, now)) return;
  connection.next_release_ns = now + setup_.timing.detection_ns / 2;
  (void)network_.send(id, Frame{.type = FrameType::kRelease});
}

// --- leaving --------------------------------------------------------------------

void Judge::leave() {
  const bool was_over = over();
  leaving_ = true;
  if (was_over) return;
  fates_[static_cast<size_t>(setup_.rank)] = Fate::kLeft;
  news_.add(fate_frame(setup_.rank, Fate::kLeft, {}), -1);
  pump_all();
}

size_t Judge::owed_goodbyes() const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& entry) { return !entry.second.goodbye_taken; }));
}

// --- the graph ------------------------------------------------------------------

void Judge::start(uint64_t now) {
  last_tick_ns_ = last_heard_ns_ = next_extra_ns_ = now;
  choose_neighbours(now);
  connect_neighbours(now);
  check_ready();
}

void Judge::choose_neighbours(uint64_t now) {
  repair_at_ns_ = kNever;
  const std::vector<int> before = std::exchange(
      wants_, setup_.ring->neighbours(setup_.rank, [this](int rank) { return !alive(rank); }));
  for (const int rank : before) {
    if (Peer* one = find(rank); one != nullptr) one->wanted = false;
  }
  for (const int rank : wants_) {
    Peer& one = peer(rank, now);
    one.wanted = true;
    const bool known = std::find(before.begin(), before.end(), rank) != before.end();
    if (known || !one.connections.empty() || one.suspect_ns != kNever) continue;
    // This rank takes over the watch from other ranks, so all times begin now.
    one.wanted_ns = one.own_life_ns = one.life_ns = now;
  }
}

// Connects to the neighbours. If two ranks want each other, the lower one connects first. Then the
// higher one connects too, because a refusal is evidence only at an address that has taken a
// connection before.
void Judge::connect_neighbours(uint64_t now) {
  for (const int rank : wants_) {
    if (!alive(rank)) continue;
    Peer& one = peer(rank, now);
    if (one.connecting > 0 || now < one.next_connect_ns) continue;
    const bool settled = now >= one.wanted_ns + setup_.timing.repair_ns();
    if (!one.connections.empty()) {
      if (one.reached || !ready_ || now < one.next_try_ns) continue;
      one.next_try_ns = now + setup_.timing.detection_ns;  // a firewall may stand between them
      connect(rank, one, now);
      continue;
    }
    bool first = setup_.rank < rank || settled;
    if (!first) {
      const std::vector<int> theirs =
          setup_.ring->neighbours(rank, [this](int other) { return !alive(other); });
      first = std::find(theirs.begin(), theirs.end(), setup_.rank) == theirs.end();
    }
    if (first) connect(rank, one, now);
  }
}

std::vector<int> Judge::missing() const {
  std::vector<int> result;
  for (const int rank : wants_) {
    const auto found = peers_.find(rank);
    if (alive(rank) && (found == peers_.end() || found->second.connections.empty())) {
      result.push_back(rank);
    }
  }
  return result;
}

std::string Judge::last_failure(int rank) const {
  const auto found = peers_.find(rank);
  return found != peers_.end() ? found->second.why : std::string();
}

void Judge::check_ready() {
  if (ready_ || over() || last_tick_ns_ == kNever || !missing().empty()) return;
  ready_ = true;
  observer_.on_ready();
}

// Connects to further ranks until two answer, or all are tried. Neighbours may be stopped, or lost
// with their host.
void Judge::seek_others(uint64_t now) {
  if (!ready_ || now < next_extra_ns_) return;
  const auto others = static_cast<int>(std::count(fates_.begin(), fates_.end(), Fate::kAlive)) - 1;
  const bool enough = are_responsive(std::min(2, others), now) && !mostly_silent(1);
  if (enough) return;
  next_extra_ns_ = now + setup_.timing.repair_ns();
  constexpr int kAtOnce = 2;
  int begun = 0;
  for (int steps = 1; steps < setup_.ring->size() && begun < kAtOnce; ++steps) {
    last_extra_ = last_extra_ % (setup_.ring->size() - 1) + 1;
    const int rank = setup_.ring->after(setup_.rank, last_extra_);
    if (!alive(rank)) continue;
    Peer& one = peer(rank, now);
    if (!one.connections.empty() || one.connecting > 0 || one.suspect_ns != kNever || one.wanted)
      continue;
    connect(rank, one, now);
    ++begun;
  }
}

// Returns whether a connection with the rank is needed.
bool Judge::needs(const Peer& one, uint64_t now) const {
  const bool spare = are_responsive(3, now) && !mostly_silent(2);
  const uint64_t used_ns = std::max(one.used_ns, one.introduced_ns);
  const bool rests = now >= used_ns + setup_.timing.detection_ns / 2;
  return one.wanted || !spare || !rests || !one.letters.waiting().empty();
}

// Returns whether each end has made a connection. The higher rank's connection is then redundant.
bool Judge::joined_by_both(const Peer& one) const {
  const auto initiated = [this](ConnectionId id) {
    const auto found = connections_.find(id);
    return found != connections_.end() && found->second.initiated;
  };
  return std::any_of(one.connections.begin(), one.connections.end(), initiated) &&
         !std::all_of(one.connections.begin(), one.connections.end(), initiated);
}

// Offers to end connections that this rank made and does not need: those for a letter, those to
// further ranks, and those that only showed that the peer can be reached.
void Judge::release_idle(uint64_t now) {
  for (auto& [id, connection] : connections_) {
    if (!connection.initiated || now < connection.next_release_ns) continue;
    const bool spare = setup_.rank > connection.rank && joined_by_both(peers_[connection.rank]);
    if (!spare && needs(peers_[connection.rank], now)) continue;
    connection.next_release_ns = now + setup_.timing.detection_ns / 2;
    (void)network_.send(id, Frame{.type = FrameType::kRelease});
  }
}

void Judge::released(ConnectionId id, const Frame& frame, uint64_t now) {
  const bool agreed = frame.code != 0;
  if (!agreed) {
    const int rank = connections_[id].rank;
    const bool spare =
        !connections_[id].initiated && setup_.rank < rank && joined_by_both(peers_[rank]);
    if (!spare && needs(peers_[rank], now)) return;
    (void)network_.send(id, Frame{.type = FrameType::kRelease, .code = 1});
  }
  const int rank = connections_[id].rank;
  detach(id);
  network_.close(id);
  send_letters(rank, peers_[rank], now);  // their answers were to come over this connection
}

bool Judge::are_responsive(int ranks, uint64_t now) const {
  for (const auto& [id, connection] : connections_) {
    if (ranks <= 0) break;
    const Peer& one = peers_.at(connection.rank);
    if (is_newest(id, one) && now < one.heard_ns + setup_.timing.suspicion_ns()) --ranks;
  }
  return ranks <= 0;
}

// Returns whether most ranks to which this one was connected are silent, or would be with |more|
// silent ranks. This rank may then be the one that is cut off.
bool Judge::mostly_silent(int more) const {
  auto silent = static_cast<int>(dead_here_.size());
  int all = silent + connected_;
  for (const int rank : suspected_) {
    const Peer& one = peers_.at(rank);
    if (!one.proved) continue;
    ++silent;
    if (one.connections.empty()) ++all;
  }
  return 2 * (silent + more) > all;
}

// --- time -----------------------------------------------------------------------

uint64_t Judge::next_timer_ns() const {
  if (last_tick_ns_ == kNever || declared_dead_ || setup_.ring->size() == 1) return kNever;
  return last_tick_ns_ + setup_.timing.tick_ns();
}

void Judge::tick(uint64_t now) {
  if (last_tick_ns_ == kNever || declared_dead_) return;
  if (now < next_timer_ns()) return;
  const bool paused = now - last_tick_ns_ > setup_.timing.pause_ns();
  last_tick_ns_ = now;
  if (leaving_) {
    pump_all();
    return;
  }
  if (paused) start_anew(now);
  if (behind_) catch_up(now);
  pump_all();  // sends news for which memory was missing before
  beat(now);
  if (now >= repair_at_ns_) choose_neighbours(now);
  connect_neighbours(now);
  std::vector<int> ranks;
  ranks.reserve(peers_.size());
  for (const auto& [rank, one] : peers_) ranks.push_back(rank);
  for (const int rank : ranks) {
    if (Peer* one = find(rank); one != nullptr) look_at(rank, *one, now);
    if (over()) return;
  }
  const bool publish = !mostly_silent();
  ranks.assign(suspected_.begin(), suspected_.end());
  for (const int rank : ranks) {
    Peer* one = find(rank);
    if (one != nullptr && one->suspect_ns != kNever) judge(rank, *one, publish, now);
  }
  believe_silence(now);
  seek_others(now);
  release_idle(now);
  let_rest(now);
}

// Declares ranks dead if others have long asked about them without an answer and this rank has no
// connection with them. The ranks that ask may be too cut off to publish a death.
void Judge::believe_silence(uint64_t now) {
  // A watcher begins to ask after T/3 of silence, and asks with every beat.
  const uint64_t patience = setup_.timing.detection_ns / 4 * 3;
  std::vector<int> silent;
  for (const auto& [rank, round] : rounds_) {
    const bool asked = round.unanswered_ns != kNever && now >= round.unanswered_ns + patience &&
                       now < round.asked_ns + 2 * setup_.timing.beat_ns();
    if (!asked || !alive(rank) || rank == setup_.rank) continue;
    const Peer* one = find(rank);
    if (one == nullptr || (one->connections.empty() && one->suspect_ns == kNever))
      silent.push_back(rank);
  }
  for (const int rank : silent) {
    const std::string why = fmt::format(
        "silent for over {:.1f} s to the ranks that watch it, so rank {} is cut off from it with "
        "them; check the network between the hosts",
        seconds(setup_.timing.detection_ns), setup_.rank);
    die(rank, why, false, now);
  }
}

// Restarts all times, after this process did not run (SIGSTOP, a pause of its machine). The silence
// of others then means nothing.
void Judge::start_anew(uint64_t now) {
  last_heard_ns_ = now;
  for (auto& [rank, round] : rounds_) round.unanswered_ns = kNever;
  for (auto& [rank, one] : peers_) {
    one.own_life_ns = one.life_ns = one.wanted_ns = now;
    if (one.suspect_ns == kNever) continue;
    if (one.connections.empty()) {
      one.suspect_ns = now;
    } else {
      trust(one);
    }
  }
}

void Judge::beat(uint64_t now) {
  for (auto& [id, connection] : connections_) {
    if (now < connection.next_beat_ns) continue;
    const bool answers = now < peers_[connection.rank].heard_ns + setup_.timing.detection_ns;
    // A stopped process reads nothing, so fewer beats keep its buffer from filling up.
    connection.next_beat_ns =
        now + (answers ? setup_.timing.beat_ns() : setup_.timing.detection_ns / 4);
    (void)network_.send(id, Frame{});
  }
}

void Judge::look_at(int rank, Peer& one, uint64_t now) {
  const Timing& timing = setup_.timing;
  if (now >= one.own_life_ns + 2 * timing.beat_ns()) {
    for (const ConnectionId id : one.connections) {
      const uint64_t at = network_.last_acknowledged_ns(id);
      if (at > one.own_life_ns) note_life(one, at);
    }
  }
  const bool watched = !one.connections.empty() || (one.wanted && ready_);
  if (one.suspect_ns == kNever && watched && now >= one.own_life_ns + timing.suspicion_ns()) {
    suspect(one, now);
  }
  if (one.suspect_ns != kNever) {
    pursue(rank, one, now);
  } else if (now < one.inquiry_end_ns && now >= one.next_question_ns) {
    ask(rank, one, now);
  }
  if (one.connections.empty() || now >= one.next_letters_ns) send_letters(rank, one, now);
}

void Judge::suspect(Peer& one, uint64_t now) {
  if (one.suspect_ns != kNever) return;
  suspected_.insert(one.rank);
  one.suspect_ns = now;
}

void Judge::trust(Peer& one) {
  if (one.suspect_ns == kNever) return;
  suspected_.erase(one.rank);
  one.suspect_ns = kNever;
}

// Reconnects to a suspected rank, and asks the others about it.
void Judge::pursue(int rank, Peer& one, uint64_t now) {
  const Timing& timing = setup_.timing;
  if (now >= one.next_connect_ns && one.connecting < kMaxAttempts) {
    connect(rank, one, now);
    observer_.on_suspect(rank);
    // The others reach the rank, so only the path is missing, perhaps for a long time.
    if (now >= one.suspect_ns + timing.detection_ns) {
      one.next_connect_ns = now + timing.detection_ns / 2;
    }
  }
  const bool broken = one.connections.empty();
  const bool silent = now >= one.life_ns + timing.suspicion_ns();
  if ((silent || (broken && one.next_question_ns == 0)) && now >= one.next_question_ns) {
    ask(rank, one, now);
  }
}

// Declares |rank| dead when no rank has heard from it for a detection time, and all ranks that
// answer were asked.
void Judge::judge(int rank, Peer& one, bool publish, uint64_t now) {
  const Timing& timing = setup_.timing;
  const bool asked = now >= one.suspect_ns + timing.detection_ns / 2;
  if (now < one.life_ns + timing.detection_ns || !asked) return;
  // All ranks pass this text on, so it is short.
  const std::string cause = one.why.empty() ? "" : fmt::format(" ({})", one.why);
  const std::string why = fmt::format("silent for {:.1f} s{}", seconds(now - one.life_ns), cause);
  if (publish) {
    die(rank, why + "; check its host and network", true, now);
    return;
  }
  // Ranks that seek_others() connects to may still answer.
  const bool others = setup_.ring->size() > 2;
  if (others && now < one.life_ns + timing.detection_ns + 2 * timing.repair_ns()) return;
  // This rank may be the one that is cut off, so its verdict holds for itself only.
  const std::string doubt = fmt::format(
      "; rank {} has lost most of its connections and may itself be cut off: check the "
      "network of both hosts",
      setup_.rank);
  die(rank, why + doubt, false, now);
  if (now >= last_heard_ns_ + 2 * timing.suspicion_ns()) cut_off(now);
}

// Declares dead, for this rank only, all ranks without a recent sign of life.
void Judge::cut_off(uint64_t now) {
  for (int rank = 0; rank < setup_.ring->size(); ++rank) {
    if (rank == setup_.rank || !alive(rank)) continue;
    const Peer* one = find(rank);
    if (one != nullptr && now < one->life_ns + setup_.timing.suspicion_ns()) continue;
    die(rank,
        fmt::format("rank {} is cut off from all other ranks; check the network of its host",
                    setup_.rank),
        false, now);
  }
}

}  // namespace hetcomm::liveness
