#include "src/core/job/peer_directory.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hetcomm {

void PeerDirectory::set(JobDigest digest) {
  digest_ = std::move(digest);
  digest_.incarnations.clear();  // credentials have them
  digest_.incarnations.shrink_to_fit();
  for (const auto& [kind, cost] : digest_.costs) links_.set(kind, cost);
}

void PeerDirectory::set_offers(int rank, std::vector<PeerInfo::Offer> offers) {
  offers_[static_cast<size_t>(rank)] =
      std::make_unique<const std::vector<PeerInfo::Offer>>(std::move(offers));
}

const std::vector<PeerInfo::Offer>& PeerDirectory::offers(int rank) const {
  static const std::vector<PeerInfo::Offer> kNone;
  const auto& known = offers_[static_cast<size_t>(rank)];
  return known != nullptr ? *known : kNone;
}

int64_t PeerDirectory::ranks_beside(int rank) const {
  return std::count(digest_.host_of.begin(), digest_.host_of.end(), host(rank));
}

bool PeerDirectory::are_near(int one, int other) const {
  return share_host(one, other) && digest_.cluster_of[static_cast<size_t>(one)] ==
                                       digest_.cluster_of[static_cast<size_t>(other)];
}

void PeerDirectory::set_link_model(topology::LinkModel model) {
  model_hash_ = topology::hash_of(model);
  model_clusters_.clear();
  for (const std::string& label : digest_.labels) {
    model_clusters_.push_back(model.hosts[static_cast<size_t>(model.find_host(label))].cluster);
  }
  model_ = std::move(model);
}

topology::Route PeerDirectory::route(int from, int to) const {
  Result<topology::Route> found =
      topology::route(*model_, {host_label(from), ""}, {host_label(to), ""});
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
  const auto cluster_name = [&](int rank) {
    return model_->clusters[static_cast<size_t>(model_cluster(rank))];
  };
  return fmt::format(
      "  link model {:016x}: {} clusters; from '{}' of '{}' to '{}' of '{}', {:.1f} us{}{}\n",
      model_hash_, model_->clusters.size(), host_label(from), cluster_name(from), host_label(to),
      cluster_name(to), static_cast<double>(way.latency_ns) / 1000,
      crossed.empty() ? "" : ", over ", fmt::join(crossed, ", "));
}

int PeerDirectory::model_cluster(int rank) const {
  return model_clusters_[digest_.label_of[static_cast<size_t>(rank)]];
}

// By the model. What it does not know of the inside of a host, the transports know.
LinkCost PeerDirectory::link_between(int one, int other) const {
  if (!model_) return transport_link_between(one, other);
  const topology::Route way = route(one, other);
  const bool knows = way.latency_ns != 0 && !way.resources.empty();
  if (!knows && host_label(one) == host_label(other)) {
    return transport_link_between(one, other);
  }
  return LinkCost::bounded(way.latency_ns, topology::rate_alone(*model_, way));
}

// Returns the quickest link that both ranks have, for a message that is neither short nor long.
LinkCost PeerDirectory::transport_link_between(int one, int other) const {
  constexpr uint64_t kTypicalMessage = 64u << 10;
  const LinkCost* best = nullptr;
  for (const RankClass::Kind& kind : class_of(one).kinds) {
    // Declared clusters of one host are taken as if they were not.
    if (kind.name == "self" || (kind.within_host && !are_near(one, other))) continue;
    const LinkCost* const link =
        class_of(other).offers(kind.name) ? links_.find(kind.name) : nullptr;
    if (link == nullptr) continue;
    if (best == nullptr || link->time_ns(kTypicalMessage) < best->time_ns(kTypicalMessage)) {
      best = link;
    }
  }
  return best != nullptr ? *best : LinkCost{};
}

RankPlacement PeerDirectory::placement(const std::vector<int>& ranks) const {
  const bool declared =
      std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return !cluster(rank).empty(); });
  // By the model where that has several clusters of these ranks, else by its hosts.
  const bool by_model = model_ && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
                          return model_cluster(rank) != model_cluster(ranks[0]);
                        });
  // Ranks with one group are near each other.
  const auto group_of = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    if (by_model) return static_cast<uint32_t>(model_cluster(rank));
    if (model_) return digest_.label_of[index];
    return declared ? digest_.cluster_of[index] : digest_.host_of[index];
  };
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> cluster_of;  // by group: the number of its cluster, or kNone
  std::vector<int> firsts;           // of the clusters
  std::vector<uint32_t> labels;
  const auto slower = [](const LinkCost& a, const LinkCost& b) {
    return LinkCost{std::max(a.latency_ns, b.latency_ns), std::min(a.bytes_per_s, b.bytes_per_s)};
  };
  const LinkCost nothing{.latency_ns = 0, .bytes_per_s = UINT64_MAX};
  LinkCost inside = nothing;
  LinkCost across = nothing;
  for (const int rank : ranks) {
    const uint32_t group = group_of(rank);
    if (group >= cluster_of.size()) cluster_of.resize(group + 1, kNone);
    uint32_t& cluster = cluster_of[group];
    if (cluster != kNone) {
      inside = slower(inside, link_between(firsts[cluster], rank));
    } else {
      if (!firsts.empty()) across = slower(across, link_between(firsts[0], rank));
      cluster = static_cast<uint32_t>(firsts.size());
      firsts.push_back(rank);
    }
    labels.push_back(cluster);
  }
  // If no cluster has two ranks, all links are those between clusters.
  if (inside == nothing) inside = across;
  return RankPlacement(labels, inside, across);
}

}  // namespace hetcomm
