// Job: how ranks lie to each other, and what their links cost.
#include <algorithm>

#include "src/core/job/job.h"
#include "src/core/job/rank_placement.h"

namespace hetcomm {

bool Job::are_near(int one, int other) const {
  const PeerInfo& here = peers_[static_cast<size_t>(one)];
  const PeerInfo& there = peers_[static_cast<size_t>(other)];
  return here.host == there.host && here.cluster == there.cluster;
}

bool Job::shares_memory() const {
  return std::any_of(transports_.begin(), transports_.end(), [](const auto& entry) {
    return entry->transport->capabilities().within_host;
  });
}

// Of each transport, what the first rank that has it says.
void Job::gather_links() {
  links_ = LinkModel();
  for (const PeerInfo& peer : peers_) {
    for (const PeerInfo::Offer& offer : peer.offers) {
      if (links_.find(offer.name) == nullptr) links_.set(offer.name, offer.link);
    }
  }
}

// The quickest one, for a message that is neither short nor long, of those that both ranks have.
Link Job::link_between(int one, int other) const {
  constexpr uint64_t kTypicalMessage = 64u << 10;
  const PeerInfo& here = peers_[static_cast<size_t>(one)];
  const PeerInfo& there = peers_[static_cast<size_t>(other)];
  const Link* best = nullptr;
  for (const PeerInfo::Offer& offer : here.offers) {
    // Declared clusters of one host are taken as if they were not.
    if (offer.name == "self" || (offer.within_host && !are_near(one, other))) continue;
    const bool both =
        std::any_of(there.offers.begin(), there.offers.end(),
                    [&](const PeerInfo::Offer& candidate) { return candidate.name == offer.name; });
    const Link* const link = both ? links_.find(offer.name) : nullptr;
    if (link == nullptr) continue;
    if (best == nullptr || link->time_ns(kTypicalMessage) < best->time_ns(kTypicalMessage)) {
      best = link;
    }
  }
  return best != nullptr ? *best : Link{};
}

RankPlacement Job::placement(const std::vector<int>& ranks) const {
  const auto info = [this](int rank) -> const PeerInfo& {
    return peers_[static_cast<size_t>(rank)];
  };
  const bool declared = std::any_of(ranks.begin(), ranks.end(),
                                    [&](int rank) { return !info(rank).cluster.empty(); });
  std::vector<int> firsts;  // of the groups
  std::vector<uint32_t> labels;
  Link inside;
  Link across;
  const auto slower = [](const Link& a, const Link& b) {
    return Link{std::max(a.latency_ns, b.latency_ns), std::min(a.bytes_per_s, b.bytes_per_s)};
  };
  const Link nothing{.latency_ns = 0, .bytes_per_s = UINT64_MAX};
  inside = across = nothing;
  for (const int rank : ranks) {
    const auto same = [&](int first) {
      return declared ? info(first).cluster == info(rank).cluster
                      : info(first).host == info(rank).host;
    };
    const auto at = std::find_if(firsts.begin(), firsts.end(), same);
    labels.push_back(static_cast<uint32_t>(at - firsts.begin()));
    if (at != firsts.end()) {
      inside = slower(inside, link_between(*at, rank));
    } else {
      if (!firsts.empty()) across = slower(across, link_between(firsts[0], rank));
      firsts.push_back(rank);
    }
  }
  // Where no group has two ranks all links are those between groups.
  if (inside == nothing) inside = across;
  return RankPlacement(labels, inside, across);
}

}  // namespace hetcomm
