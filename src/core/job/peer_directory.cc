#include "src/core/job/peer_directory.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

void PeerDirectory::set_link_model(topology::LinkModel model) {
  model_hash_ = topology::hash_of(model);
  model_ = std::move(model);
}

topology::Route PeerDirectory::route(int from, int to) const {
  Result<topology::Route> found =
      topology::route(*model_, {at(from).host_label, ""}, {at(to).host_label, ""});
  return found.ok() ? std::move(found).value() : topology::Route{};
}

std::string PeerDirectory::explain_link(int from, int to) const {
  if (!model_) return {};
  const topology::Route way = route(from, to);
  std::vector<std::string> crossed;
  for (const int index : way.resources) {
    const topology::LinkResource& each = model_->resources[static_cast<size_t>(index)];
    crossed.push_back(
        fmt::format("{} {:.1f} MB/s", each.name, static_cast<double>(each.bytes_per_s) / 1e6));
  }
  const auto cluster = [&](int rank) {
    return model_->clusters[static_cast<size_t>(model_cluster(rank))];
  };
  return fmt::format(
      "  link model {:016x}: {} clusters; from '{}' of '{}' to '{}' of '{}', {:.1f} us{}{}\n",
      model_hash_, model_->clusters.size(), at(from).host_label, cluster(from), at(to).host_label,
      cluster(to), static_cast<double>(way.latency_ns) / 1000, crossed.empty() ? "" : ", over ",
      fmt::join(crossed, ", "));
}

int PeerDirectory::model_cluster(int rank) const {
  const int host = model_->find_host(at(rank).host_label);
  return model_->hosts[static_cast<size_t>(host)].cluster;
}

// By the model. What it does not know of the inside of a host, the transports know.
LinkCost PeerDirectory::link_between(int one, int other) const {
  if (!model_) return transport_link_between(one, other);
  const topology::Route way = route(one, other);
  const bool knows = way.latency_ns != 0 && !way.resources.empty();
  if (!knows && at(one).host_label == at(other).host_label) {
    return transport_link_between(one, other);
  }
  return LinkCost::bounded(way.latency_ns, topology::rate_alone(*model_, way));
}

// Returns the quickest link that both ranks have, for a message that is neither short nor long.
LinkCost PeerDirectory::transport_link_between(int one, int other) const {
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
  // By the model where that has several clusters of these ranks, else by its hosts.
  const bool by_model = model_ && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
                          return model_cluster(rank) != model_cluster(ranks[0]);
                        });
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
      if (by_model) return model_cluster(first) == model_cluster(rank);
      if (model_) return at(first).host_label == at(rank).host_label;
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
