#include "src/core/job/peer_directory.h"

#include <algorithm>

namespace hetcomm {

bool PeerInfo::offers_kind(std::string_view kind) const {
  return std::any_of(offers.begin(), offers.end(),
                     [&](const Offer& offer) { return offer.kind() == kind; });
}

std::vector<uint64_t> PeerDirectory::incarnations() const {
  std::vector<uint64_t> result;
  for (const PeerInfo& peer : peers_) result.push_back(peer.incarnation);
  return result;
}

std::vector<HostId> PeerDirectory::hosts() const {
  std::vector<HostId> result;
  for (const PeerInfo& peer : peers_) result.push_back(peer.host);
  return result;
}

int64_t PeerDirectory::ranks_beside(int rank) const {
  return std::count_if(peers_.begin(), peers_.end(),
                       [&](const PeerInfo& peer) { return peer.host == at(rank).host; });
}

bool PeerDirectory::are_near(int one, int other) const {
  return at(one).host == at(other).host && at(one).cluster == at(other).cluster;
}

// The first rank that has a transport says what its links cost.
void PeerDirectory::gather_links() {
  for (const PeerInfo& peer : peers_) {
    for (const PeerInfo::Offer& offer : peer.offers) {
      if (links_.find(offer.kind()) == nullptr) links_.set(offer.kind(), offer.link);
    }
  }
}

// Returns the quickest link that both ranks have, for a message that is neither short nor long.
LinkCost PeerDirectory::link_between(int one, int other) const {
  constexpr uint64_t kTypicalMessage = 64u << 10;
  const LinkCost* best = nullptr;
  for (const PeerInfo::Offer& offer : at(one).offers) {
    // Declared clusters of one host are taken as if they were not.
    if (offer.name == "self" || (offer.within_host && !are_near(one, other))) continue;
    const bool both = at(other).offers_kind(offer.kind());
    const LinkCost* const link = both ? links_.find(offer.kind()) : nullptr;
    if (link == nullptr) continue;
    if (best == nullptr || link->time_ns(kTypicalMessage) < best->time_ns(kTypicalMessage)) {
      best = link;
    }
  }
  return best != nullptr ? *best : LinkCost{};
}

RankPlacement PeerDirectory::placement(const std::vector<int>& ranks) const {
  const bool declared =
      std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return !at(rank).cluster.empty(); });
  std::vector<int> firsts;  // of the clusters
  std::vector<uint32_t> labels;
  const auto slower = [](const LinkCost& a, const LinkCost& b) {
    return LinkCost{std::max(a.latency_ns, b.latency_ns), std::min(a.bytes_per_s, b.bytes_per_s)};
  };
  const LinkCost nothing{.latency_ns = 0, .bytes_per_s = UINT64_MAX};
  LinkCost inside = nothing;
  LinkCost across = nothing;
  for (const int rank : ranks) {
    const auto same = [&](int first) {
      return declared ? at(first).cluster == at(rank).cluster : at(first).host == at(rank).host;
    };
    const auto found = std::find_if(firsts.begin(), firsts.end(), same);
    labels.push_back(static_cast<uint32_t>(found - firsts.begin()));
    if (found != firsts.end()) {
      inside = slower(inside, link_between(*found, rank));
    } else {
      if (!firsts.empty()) across = slower(across, link_between(firsts[0], rank));
      firsts.push_back(rank);
    }
  }
  // If no cluster has two ranks, all links are those between clusters.
  if (inside == nothing) inside = across;
  return RankPlacement(labels, inside, across);
}

}  // namespace hetcomm
