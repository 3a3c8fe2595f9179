#include "src/liveness/judge.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::liveness {
namespace {

double seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

// Returns the error text for the operations of |peer|, with which |rank| exchanges no more
// messages.
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
      fates_(setup_.incarnations, news_),
      peers_(setup_.timing, network),
      neighbourhood_(setup_.rank, setup_.timing, setup_.ring, network, fates_, peers_),
      questions_(setup_.rank, setup_.timing, network, peers_),
      post_office_(setup_.rank, setup_.timing, network, observer, peers_),
      concluded_(static_cast<size_t>(setup_.ring->size()), false) {}

// --- calls of the owner -------------------------------------------------------------

void Judge::start(uint64_t now) {
  last_tick_ns_ = last_heard_ns_ = now;
  neighbourhood_.start(now);
  check_ready();
}

void Judge::check_ready() {
  const bool started = last_tick_ns_ != kNever;
  if (neighbourhood_.is_ready() || over() || !started || !missing().empty()) return;
  neighbourhood_.set_ready();
  observer_.on_ready();
}

std::string Judge::last_failure(int rank) const {
  const Peer* const one = peers_.find(rank);
  return one != nullptr ? one->why : std::string();
}

void Judge::post(int rank, LetterType type, uint64_t value, std::string text, uint64_t now) {
  if (over() || !alive(rank) || rank == setup_.rank) return;
  post_office_.post(peers_.meet(rank, now), type, value, std::move(text), now);
}

void Judge::forget_knock(int rank) {
  if (Peer* one = peers_.find(rank); one != nullptr) one->letters.drop(LetterType::kKnock);
}

void Judge::publish(Frame notice) {
  notice.subject = setup_.rank;
  if (over() || !news_.add(std::move(notice), -1)) return;
  pump_all();
}

void Judge::inquire(int rank, uint64_t now) {
  if (over() || !alive(rank) || rank == setup_.rank) return;
  if (questions_.inquire(peers_.meet(rank, now), now)) observer_.on_vouch(rank);
}

void Judge::leave() {
  const bool was_over = over();
  leaving_ = true;
  post_office_.close();
  if (was_over) return;
  fates_.leave(setup_.rank);
  pump_all();
}

size_t Judge::owed_goodbyes() const {
  const auto& connections = peers_.connections();
  return static_cast<size_t>(
      std::count_if(connections.begin(), connections.end(),
                    [](const auto& entry) { return !entry.second.goodbye_taken; }));
}

// --- calls of the network -----------------------------------------------------------

void Judge::on_connection_up(ConnectionId id, int rank, bool initiated, uint64_t now) {
  Peer* known = peers_.find(rank);
  if (initiated && known != nullptr) peers_.attempt_ended(*known);
  if (declared_dead_ || rank == setup_.rank || !alive(rank)) {
    turn_away(id, rank);
    return;
  }
  Peer& one = peers_.meet(rank, now);
  // The new connection replaces silent ones, and news and letters are sent again over it.
  if (one.is_suspected()) peers_.close_all(one);
  pump(id, peers_.attach(id, one, initiated, now));
  post_office_.send(one, now);
  if (initiated) post_office_.send_next(now);
  check_ready();
}

// Closes a connection that this rank does not accept. A dead peer is notified that it was declared
// dead, or, if its death applies to this rank only, that this rank exchanges no more messages with
// it.
void Judge::turn_away(ConnectionId id, int rank) {
  const bool tell = !declared_dead_ && rank != setup_.rank && fate(rank) == Fate::kDead;
  if (tell && !fates_.is_dead_here(rank)) {
    (void)network_.send(id, fates_.frame(rank, Fate::kDead, fates_.verdict(rank)));
  } else if (tell) {
    (void)network_.send(id, Frame{.type = FrameType::kLetter,
                                  .code = static_cast<uint8_t>(LetterType::kGivenUp),
                                  .subject = setup_.rank,
                                  .number = kUncounted,
                                  .text = given_up_text(setup_.rank, rank)});
  }
  network_.close(id);
}

void Judge::on_connection_down(ConnectionId id, std::string_view why, uint64_t now) {
  const Connection* const connection = peers_.find_connection(id);
  if (connection == nullptr) return;
  const int rank = connection->rank;
  peers_.detach(id);
  Peer& one = peers_.meet(rank, now);
  one.why = why;
  if (over()) return;
  if (one.is_connected()) {
    post_office_.send(one, now);
    return;
  }
  peers_.suspect(one, now);
  pursue(one, now);
}

void Judge::on_connect_failed(int rank, ConnectFailure failure, std::string_view why,
                              uint64_t now) {
  Peer* const found = peers_.find(rank);
  if (found == nullptr || over() || !alive(rank)) return;
  Peer& one = *found;
  peers_.attempt_ended(one);
  one.why = why;
  post_office_.send_next(now);
  if (failure == ConnectFailure::kOtherIncarnation) {
    die(rank,
        fmt::format("another process has taken its place ({}); if it was restarted, rebuild the "
                    "communicator",
                    why),
        true, now);
  } else if (failure == ConnectFailure::kRefused && one.proved && !one.is_connected()) {
    die(rank,
        "its process is gone: its connection broke, and its address refuses a new one; read its "
        "log",
        true, now);
  }
}

// Postpones declaring |rank| dead for its silence, because a process is listening where the rank
// has proved itself. Listening alone is no sign of life of the process, however.
void Judge::on_reached(int rank, uint64_t now) {
  Peer* const one = peers_.find(rank);
  if (one == nullptr || !one->proved) return;
  // A stopped process may continue later. After this many detection times of suspicion it counts as
  // silent.
  constexpr uint64_t kLongest = 20;
  if (one->is_suspected() && now > one->suspect_ns + kLongest * setup_.timing.detection_ns) {
    return;
  }
  one->reached_ns = now;
  one->life_ns = std::max(one->life_ns, now);
}

void Judge::on_data(int rank, uint64_t now) {
  Peer* const one = peers_.find(rank);
  if (one == nullptr || over()) return;
  one->own_life_ns = one->life_ns = now;
  last_heard_ns_ = now;
  // Without a connection the suspicion remains, so that pursue() connects to the rank again.
  if (one->is_connected()) peers_.trust(*one);
}

void Judge::on_exit(int rank, uint64_t now) {
  if (!over() && alive(rank))
    die(rank, "its process has exited; read its log and exit status", true, now);
}

void Judge::on_writable(ConnectionId id) {
  if (Connection* found = peers_.find_connection(id); found != nullptr) pump(id, *found);
}

void Judge::on_frame(ConnectionId id, const Frame& frame, uint64_t now) {
  Connection* const connection = peers_.find_connection(id);
  if (connection == nullptr || declared_dead_) return;
  const int from = connection->rank;
  const int subject = frame.subject;
  Peer& one = peers_.meet(from, now);
  one.heard_ns = last_heard_ns_ = now;
  peers_.note_life(one, now);
  switch (frame.type) {
    case FrameType::kBeat:
      break;
    case FrameType::kFate:
      if (subject == from && frame.code == static_cast<uint8_t>(Fate::kLeft)) {
        (void)network_.send(id, Frame{.type = FrameType::kGoodbyeTaken});
      }
      learn_fate(frame, from, now);
      break;
    case FrameType::kAborted:
    case FrameType::kFailed:
      learn_notice(frame, from);
      break;
    case FrameType::kSuspect:
      // A rank that asks about a dead rank learns of the death from the news.
      if (alive(subject) && !leaving_) questions_.question(frame, id, now);
      break;
    case FrameType::kVouch:
      if (!alive(subject) || subject == setup_.rank) break;
      if (questions_.answer(frame, id, now) && !leaving_) observer_.on_vouch(subject);
      break;
    case FrameType::kLetter:
      take_letter(frame, id, one, now);
      break;
    case FrameType::kLetterTaken:
      post_office_.taken(one, frame.number, now);
      break;
    case FrameType::kGoodbyeTaken:
      connection->goodbye_taken = true;
      break;
    case FrameType::kRelease:
      released(id, one, frame, now);
      break;
    case FrameType::kHere:
      network_.learn_addresses(from, frame.text);
      break;
  }
}

void Judge::take_letter(const Frame& frame, ConnectionId from, Peer& one, uint64_t now) {
  post_office_.take(frame, from, one, now);
  if (frame.code == static_cast<uint8_t>(LetterType::kProfile)) {
    neighbourhood_.introduced(from, one, frame.value != 0, now);
  }
}

void Judge::released(ConnectionId id, Peer& one, const Frame& frame, uint64_t now) {
  if (!neighbourhood_.release(id, frame, now)) return;
  peers_.detach(id);
  network_.close(id);
  post_office_.send(one, now);  // resends letters that were not acknowledged over |id|
}

// --- news -----------------------------------------------------------------------

void Judge::pump(ConnectionId id, Connection& connection) {
  for (; connection.news < news_.end(); ++connection.news) {
    const News::Item& item = news_.at(connection.news);
    if (item.from == connection.rank || item.frame.type == FrameType::kBeat) continue;
    if (!network_.send(id, item.frame)) return;
  }
}

void Judge::pump_all() {
  for (auto& [id, connection] : peers_.connections()) pump(id, connection);
}

// Calls the observer before it adds the notice. If the observer runs out of memory, the notice is
// not recorded, and the sender repeats it over its next connection.
void Judge::learn_notice(const Frame& frame, int from) {
  if (news_.knows(frame)) return;
  if (!leaving_) observer_.on_notice(frame);
  if (news_.add(frame, from)) pump_all();
}

void Judge::learn_fate(const Frame& frame, int from, uint64_t now) {
  if (!fates_.is_valid(frame)) return;
  const int rank = frame.subject;
  if (rank == setup_.rank) {
    if (static_cast<Fate>(frame.code) == Fate::kDead && !leaving_) die_here(frame.text);
    return;
  }
  const bool was_alive = alive(rank);
  if (!fates_.learn(frame, from)) return;
  if (was_alive) {
    conclude(rank, now);
  } else {
    pump_all();
  }
}

// --- verdicts -------------------------------------------------------------------

// Declares |rank| dead. With |publish| the death applies to all ranks, otherwise to this rank only.
void Judge::die(int rank, const std::string& why, bool publish, uint64_t now) {
  std::string text = fmt::format("rank {} lost (detected by rank {}): {}", rank, setup_.rank, why);
  if (publish) {
    fates_.die(rank, std::move(text));
  } else {
    fates_.die_here(rank, std::move(text));
  }
  conclude(rank, now);
}

// Acts on the fate of |rank|. If memory runs out, tick() repeats this later (behind_).
void Judge::conclude(int rank, uint64_t now) {
  const bool others = std::exchange(behind_, true);
  settle(rank, now);
  pump_all();
  if (!leaving_) {
    if (fate(rank) == Fate::kLeft) {
      observer_.on_left(rank);
    } else {
      observer_.on_dead(rank, fates_.verdict(rank));
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

// Drops everything that concerns |rank|, which is dead or has left.
void Judge::settle(int rank, uint64_t now) {
  peers_.forget(rank);
  questions_.forget(rank);
  neighbourhood_.note_loss(now);
  check_ready();
}

void Judge::die_here(const std::string& why) {
  observer_.on_declared_dead(why);
  declared_dead_ = true;
  peers_.forget_all();
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
  pump_all();  // sends news that could not be sent before
  peers_.beat(now);
  neighbourhood_.repair(now);
  for (Peer* one = peers_.after(-1); one != nullptr;) {
    const int rank = one->rank;
    look_at(*one, now);
    if (over()) return;
    one = peers_.after(rank);
  }
  const bool publish = !neighbourhood_.mostly_silent();
  const std::vector<int> suspected(peers_.suspected().begin(), peers_.suspected().end());
  for (const int rank : suspected) {
    const Peer* const one = peers_.find(rank);
    if (one != nullptr && one->is_suspected()) judge(*one, publish, now);
  }
  believe_silence(now);
  neighbourhood_.seek_others(now);
  neighbourhood_.release_idle(now);
  peers_.let_rest(now);
}

// Restarts all timers after this process did not run for a while (SIGSTOP, a paused machine). The
// silence of other ranks in that time means nothing.
void Judge::start_anew(uint64_t now) {
  last_heard_ns_ = now;
  questions_.start_anew();
  peers_.start_anew(now);
}

// Checks one peer for signs of life. Sends questions and letters and makes connections that are
// due.
void Judge::look_at(Peer& one, uint64_t now) {
  const Timing& timing = setup_.timing;
  if (now >= one.own_life_ns + 2 * timing.beat_ns()) {
    for (const ConnectionId id : one.connections) {
      const uint64_t at = network_.last_acknowledged_ns(id);
      if (at > one.own_life_ns) peers_.note_life(one, at);
    }
  }
  const bool watched = one.is_connected() || (one.wanted && neighbourhood_.is_ready());
  if (watched && now >= one.own_life_ns + timing.suspicion_ns()) peers_.suspect(one, now);
  if (one.is_suspected()) {
    pursue(one, now);
  } else if (now < one.inquiry_end_ns && now >= one.next_question_ns) {
    questions_.ask(one, now);
  }
  if (!one.is_connected() || now >= one.next_letters_ns) post_office_.send(one, now);
}

// Reconnects to a suspected rank, and asks the other ranks about it.
void Judge::pursue(Peer& one, uint64_t now) {
  const Timing& timing = setup_.timing;
  if (now >= one.next_connect_ns && one.connecting < kMaxAttempts) {
    peers_.connect(one, now);
    observer_.on_suspect(one.rank);
    // If the rank is still alive after a detection time of suspicion, other ranks still reach it.
    // Only the path from this rank is broken, perhaps for a long time.
    if (now >= one.suspect_ns + timing.detection_ns) {
      one.next_connect_ns = now + timing.detection_ns / 2;
    }
  }
  const bool broken = !one.is_connected();
  const bool silent = now >= one.life_ns + timing.suspicion_ns();
  if ((silent || (broken && one.next_question_ns == 0)) && now >= one.next_question_ns) {
    questions_.ask(one, now);
  }
}

// Declares a suspected rank dead if no rank has heard from it for a detection time, and the other
// ranks have had half of that time to answer.
void Judge::judge(const Peer& one, bool publish, uint64_t now) {
  const Timing& timing = setup_.timing;
  const bool asked = now >= one.suspect_ns + timing.detection_ns / 2;
  if (now < one.life_ns + timing.detection_ns || !asked) return;
  const int rank = one.rank;
  // All ranks pass this text on, so it is kept short.
  const std::string cause = one.why.empty() ? "" : fmt::format(" ({})", one.why);
  const std::string why = fmt::format("silent for {:.1f} s{}", seconds(now - one.life_ns), cause);
  if (publish) {
    die(rank, why + "; check its host and network", true, now);
    return;
  }
  // Ranks that seek_others() connects to may still answer.
  const bool others = setup_.ring->size() > 2;
  if (others && now < one.life_ns + timing.detection_ns + 2 * timing.repair_ns()) return;
  // This rank may be the one that is cut off, so the death applies to this rank only.
  const std::string doubt = fmt::format(
      "; rank {} has lost most of its connections and may itself be cut off: check the "
      "network of both hosts",
      setup_.rank);
  die(rank, why + doubt, false, now);
  if (now >= last_heard_ns_ + 2 * timing.suspicion_ns()) cut_off(now);
}

// Declares ranks dead for this rank only, if others have long asked about them without an answer
// and this rank has no connection with them. The ranks that ask may have lost too many connections
// to publish a death.
void Judge::believe_silence(uint64_t now) {
  // A watcher starts to ask after T/3 of silence, and asks again with every beat.
  const uint64_t patience = setup_.timing.detection_ns / 4 * 3;
  for (const int rank : questions_.unanswered(patience, now)) {
    if (!alive(rank) || rank == setup_.rank) continue;
    const Peer* const one = peers_.find(rank);
    if (one != nullptr && (one->is_connected() || one->is_suspected())) continue;
    const std::string why = fmt::format(
        "silent for over {:.1f} s to the ranks that watch it, so rank {} is cut off from it with "
        "them; check the network between the hosts",
        seconds(setup_.timing.detection_ns), setup_.rank);
    die(rank, why, false, now);
  }
}

// Declares dead, for this rank only, all ranks without a recent sign of life.
void Judge::cut_off(uint64_t now) {
  for (int rank = 0; rank < setup_.ring->size(); ++rank) {
    if (rank == setup_.rank || !alive(rank)) continue;
    const Peer* const one = peers_.find(rank);
    if (one != nullptr && now < one->life_ns + setup_.timing.suspicion_ns()) continue;
    die(rank,
        fmt::format("rank {} is cut off from all other ranks; check the network of its host",
                    setup_.rank),
        false, now);
  }
}

}  // namespace hetcomm::liveness
