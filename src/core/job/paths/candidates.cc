#include "src/core/job/paths/candidates.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "src/core/peer/rails/rail.h"
#include "topology/machine/pairing.h"

namespace hetcomm {
namespace {

Candidate candidate_to(JobTransport& own, std::span<const PeerInfo::Offer> offers, size_t index,
                       const CandidateOptions& options) HETCOMM_UNDER_BATON {
  const PeerInfo::Offer& offer = offers[index];
  return {.transport = &own,
          .ends = {own.index, index},
          .offer = &offer,
          .reach = options.reach(own, index),
          .score_us = score_of(own.capabilities()),
          .cooling = options.is_cooling({own.index, index})};
}

// Returns the position of |number| in |numbers|, which are sorted.
size_t position_of(const std::vector<size_t>& numbers, size_t number) {
  return static_cast<size_t>(std::lower_bound(numbers.begin(), numbers.end(), number) -
                             numbers.begin());
}

void keep_sorted(std::vector<size_t>& numbers, size_t number) {
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), number);
  if (at == numbers.end() || *at != number) numbers.insert(at, number);
}

topology::Reach reach_of(const Candidate* each) HETCOMM_UNDER_BATON {
  return topology::reach(each->transport->port, each->offer->port);
}

bool works(const Candidate* each) HETCOMM_UNDER_BATON {
  return each->reach.ok() && !each->cooling && reach_of(each) != topology::Reach::kNo;
}

bool works_surely(const Candidate* each) HETCOMM_UNDER_BATON {
  return works(each) && reach_of(each) == topology::Reach::kYes;
}

bool is_last_resort(const Candidate* each) HETCOMM_UNDER_BATON {
  return each->transport->port.last_resort || each->offer->port.last_resort;
}

// Removes the last-resort candidates from |of_kind| if others are known to work. A need (RailMasks)
// whose own candidates may not work then uses those of other needs.
template <typename Pointer>
void drop_last_resorts(std::vector<Pointer>& of_kind) HETCOMM_UNDER_BATON {
  const bool others_work =
      std::any_of(of_kind.begin(), of_kind.end(), [](const Candidate* each) HETCOMM_UNDER_BATON {
        return works_surely(each) && !is_last_resort(each);
      });
  if (others_work) std::erase_if(of_kind, is_last_resort);
}

// Returns whether some candidate in |near| can work, and is as likely to work as any in |of_kind|.
bool is_served_by(std::span<const Candidate* const> near,
                  std::span<const Candidate* const> of_kind) HETCOMM_UNDER_BATON {
  if (!std::any_of(near.begin(), near.end(), works)) return false;
  return std::any_of(near.begin(), near.end(), works_surely) ||
         std::none_of(of_kind.begin(), of_kind.end(), works_surely);
}

// Assigns roles to the candidates of one kind.
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
      own_ports_[position_of(own_, each->ends.own)] = each->transport->port;
      peer_ports_[position_of(peers_, each->ends.peer)] = each->offer->port;
    }
  }

  void assign(size_t most) HETCOMM_UNDER_BATON {
    assign(most, PairingRole::kPaired, /*also_cooling=*/true);
    const bool some_cool = std::any_of(candidates_.begin(), candidates_.end(),
                                       [](const Candidate* each) { return each->cooling; });
    if (some_cool) assign_substitutes(most);
  }
  void assign_substitutes(size_t most) HETCOMM_UNDER_BATON {
    assign(most, PairingRole::kSubstitute, /*also_cooling=*/false);
  }

 private:
  // It may be unknown whether two NICs reach each other. Most hosts are cabled so that the first
  // NIC reaches the first, the second reaches the second, and so on. Therefore a transport that
  // failed attempts would delay pairs only such NICs.
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
      const bool is_taken = chosen.role == PairingRole::kPaired || chosen.role == role;
      if (is_taken) continue;
      chosen.role = role;
      chosen.mbit_per_s = pair.mbit_per_s;
    }
  }

  Candidate& at(size_t own, size_t peer) { return *candidates_[own * peers_.size() + peer]; }

  // A matrix: a row for each of |own_|, a column for each of |peers_|.
  std::vector<Candidate*> candidates_;
  std::vector<size_t> own_;
  std::vector<size_t> peers_;
  std::vector<topology::Port> own_ports_;
  std::vector<topology::Port> peer_ports_;
};

// Assigns roles to |of_kind|, all candidates of one kind, for each need.
void assign_roles(std::vector<Candidate*> of_kind,
                  const CandidateOptions& options) HETCOMM_UNDER_BATON {
  drop_last_resorts(of_kind);
  bool all_served = true;
  for (const RailMasks& need : options.needs) {
    std::vector<Candidate*> near;
    for (Candidate* each : of_kind) {
      if (need.admit(each->ends)) near.push_back(each);
    }
    if (near.empty()) continue;  // the need concerns another kind of transport
    all_served = all_served && is_served_by(near, of_kind);
    KindPairing(std::move(near)).assign(options.most);
  }
  if (!all_served) KindPairing(std::move(of_kind)).assign_substitutes(options.most);
}

// Sorts by these criteria, in this order: the candidate works, has not failed recently, shares the
// load, and is of a faster kind. Within a kind, interfaces that are known to lead to other ranks
// come first.
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

std::vector<Candidate> find_candidates(const JobTransports& transports,
                                       std::span<const PeerInfo::Offer> offers,
                                       const CandidateOptions& options) {
  std::vector<Candidate> candidates;
  for (const auto& own : transports.all()) {
    if ((own->kind == "self") != options.itself) continue;
    const size_t before = candidates.size();
    for (size_t i = 0; i < offers.size(); ++i) {
      if (offers[i].kind() != own->kind) continue;
      candidates.push_back(candidate_to(*own, offers, i, options));
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
    assign_roles(std::move(of_kind), options);
  }
  sort_best_first(candidates);
  return candidates;
}

bool serves(const std::vector<Candidate>& candidates, const RailMasks& need) {
  std::string_view kind;
  std::vector<const Candidate*> near;
  std::vector<const Candidate*> of_kind;
  for (const Candidate& each : candidates) {
    if (each.offer != nullptr && need.admit(each.ends)) kind = each.transport->kind;
  }
  for (const Candidate& each : candidates) {
    if (each.offer != nullptr && each.transport->kind == kind) of_kind.push_back(&each);
  }
  drop_last_resorts(of_kind);
  for (const Candidate* each : of_kind) {
    if (need.admit(each->ends)) near.push_back(each);
  }
  return is_served_by(near, of_kind);
}

Status reach_by(const JobTransport& own, std::span<const PeerInfo::Offer> offers) {
  Status best;  // the failure to report: the last, or OUT_OF_RESOURCES if there is one
  for (const PeerInfo::Offer& offer : offers) {
    if (offer.kind() != own.kind) continue;
    Status reach = own.transport->reach(offer.contact);
    if (reach.ok()) return reach;
    if (best.code() != Code::kOutOfResources) best = std::move(reach);
  }
  return best.ok() ? Status(Code::kUnsupported, "the peer does not offer it") : best;
}

}  // namespace hetcomm
