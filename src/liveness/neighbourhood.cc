#include "src/liveness/neighbourhood.h"

#include <algorithm>
#include <utility>

namespace hetcomm::liveness {

void Neighbourhood::start(uint64_t now) {
  next_extra_ns_ = now;
  choose_neighbours(now);
  connect_neighbours(now);
}

void Neighbourhood::note_loss(uint64_t now) {
  if (repair_at_ns_ == kNever) repair_at_ns_ = now + timing_.repair_ns();
}

void Neighbourhood::repair(uint64_t now) {
  if (now >= repair_at_ns_) choose_neighbours(now);
  connect_neighbours(now);
}

void Neighbourhood::choose_neighbours(uint64_t now) {
  repair_at_ns_ = kNever;
  const std::vector<int> before = std::exchange(
      wants_, ring_->neighbours(own_rank_, [this](int rank) { return !fates_.alive(rank); }));
  for (const int rank : before) {
    if (Peer* one = peers_.find(rank); one != nullptr) one->wanted = false;
  }
  for (const int rank : wants_) {
    Peer& one = peers_.meet(rank, now);
    one.wanted = true;
    const bool known = std::find(before.begin(), before.end(), rank) != before.end();
    if (known || one.is_connected() || one.is_suspected()) continue;
    // This rank begins to watch the neighbour, so all its times start now.
    one.wanted_ns = one.own_life_ns = one.life_ns = now;
  }
}

// Connects to the neighbours. If two ranks are neighbours of each other, the lower one connects
// first. Then the higher one connects too, because a refused connection is evidence of an exit only
// at an address that has accepted a connection before.
void Neighbourhood::connect_neighbours(uint64_t now) {
  for (const int rank : wants_) {
    if (!fates_.alive(rank)) continue;
    Peer& one = peers_.meet(rank, now);
    if (one.connecting > 0 || now < one.next_connect_ns) continue;
    if (one.is_connected()) {
      if (one.reached || !ready_ || now < one.next_try_ns) continue;
      one.next_try_ns = now + timing_.detection_ns;  // a firewall may block it for long
      peers_.connect(one, now);
    } else if (connects_first(one, now)) {
      peers_.connect(one, now);
    }
  }
}

bool Neighbourhood::connects_first(const Peer& one, uint64_t now) const {
  const bool settled = now >= one.wanted_ns + timing_.repair_ns();
  if (own_rank_ < one.rank || settled) return true;
  const std::vector<int> theirs =
      ring_->neighbours(one.rank, [this](int other) { return !fates_.alive(other); });
  return std::find(theirs.begin(), theirs.end(), own_rank_) == theirs.end();
}

void Neighbourhood::seek_others(uint64_t now) {
  if (!ready_ || now < next_extra_ns_) return;
  const int others = fates_.count_alive() - 1;
  const bool enough = peers_.are_responsive(std::min(2, others), now) && !mostly_silent(1);
  if (enough) return;
  next_extra_ns_ = now + timing_.repair_ns();
  constexpr int kAtOnce = 2;
  int begun = 0;
  for (int steps = 1; steps < ring_->size() && begun < kAtOnce; ++steps) {
    last_extra_ = last_extra_ % (ring_->size() - 1) + 1;
    const int rank = ring_->after(own_rank_, last_extra_);
    if (!fates_.alive(rank)) continue;
    Peer& one = peers_.meet(rank, now);
    if (one.is_connected() || one.connecting > 0 || one.is_suspected() || one.wanted) continue;
    peers_.connect(one, now);
    ++begun;
  }
}

std::vector<int> Neighbourhood::missing() const {
  std::vector<int> result;
  for (const int rank : wants_) {
    const Peer* const one = peers_.find(rank);
    if (fates_.alive(rank) && (one == nullptr || !one->is_connected())) result.push_back(rank);
  }
  return result;
}

bool Neighbourhood::mostly_silent(int more) const {
  int silent = fates_.count_dead_here();
  int all = silent + peers_.connected();
  for (const int rank : peers_.suspected()) {
    const Peer* const one = peers_.find(rank);
    if (!one->proved) continue;
    ++silent;
    if (!one->is_connected()) ++all;
  }
  return 2 * (silent + more) > all;
}

// --- ending connections ---------------------------------------------------------

// Returns whether this rank needs a connection with |one|.
bool Neighbourhood::needs(const Peer& one, uint64_t now) const {
  const bool spare = peers_.are_responsive(3, now) && !mostly_silent(2);
  const uint64_t used_ns = std::max(one.used_ns, one.introduced_ns);
  const bool rests = now >= used_ns + timing_.detection_ns / 2;
  return one.wanted || !spare || !rests || !one.letters.waiting().empty();
}

void Neighbourhood::offer_release(ConnectionId id, Connection& connection, uint64_t now) {
  connection.next_release_ns = now + timing_.detection_ns / 2;
  (void)network_.send(id, Frame{.type = FrameType::kRelease});
}

// Offers to end connections that this rank does not need. Also offers to end a second connection
// that only showed that the lower rank is reachable.
void Neighbourhood::release_idle(uint64_t now) {
  for (auto& [id, connection] : peers_.connections()) {
    if (!connection.initiated || now < connection.next_release_ns) continue;
    const Peer& one = peers_.of(connection);
    const bool spare = own_rank_ > one.rank && peers_.joined_by_both(one);
    if (spare || !needs(one, now)) offer_release(id, connection, now);
  }
}

// Offers to end a connection that was only made to exchange profiles. A connection that has
// recently carried other letters remains for now.
void Neighbourhood::introduced(ConnectionId id, Peer& one, bool asked, uint64_t now) {
  one.introduced_ns = 0;
  if (asked) return;
  one.letters.drop(LetterType::kProfile);  // the peer has it, since it has answered
  Connection& connection = *peers_.find_connection(id);
  if (connection.initiated && !needs(one, now)) offer_release(id, connection, now);
}

bool Neighbourhood::release(ConnectionId id, const Frame& frame, uint64_t now) {
  const bool agreed = frame.code != 0;
  if (agreed) return true;
  const Connection& connection = *peers_.find_connection(id);
  const Peer& one = peers_.of(connection);
  const bool spare = !connection.initiated && own_rank_ < one.rank && peers_.joined_by_both(one);
  if (!spare && needs(one, now)) return false;
  (void)network_.send(id, Frame{.type = FrameType::kRelease, .code = 1});
  return true;
}

}  // namespace hetcomm::liveness
