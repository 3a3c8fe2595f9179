#include "src/core/job/candidates.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "src/core/peer/rail.h"
#include "topology/pairing.h"

namespace hetcomm {
namespace {

Candidate candidate_to(JobTransport& own, const PeerInfo& peer, size_t index) HETCOMM_UNDER_BATON {
  const PeerInfo::Offer& offer = peer.offers[index];
  return {.transport = &own,
          .ends = {own.index, index},
          .offer = &offer,
          .reach = own.transport->reach(offer.contact),
          .score_us = score_of(own.capabilities())};
}

// The place of |number| in |numbers|, which are in order.
size_t place_of(const std::vector<size_t>& numbers, size_t number) {
  return static_cast<size_t>(std::lower_bound(numbers.begin(), numbers.end(), number) -
                             numbers.begin());
}

void keep_sorted(std::vector<size_t>& numbers, size_t number) {
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), number);
  if (at == numbers.end() || *at != number) numbers.insert(at, number);
}

// Gives roles to the candidates of one kind.
class KindPairing {
 public:
  explicit KindPairing(std::vector<Candidate*> candidates) : candidates_(std::move(candidates)) {
    for (const Candidate* each : candidates_) {
      keep_sorted(own_, each->ends.own);
      keep_sorted(peers_, each->ends.peer);
    }
    own_ports_.resize(own_.size());
    peer_ports_.resize(peers_.size());
    for (const Candidate* each : candidates_) {
      own_ports_[place_of(own_, each->ends.own)] = each->transport->port;
      peer_ports_[place_of(peers_, each->ends.peer)] = each->offer->port;
    }
  }

  void assign(size_t most) HETCOMM_UNDER_BATON {
    assign(most, PairingRole::kPaired, /*also_cooling=*/true);
    const bool some_cool = std::any_of(candidates_.begin(), candidates_.end(),
                                       [](const Candidate* each) { return each->cooling; });
    if (some_cool) assign(most, PairingRole::kSubstitute, /*also_cooling=*/false);
  }

 private:
  // Of pairs that may not work, a transport that is held up by those that do not gets only the first
  // with the first, the second with the second: most hosts are wired so.
  void assign(size_t most, PairingRole role, bool also_cooling) HETCOMM_UNDER_BATON {
    const auto reach = [&](size_t own, size_t peer) HETCOMM_UNDER_BATON {
      const Candidate& candidate = at(own, peer);
      if (!candidate.reach.ok() || (candidate.cooling && !also_cooling)) {
        return topology::Reach::kNo;
      }
      const topology::Reach how = topology::reach(own_ports_[own], peer_ports_[peer]);
      const bool patient = candidate.transport->capabilities().waits_for_addresses;
      return how == topology::Reach::kMaybe && patient && own != peer ? topology::Reach::kNo : how;
    };
    for (const topology::PortPair& pair :
         topology::pair_ports(own_ports_, peer_ports_, most, reach)) {
      Candidate& chosen = at(pair.lower, pair.upper);
      if (chosen.role != PairingRole::kUnused) continue;
      chosen.role = role;
      chosen.mbit_per_s = pair.mbit_per_s;
    }
  }

  Candidate& at(size_t own, size_t peer) { return *candidates_[own * peers_.size() + peer]; }

  std::vector<Candidate*> candidates_;  // from the first of |own_| to each of |peers_|, and so on
  std::vector<size_t> own_;
  std::vector<size_t> peers_;
  std::vector<topology::Port> own_ports_;
  std::vector<topology::Port> peer_ports_;
};

// Puts what works in front, then what has not failed lately, then what shall share the load, then
// the quicker kind, and of one kind what is known to lead to others.
void sort_best_first(std::vector<Candidate>& candidates) HETCOMM_UNDER_BATON {
  const auto best_of_kind = [&](const Candidate& of) {
    double best = of.score_us;
    for (const Candidate& each : candidates) {
      if (each.transport->kind == of.transport->kind) best = std::min(best, each.score_us);
    }
    return best;
  };
  std::vector<std::pair<double, Candidate>> keyed;
  for (const Candidate& each : candidates) keyed.emplace_back(best_of_kind(each), each);
  const auto key = [](const std::pair<double, Candidate>& entry) {
    const Candidate& each = entry.second;
    const bool shares = each.role != PairingRole::kUnused;
    return std::tuple(!each.reach.ok(), each.cooling, !shares, entry.first, each.transport->kind,
                      !each.transport->has_route, each.score_us);
  };
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
  for (size_t i = 0; i < keyed.size(); ++i) candidates[i] = std::move(keyed[i].second);
}

}  // namespace

std::vector<Candidate> find_candidates(const JobTransports& transports, const PeerInfo& peer,
                                       bool itself, size_t most,
                                       const std::function<bool(const RailEnds&)>& is_cooling) {
  std::vector<Candidate> candidates;
  for (const auto& own : transports.all()) {
    if ((own->kind == "self") != itself) continue;
    const size_t before = candidates.size();
    for (size_t i = 0; i < peer.offers.size(); ++i) {
      if (peer.offers[i].kind() != own->kind) continue;
      candidates.push_back(candidate_to(*own, peer, i));
      candidates.back().cooling = is_cooling(candidates.back().ends);
    }
    const bool is_first = before == 0 || candidates[before - 1].transport->kind != own->kind;
    if (candidates.size() > before || !is_first) continue;
    candidates.push_back({.transport = own.get(),
                          .ends = {.own = own->index},
                          .offer = nullptr,
                          .reach = Status(Code::kUnsupported,
                                          "the peer does not offer it: its HETCOMM_TRANSPORTS "
                                          "leaves it out, or it cannot use it"),
                          .score_us = score_of(own->capabilities())});
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::string_view kind = candidates[i].transport->kind;
    const bool is_first = i == 0 || candidates[i - 1].transport->kind != kind;
    if (!is_first || candidates[i].offer == nullptr) continue;
    std::vector<Candidate*> of_kind;
    for (Candidate& each : candidates) {
      if (each.transport->kind == kind) of_kind.push_back(&each);
    }
    KindPairing(std::move(of_kind)).assign(most);
  }
  sort_best_first(candidates);
  return candidates;
}

Status reach_by(const JobTransport& own, const PeerInfo& peer) {
  Status best(Code::kUnsupported, "the peer does not offer it");
  for (const PeerInfo::Offer& offer : peer.offers) {
    if (offer.kind() != own.kind) continue;
    Status reach = own.transport->reach(offer.contact);
    if (reach.ok()) return reach;
    if (best.code() != Code::kOutOfResources) best = std::move(reach);
  }
  return best;
}

}  // namespace hetcomm
