#include "src/core/job/paths/pair_paths.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/net/handshake.h"

namespace hetcomm {

namespace {

// The first connection may use any transports.
constexpr std::array<RailMasks, 1> kAnyData{};

// The time that a first attempt has before the next candidate of its kind is tried beside it. It is
// longer than a handshake inside a site takes, and short compared with the time that a connection
// to an unreachable address takes to fail.
constexpr uint64_t kHeadStartNs = 100'000'000;

// Describes the role of |candidate| in the pairing of network interfaces.
std::string words_of(const Candidate& candidate) {
  std::string words;
  if (candidate.role == PairingRole::kUnused) words = "; others of its kind carry the load";
  if (candidate.role == PairingRole::kSubstitute) words = "; stands in for one that failed";
  if (candidate.mbit_per_s != 0) words += fmt::format("; for {} Mbit/s", candidate.mbit_per_s);
  return words;
}

}  // namespace

// --- choice -----------------------------------------------------------------

std::vector<Candidate> PairPaths::candidates(int rank, std::span<const RailMasks> needs,
                                             bool with_failures) {
  Pair* const pair = pairs_.find(rank);
  CandidateOptions options;
  options.itself = rank == services_.terms.rank;
  options.most = most_rails_;
  options.needs = needs;
  options.is_cooling = [&](const RailEnds& ends) HETCOMM_UNDER_BATON {
    return with_failures && pair != nullptr &&
           pair->extra_rails().cool_downs().is_cooling(ends, services_.engine.coarse_now());
  };
  options.reach = [&](const JobTransport& own, size_t index)
                      HETCOMM_UNDER_BATON { return reach(rank, own, index); };
  std::vector<Candidate> found = find_candidates(transports_, peers_.offers(rank), options);
  if (peers_.knows(rank)) return found;
  for (Candidate& each : found) {
    if (!peers_.class_of(rank).offers(each.transport->kind)) continue;
    each.reach = Status(Code::kUnreachable,
                        "the peer has not been met: it says how it is reached when the pair first "
                        "talks");
  }
  return found;
}

// Containers on one machine count as different hosts if they have different host labels, which by
// default are their host names.
bool PairPaths::is_beside(int rank) const {
  return peers_.are_near(services_.terms.rank, rank) &&
         peers_.host_label(services_.terms.rank) == peers_.host_label(rank);
}

uint64_t PairPaths::expected_rate(int rank, size_t own) const {
  const JobTransport& over = transports_.at(own);
  if (over.capabilities().within_host) return UINT64_MAX;
  const std::optional<LinkCost> way = peers_.way_to(rank, services_.terms.rank, over.model_nic);
  return way ? way->bytes_per_s : UINT64_MAX;
}

std::vector<RailMasks> PairPaths::known_needs(Pair* pair) {
  std::vector<RailMasks> needs{kAnyData.begin(), kAnyData.end()};
  if (pair != nullptr) {
    const std::span<const RailMasks> known = pair->association().needs().all();
    needs.insert(needs.end(), known.begin(), known.end());
  }
  return needs;
}

Status PairPaths::reach(int rank, const JobTransport& own, size_t index) {
  const std::vector<PeerInfo::Offer>& offers = peers_.offers(rank);
  auto& kept = reaches_[static_cast<size_t>(rank)];
  if (kept == nullptr) {
    kept = std::make_unique<std::vector<bool>>(transports_.size() * offers.size());
  }
  const size_t entry = own.index * offers.size() + index;
  if ((*kept)[entry]) return {};
  const Status status = own.transport->reach(offers[index].contact);
  (*kept)[entry] = status.ok();
  return status;
}

bool PairPaths::serves(int rank, const RailMasks& need) {
  return hetcomm::serves(candidates(rank, {&need, 1}), need);
}

RailMasks PairPaths::all_of_kind(int rank, std::string_view kind) const {
  RailMasks masks{0, 0};
  const auto bit = [](size_t number) { return number < 64 ? uint64_t{1} << number : 0; };
  for (const auto& each : transports_.all()) {
    if (each->kind == kind) masks.own |= bit(each->index);
  }
  const std::vector<PeerInfo::Offer>& offers = peers_.offers(rank);
  for (size_t i = 0; i < offers.size(); ++i) {
    if (offers[i].kind() == kind) masks.peer |= bit(i);
  }
  return masks;
}

std::vector<RailEnds> PairPaths::useful_beside(int rank, const RailEnds& used,
                                               std::span<const RailMasks> needs) {
  std::vector<RailEnds> result;
  const JobTransport& over = transports_.at(used.own);
  if (over.capabilities().lossless) return result;
  const double own = score_of(over.capabilities());
  // Transports of other kinds may carry any data. Only those of a clearly better kind are kept
  // below.
  std::vector<RailMasks> of_all_kinds(needs.begin(), needs.end());
  for (const auto& each : transports_.all()) {
    if (each->kind != over.kind) of_all_kinds.push_back(all_of_kind(rank, each->kind));
  }
  for (const Candidate& candidate : candidates(rank, of_all_kinds)) {
    if (!candidate.reach.ok() || candidate.ends == used || candidate.role == PairingRole::kUnused) {
      continue;
    }
    const bool shares = candidate.transport->kind == over.kind;
    if (shares || candidate.score_us * kClearlyBetter < own) result.push_back(candidate.ends);
  }
  return result;
}

RailEnds PairPaths::preferred(int rank, const RailEnds& used) {
  const std::string_view kind = transports_.at(used.own).kind;
  for (const Candidate& candidate : candidates(rank, kAnyData, false)) {
    if (candidate.transport->kind != kind) continue;
    return candidate.reach.ok() ? candidate.ends : used;
  }
  return used;
}

bool PairPaths::are_apart(int rank, const RailEnds& ends) const {
  const std::vector<PeerInfo::Offer>& offers = peers_.offers(rank);
  if (ends.peer >= offers.size()) return false;
  const topology::Port& own = transports_.at(ends.own).port;
  const topology::Port& other = offers[ends.peer].port;
  const auto is_described = [](const topology::Port& port) {
    return !port.subnets.empty() || !port.fabric.empty();
  };
  return is_described(own) && is_described(other) &&
         topology::reach(own, other) != topology::Reach::kYes;
}

bool PairPaths::is_offered(int rank, size_t index, std::string_view kind) const {
  const std::vector<PeerInfo::Offer>& offers = peers_.offers(rank);
  return index < offers.size() && offers[index].kind() == kind;
}

std::string PairPaths::name_of(int rank, const RailEnds& ends) const {
  const std::string& own = transports_.at(ends.own).name;
  const std::vector<PeerInfo::Offer>& offers = peers_.offers(rank);
  if (ends.peer >= offers.size() || offers[ends.peer].name == own) return own;
  return fmt::format("{} to {}", own, printable(offers[ends.peer].name));
}

// Returns the largest payload that fits all transports to |rank|. A lossless transport counts only
// if it reaches |rank|, because it may then replace another.
uint32_t PairPaths::kept_payload_bytes(int rank) {
  uint32_t least = transports_.lossy_payload_bytes();
  for (const auto& own : transports_.all()) {
    const Capabilities& can = own->capabilities();
    if (!can.lossless || (own->kind == "self") != (rank == services_.terms.rank)) continue;
    if (reach_by(*own, peers_.offers(rank)).ok()) least = std::min(least, can.max_payload_bytes);
  }
  return least;
}

bool PairPaths::has_common_transport(int rank) const {
  const RankClass& peer = peers_.class_of(rank);
  return std::any_of(transports_.all().begin(), transports_.all().end(), [&](const auto& each) {
    return each->kind != "self" && peer.offers(each->kind);
  });
}

bool PairPaths::may_reach(int rank) {
  const auto& own = transports_.all();
  return std::any_of(own.begin(), own.end(), [&](const auto& each) HETCOMM_UNDER_BATON {
    if (each->kind == "self" || !peers_.class_of(rank).offers(each->kind)) return false;
    if (!peers_.knows(rank)) {
      return !each->capabilities().within_host || peers_.share_host(services_.terms.rank, rank);
    }
    const Code code = reach_by(*each, peers_.offers(rank)).code();
    return code == Code::kOk || code == Code::kOutOfResources;
  });
}

void PairPaths::warn_of_unreachable() {
  std::vector<int> unreachable;
  std::string why;  // why the first of them is unreachable
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == services_.terms.rank) continue;
    if (may_reach(rank)) continue;
    if (unreachable.empty()) {
      for (const Candidate& way : candidates(rank, kAnyData)) {
        why += fmt::format("; {}: {}", name_of(rank, way.ends), way.reach.text());
      }
    }
    unreachable.push_back(rank);
  }
  if (unreachable.empty()) return;
  std::vector<std::string_view> mine;
  for (const auto& each : transports_.all()) mine.push_back(each->name);
  std::vector<std::string> theirs;
  for (const PeerInfo::Offer& offer : peers_.offers(unreachable.front())) {
    theirs.push_back(printable(offer.name));
  }
  if (!peers_.knows(unreachable.front())) {
    for (const RankClass::Kind& kind : peers_.class_of(unreachable.front()).kinds) {
      theirs.push_back(printable(kind.name));
    }
  }
  const std::string more =
      unreachable.size() > 1 ? fmt::format(" (nor this rank and {} others)", unreachable.size() - 1)
                             : "";
  services_.log.warn("rank {} offers {}, rank {} offers {}: no transport joins them{}{}",
                     services_.terms.rank, fmt::join(mine, ", "), unreachable.front(),
                     fmt::join(theirs, ", "), more, why);
}

bool PairPaths::is_in_use(Pair* pair, const RailEnds& ends) {
  return pair != nullptr && pair->association().rails().find_over(ends) != nullptr;
}

// Returns the needs that data of |device| has had so far or, if no such data has moved, its
// expected need.
std::vector<RailMasks> PairPaths::needs_of(size_t device, Pair* pair) {
  const uint64_t near = data_.near.of_device(device);
  std::vector<RailMasks> needs = known_needs(pair);
  std::erase_if(needs, [&](const RailMasks& each) { return each.own != near; });
  if (needs.empty()) needs.push_back({.own = near});
  return needs;
}

std::vector<Pairing> PairPaths::pairings(int rank, size_t device) {
  std::vector<Pairing> result;
  Pair* const pair = pairs_.find(rank);
  for (const Candidate& candidate : candidates(rank, needs_of(device, pair))) {
    const PeerInfo::Offer* const offer = candidate.offer;
    result.push_back({.kind = std::string(candidate.transport->kind),
                      .transport = candidate.transport->name,
                      .nic = candidate.transport->nic,
                      .peer = offer != nullptr ? offer->name : std::string(),
                      .port = candidate.transport->port,
                      .to = offer != nullptr ? offer->port : topology::Port{},
                      .reach = candidate.reach,
                      .score_us = candidate.score_us,
                      .role = candidate.role,
                      .mbit_per_s = candidate.mbit_per_s,
                      .cooling = candidate.cooling,
                      .hopeless = pair != nullptr &&
                                  pair->extra_rails().cool_downs().is_hopeless(candidate.ends),
                      .in_use = is_in_use(pair, candidate.ends)});
  }
  return result;
}

// Lists the kinds of transports of |rank|, whose profile this rank does not have yet.
std::string PairPaths::explain_kinds(int rank) const {
  std::vector<std::string> kinds;
  for (const auto& kind : peers_.class_of(rank).kinds) kinds.push_back(printable(kind.name));
  return fmt::format("  it offers {}, and says how to reach them when the pair first talks\n",
                     fmt::join(kinds, ", "));
}

std::string PairPaths::explain_candidates(int rank, Pair* pair) {
  std::string text;
  for (const Candidate& candidate : candidates(rank, known_needs(pair))) {
    std::string verdict = candidate.reach.ok()
                              ? fmt::format("possible, estimate {:.1f} us for 64 KiB{}",
                                            candidate.score_us, words_of(candidate))
                              : fmt::format("no: {}", candidate.reach.text());
    if (is_in_use(pair, candidate.ends)) verdict += "; in use";
    text += fmt::format("  {:<6} {}\n", name_of(rank, candidate.ends), verdict);
  }
  return text;
}

std::string PairPaths::explain(int rank) {
  Pair* const pair = pairs_.find(rank);
  std::string text = fmt::format("path to rank {}:\n", rank);
  text += peers_.knows(rank) ? explain_candidates(rank, pair) : explain_kinds(rank);
  if (rank != services_.terms.rank) {
    for (const std::string& unused : transports_.unused()) text += fmt::format("  {}\n", unused);
    text += data_.device_access.explain(data_.near);
  }
  if (pair == nullptr) {
    return text + "  not connected yet: a connection is made when the pair first talks\n";
  }
  if (!pair->association().rails().empty()) {
    pair->association().rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
      text += fmt::format("  connection: {}\n", rail.endpoint().describe());
    });
    text += pair->traffic().transfers().far_ways().explain();
    constexpr uint64_t kSizes[] = {128u << 10, 1u << 20, 8u << 20, 64u << 20};
    for (const uint64_t size : kSizes) {
      const double put = pair->traffic().transfers().chooser().cost(size, false);
      const double get = pair->traffic().transfers().chooser().cost(size, true);
      if (put > 0 && get > 0) {
        text += fmt::format("  bulk of {} KiB measured: copied {:.1f} GB/s, read {:.1f} GB/s\n",
                            size >> 10, 1 / put, 1 / get);
      }
    }
  } else if (pair->state() == PairState::kLost) {
    text += fmt::format("  lost: {}\n", pair->lost_because().text());
  } else {
    text += "  not connected yet\n";
  }
  return text;
}

// --- connecting -------------------------------------------------------------

void PairPaths::connect_over(int rank, const RailEnds& ends) {
  services_.log.info("rank {}: also connecting over {}", rank, name_of(rank, ends));
  transports_.at(ends.own).transport->connect({rank, ends.peer},
                                              peers_.offers(rank)[ends.peer].contact);
}

void PairPaths::connect(int rank) {
  auto& connect = connect_of(rank);
  connect = std::make_unique<PairConnect>();
  if (!introductions_.knows(rank)) {
    introductions_.ask(rank);
    ask_next();
    return;
  }
  connect->candidates = candidates(rank, kAnyData);
  // Candidates that share no load are left out. If all others fail, the next attempt uses other
  // candidates.
  std::erase_if(connect->candidates, [](const Candidate& candidate) {
    return candidate.reach.ok() && candidate.role == PairingRole::kUnused;
  });
  try_next(pairs_.at(rank));
}

void PairPaths::ask_next() {
  if (introductions_.send_next(services_.engine.refresh_now())) {
    turns_.note_timer(introductions_.next_timer_ns());
  }
}

void PairPaths::forgotten_by(int rank) {
  services_.log.info("rank {} has no profile of this rank, which sends it again", rank);
  introductions_.forgotten_by(rank);
}

void PairPaths::introduced(int rank) {
  if (introductions_.knows(rank)) {
    ask_next();
    const auto& connect = connect_of(rank);
    if (connect != nullptr && connect->candidates.empty()) this->connect(rank);
  } else {
    tick(services_.engine.refresh_now());  // a refused profile makes |rank| overdue
  }
}

void PairPaths::tick(uint64_t now_ns) {
  for (const int rank : introductions_.take_overdue(now_ns)) {
    const bool waits = connect_of(rank) != nullptr;
    connect_of(rank).reset();
    if (waits) pairs_.at(rank).connect_failed(introductions_.why(rank), true);
  }
  ask_next();
  if (now_ns < beside_at_ns_) return;
  const uint64_t due_ns = std::exchange(beside_at_ns_, kForever);
  try {
    beside_at_ns_ = std::min(try_beside(now_ns), beside_at_ns_);
  } catch (const std::bad_alloc&) {
    beside_at_ns_ = due_ns;
    throw;
  }
}

// Starts an attempt on the candidate with |index|.
void PairPaths::start_attempt(Pair& pair, PairConnect& connect, size_t index) {
  const Candidate& candidate = connect.candidates[index];
  Transport& chosen = *candidate.transport->transport;
  const Destination destination{pair.rank(), candidate.ends.peer};
  services_.log.info("rank {}: connecting over {} (estimate {:.1f} us for 64 KiB)", pair.rank(),
                     name_of(pair.rank(), candidate.ends), candidate.score_us);
  if (pair.extra_rails().cool_downs().stop_connecting(candidate.ends))
    chosen.cancel_connect(destination);
  connect.under_way.reserve(connect.under_way.size() + 1);
  chosen.connect(destination, candidate.offer->contact);
  // The result never arrives within connect().
  connect.under_way.push_back({index, services_.engine.refresh_now()});
}

// Determines when the next candidate is tried beside those that are under way. A candidate of
// another kind is tried only after all others have failed, since it is not as good.
void PairPaths::plan_next(int rank, PairConnect& connect) {
  connect.next_at_ns = kForever;
  if (connect.under_way.empty() || connect.next == connect.candidates.size()) return;
  const PairConnect::Attempt& last = connect.under_way.back();
  const JobTransport& tried = *connect.candidates[last.candidate].transport;
  const bool is_of_kind = connect.candidates[connect.next].transport->kind == tried.kind;
  if (!is_of_kind || tried.capabilities().within_host) return;
  connect.next_at_ns = last.since_ns + kHeadStartNs;
  connecting_.insert(rank);
  beside_at_ns_ = std::min(beside_at_ns_, connect.next_at_ns);
  turns_.note_timer(connect.next_at_ns);
}

// Tries the next candidate that is not known to fail. If there is none, and no attempt is under
// way, the pair cannot be connected now.
void PairPaths::try_next(Pair& pair) {
  PairConnect& connect = *connect_of(pair.rank());
  while (connect.next < connect.candidates.size()) {
    if (!connect.under_way.empty()) {
      // Another kind is not as good, and waits until all attempts under way have failed.
      const size_t last = connect.under_way.back().candidate;
      const std::string_view kind = connect.candidates[last].transport->kind;
      if (connect.candidates[connect.next].transport->kind != kind) break;
    }
    const size_t index = connect.next++;
    const Candidate& candidate = connect.candidates[index];
    if (candidate.reach.ok()) {
      start_attempt(pair, connect, index);
      plan_next(pair.rank(), connect);
      return;
    }
    const std::string name = name_of(pair.rank(), candidate.ends);
    connect.failures += fmt::format("; {}: {}", name, candidate.reach.text());
    services_.log.info("rank {}: {} cannot be used: {}", pair.rank(), name, candidate.reach.text());
  }
  connect.next_at_ns = kForever;
  if (!connect.under_way.empty()) return;
  const bool may_change = std::any_of(
      connect.candidates.begin(), connect.candidates.end(), [](const Candidate& candidate) {
        return candidate.reach.ok() || candidate.reach.code() == Code::kOutOfResources;
      });
  const Status why(Code::kUnreachable,
                   fmt::format("no transport reaches it{}",
                               connect.failures.empty() ? "; none is usable" : connect.failures));
  connect_of(pair.rank()).reset();
  pair.connect_failed(why, may_change);
}

// Starts the attempts that are due beside others. Returns the time of the next one.
uint64_t PairPaths::try_beside(uint64_t now_ns) {
  uint64_t next_ns = kForever;
  for (auto at = connecting_.begin(); at != connecting_.end();) {
    const int rank = *at;
    PairConnect* const connect = connect_of(rank).get();
    if (connect != nullptr && connect->next_at_ns <= now_ns) try_next(pairs_.at(rank));
    const PairConnect* const left = connect_of(rank).get();
    if (left == nullptr || left->next_at_ns == kForever) {
      at = connecting_.erase(at);
    } else {
      next_ns = std::min(next_ns, left->next_at_ns);
      ++at;
    }
  }
  return next_ns;
}

// Ends the attempts to get a first connection. Further connections are made
// when data needs them (ExtraRails).
void PairPaths::end_connecting(int rank) {
  auto& connect = connect_of(rank);
  if (connect == nullptr) return;
  for (const PairConnect::Attempt& attempt : connect->under_way) {
    const Candidate& candidate = connect->candidates[attempt.candidate];
    candidate.transport->transport->cancel_connect({rank, candidate.ends.peer});
  }
  connect.reset();
}

void PairPaths::give_up(int rank) {
  introductions_.forget(rank);
  end_connecting(rank);
}

// Returns whether an attempt to connect within the host has failed because this rank was busy for
// longer than the peer waits for a handshake. The attempt is then repeated once, because the
// transport itself may work.
bool PairPaths::was_late(PairConnect& connect, const PairConnect::Attempt& attempt) const {
  const JobTransport& tried = *connect.candidates[attempt.candidate].transport;
  if (connect.late || !tried.capabilities().within_host) return false;
  connect.late = services_.engine.refresh_now() - attempt.since_ns >= kHandshakeTimeoutNs;
  return connect.late;
}

// Calls |upcall|. If memory runs out, notifies the pair, because no other object has a record of
// the connection or its failure.
template <typename Upcall>
void PairPaths::guarded(int peer, Upcall&& upcall) {
  try {
    upcall();
  } catch (const std::bad_alloc&) {
    if (Pair* found = pairs_.find(peer); found != nullptr) found->out_of_memory();
  }
}

void PairPaths::on_connected(JobTransport& transport, const Destination& destination,
                             Result<std::unique_ptr<Endpoint>> endpoint) {
  const bool short_of_descriptors = endpoint.status().code() == Code::kOutOfResources;
  guarded(destination.rank,
          [&]() HETCOMM_UNDER_BATON { connected(transport, destination, std::move(endpoint)); });
  if (short_of_descriptors) idle_.run();
}

void PairPaths::connected(JobTransport& transport, const Destination& destination,
                          Result<std::unique_ptr<Endpoint>> endpoint) {
  const int peer = destination.rank;
  const RailEnds ends{transport.index, destination.transport};
  Pair& pair = pairs_.at(peer);
  PairConnect* const connect = connect_of(peer).get();
  std::vector<PairConnect::Attempt> none;
  std::vector<PairConnect::Attempt>& under_way = connect != nullptr ? connect->under_way : none;
  const auto ended =
      std::find_if(under_way.begin(), under_way.end(), [&](const PairConnect::Attempt& attempt) {
        return connect->candidates[attempt.candidate].ends == ends;
      });
  if (ended == under_way.end()) {
    if (endpoint.ok()) {
      end_connecting(peer);
      adopt(transport, destination, std::move(endpoint.value()));
    } else {
      pair.extra_rails().connect_failed(ends, endpoint.status());
    }
    return;
  }
  const PairConnect::Attempt attempt = *ended;
  under_way.erase(ended);
  if (endpoint.ok()) {
    end_connecting(peer);
    adopt(transport, destination, std::move(endpoint.value()));
    return;
  }
  const std::string name = name_of(peer, ends);
  services_.log.info("rank {}: connecting over {} failed: {}", peer, name,
                     endpoint.status().text());
  if (was_late(*connect, attempt)) {
    start_attempt(pair, *connect, attempt.candidate);
    return;
  }
  connect->failures += fmt::format("; {}: {}", name, endpoint.status().text());
  pair.extra_rails().cool_downs().failed(ends, services_.engine.refresh_now(),
                                         are_apart(peer, ends));
  try_next(pair);
}

void PairPaths::on_accepted(JobTransport& transport, int peer, std::unique_ptr<Endpoint> endpoint) {
  // Only the lower rank of a pair connects.
  if (peer < 0 || peer >= services_.terms.rank) return;
  guarded(peer, [&]() HETCOMM_UNDER_BATON { accepted(transport, peer, std::move(endpoint)); });
}

void PairPaths::accepted(JobTransport& transport, int peer, std::unique_ptr<Endpoint> endpoint) {
  if (!introductions_.knows(peer)) {
    services_.log.warn("a connection of rank {} is dropped: it has not sent its profile before",
                       peer);
    services_.control->refuse(
        peer, fmt::format("rank {} has no profile of rank {}", services_.terms.rank, peer));
    return;
  }
  // If the peer has one transport of the kind, the connection comes from that transport. If it has
  // several, the first message identifies the transport.
  Destination from{.rank = peer, .transport = RailEnds::kUnknown};
  const std::vector<PeerInfo::Offer>& offers = peers_.offers(peer);
  for (size_t i = 0, known = 0; i < offers.size(); ++i) {
    if (offers[i].kind() == transport.kind) from.transport = ++known == 1 ? i : RailEnds::kUnknown;
  }
  adopt(transport, from, std::move(endpoint));
}

void PairPaths::adopt(JobTransport& transport, const Destination& destination,
                      std::unique_ptr<Endpoint> endpoint) {
  transports_.note_connected(*transport.transport);
  pairs_.at(destination.rank).adopt(std::move(endpoint), {transport.index, destination.transport});
  idle_.run();
}

}  // namespace hetcomm
