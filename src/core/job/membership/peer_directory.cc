#include "src/core/job/membership/peer_directory.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "topology/machine/link_estimate.h"

namespace hetcomm {

void PeerDirectory::set(JobDigest digest) {
  digest_ = std::move(digest);
  digest_.incarnations.clear();  // the credentials have them
  digest_.incarnations.shrink_to_fit();
  for (const auto& [kind, cost] : digest_.costs) links_.set(kind, cost);
  divide_nics();
}

// Decodes the ranks' reports about their hosts' links, and divides the NICs of each host.
void PeerDirectory::divide_nics() {
  std::vector<topology::HostLinks> decoded;  // by index in JobDigest::links
  for (const std::string& links : digest_.links) {
    Result<topology::HostLinks> said = topology::decode_host_links(std::as_bytes(std::span(links)));
    decoded.push_back(said.ok() ? std::move(said).value() : topology::HostLinks{});
  }
  // Containers of one host may have NICs of the same names, and have labels of their own.
  std::map<std::pair<uint32_t, uint32_t>, topology::OwnNics> of_hosts;  // by host and label
  std::set<std::pair<uint32_t, uint32_t>> unclear;  // hosts of which some rank tells nothing
  const size_t ranks = std::min(digest_.host_of.size(), digest_.links_of.size());
  const auto host_of = [&](size_t rank) {
    return std::pair(digest_.host_of[rank], digest_.label_of[rank]);
  };
  for (size_t rank = 0; rank < ranks; ++rank) {
    const topology::HostLinks& links = decoded[digest_.links_of[rank]];
    of_hosts[host_of(rank)].add(links);
    if (links.nics.empty()) unclear.insert(host_of(rank));
  }
  // A device whose own NIC is not known would be left nothing.
  for (const auto& host : unclear) of_hosts[host] = {};
  // Hosts whose ranks have equal devices are kept once.
  std::map<topology::OwnNics, size_t> divisions;
  std::map<std::pair<size_t, uint32_t>, size_t> known;  // by division and index in |decoded|
  for (size_t rank = 0; rank < ranks; ++rank) {
    const topology::OwnNics& own = of_hosts[host_of(rank)];
    const size_t division = divisions.try_emplace(own, own_nics_.size()).first->second;
    if (division == own_nics_.size()) own_nics_.push_back(own);
    division_of_.push_back(division);
    const uint32_t links = digest_.links_of[rank];
    const auto [entry, is_new] = known.try_emplace({division, links}, said_.size());
    said_of_.push_back(entry->second);
    if (!is_new) continue;
    said_.push_back(decoded[links]);
    own_nics_[division].remove_left(said_.back());
  }
}

const topology::OwnNics& PeerDirectory::own_nics(int rank) const {
  static const topology::OwnNics kNone;
  const auto index = static_cast<size_t>(rank);
  return index < division_of_.size() ? own_nics_[division_of_[index]] : kNone;
}

bool PeerDirectory::is_within(std::string_view kind) const {
  for (const RankClass& each : digest_.classes) {
    for (const RankClass::Kind& known : each.kinds) {
      if (known.name == kind) return known.within_host;
    }
  }
  return false;
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
  std::vector<int> of_label;
  for (const std::string& label : digest_.labels) of_label.push_back(model.find_host(label));
  for (const uint32_t label : digest_.label_of) model_hosts_.push_back(of_label[label]);
  model_ = std::move(model);
}

void PeerDirectory::estimate_link_model() {
  std::vector<topology::EstimatedTransport> transports;  // in the order of JobDigest::costs
  for (const auto& [kind, cost] : digest_.costs) {
    transports.push_back({.within_host = is_within(kind),
                          .latency_ns = cost.latency_ns,
                          .bytes_per_s = cost.bytes_per_s});
    if (transports.size() == topology::kMaxEstimatedTransports) break;
  }
  std::vector<uint64_t> masks;  // by class
  for (const RankClass& each : digest_.classes) {
    uint64_t& mask = masks.emplace_back(0);
    for (size_t i = 0; i < transports.size(); ++i) {
      const std::string& kind = digest_.costs[i].first;
      if (kind != "self" && each.offers(kind)) mask |= uint64_t{1} << i;
    }
  }
  std::vector<topology::RankLinks> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    topology::RankLinks& says = ranks.emplace_back();
    // The digest has no host ids, but the number of a host identifies it here.
    const uint32_t number = host(rank);
    for (size_t i = 0; i < sizeof(number); ++i) {
      says.host[i] = static_cast<std::byte>(number >> 8 * i);
    }
    says.label = host_label(rank);
    says.cluster = cluster(rank);
    says.transports = masks[digest_.class_of[static_cast<size_t>(rank)]];
    says.links = &said_by(rank);
  }
  Result<topology::LinkEstimate> estimate = topology::estimate_links(ranks, transports);
  if (!estimate.ok()) {
    model_status_ = estimate.status().annotate("no model of the links between hosts is made");
    return;
  }
  model_ = std::move(estimate->model);
  model_hash_ = topology::hash_of(*model_);
  model_hosts_ = std::move(estimate->host_of);
  is_estimate_ = true;
}

const topology::HostLinks& PeerDirectory::said_by(int rank) const {
  static const topology::HostLinks kNothing;
  const auto index = static_cast<size_t>(rank);
  return index < said_of_.size() ? said_[said_of_[index]] : kNothing;
}

const topology::LinkHost& PeerDirectory::model_host(int rank) const {
  return model_->hosts[static_cast<size_t>(model_hosts_[static_cast<size_t>(rank)])];
}

// Returns the model's name of the NIC that a device's data uses at position |position|; empty if
// the model does not include the NIC.
std::string_view PeerDirectory::model_nic(const RankDevice& of, size_t position) const {
  const topology::HostLinks& said = said_by(of.rank);
  const std::span<const uint8_t> used = said.nics_of(of.device);
  if (position >= used.size()) return {};
  const std::string& name = said.nics[used[position]].name;
  const auto& known = model_host(of.rank).nics;
  const bool is_known = std::any_of(known.begin(), known.end(),
                                    [&](const topology::LinkNic& nic) { return nic.name == name; });
  return is_known ? std::string_view(name) : std::string_view();
}

topology::Route PeerDirectory::route(const RankDevice& from, const RankDevice& to) const {
  Result<topology::Route> found = topology::route(*model_, link_end(from), link_end(to));
  return found.ok() ? std::move(found).value() : topology::Route{};
}

std::optional<LinkCost> PeerDirectory::way_to(int to, int from, std::string_view nic) const {
  if (!model_) return std::nullopt;
  const topology::LinkHost& source = model_host(from);
  const topology::LinkHost& target = model_host(to);
  const topology::ClusterPath& path = model_->path(source.cluster, target.cluster);
  if (&source == &target || !path.exists) return std::nullopt;
  uint64_t rate = path.single_bytes_per_s == 0 ? LinkCost::kMaxBytesPerS : path.single_bytes_per_s;
  const auto cross = [&](const std::vector<int>& resources) {
    for (const int index : resources) {
      rate = std::min(rate, model_->resources[static_cast<size_t>(index)].bytes_per_s);
    }
  };
  const auto named = std::find_if(source.nics.begin(), source.nics.end(),
                                  [&](const topology::LinkNic& each) { return each.name == nic; });
  if (named != source.nics.end()) {
    cross(named->out);
  } else if (source.nics.size() == 1) {
    cross(source.nics[0].out);
  }
  cross(path.resources);
  if (target.nics.size() == 1) cross(target.nics[0].in);
  return LinkCost::bounded(path.latency_ns, rate);
}

std::string PeerDirectory::explain_link(int from, int to) const {
  if (!model_) return {};
  const topology::Route way = route({.rank = from}, {.rank = to});
  std::vector<std::string> crossed;
  for (const int index : way.resources) {
    const topology::LinkResource& each = model_->resources[static_cast<size_t>(index)];
    crossed.push_back(
        fmt::format("{} {:.1f} MB/s", each.name, static_cast<double>(each.bytes_per_s) / 1e6));
  }
  const auto end = [&](int rank) {
    const topology::LinkHost& host = model_host(rank);
    return fmt::format("'{}' of '{}'", host.label,
                       model_->clusters[static_cast<size_t>(host.cluster)]);
  };
  return fmt::format("  link model {:016x}{}: {} clusters; from {} to {}, {:.1f} us{}{}\n",
                     model_hash_, is_estimate_ ? ", estimated" : "", model_->clusters.size(),
                     end(from), end(to), static_cast<double>(way.latency_ns) / 1000,
                     crossed.empty() ? "" : ", over ", fmt::join(crossed, ", "));
}

// Returns the cost of the link between two ranks according to the model. Uses the costs of
// transports if there is no model, or if both ranks are on one host and the model has no link
// inside it.
LinkCost PeerDirectory::link_between(int one, int other) const {
  if (!model_) return transport_link_between(one, other);
  if (is_estimate_) return estimated_link_between(one, other);
  const topology::Route way = route({.rank = one}, {.rank = other});
  const bool knows = way.latency_ns != 0 && !way.resources.empty();
  if (!knows && host_label(one) == host_label(other)) {
    return transport_link_between(one, other);
  }
  return LinkCost::bounded(way.latency_ns, topology::rate_alone(*model_, way));
}

// Returns the cost of the link if the model is an estimate. This is the transports' cost. Between
// hosts, the rate is limited by that of the NICs.
LinkCost PeerDirectory::estimated_link_between(int one, int other) const {
  const LinkCost link = transport_link_between(one, other);
  if (share_host(one, other)) return link;
  return LinkCost::bounded(link.latency_ns,
                           std::min(link.bytes_per_s, rails_bytes_per_s(one, other)));
}

// Returns the rate between the host memories of two ranks that use all their NICs at once.
uint64_t PeerDirectory::rails_bytes_per_s(int one, int other) const {
  const size_t rails = std::min(said_by(one).nics_of(0).size(), said_by(other).nics_of(0).size());
  std::vector<topology::Route> routes;
  for (size_t i = 0; i < std::max<size_t>(rails, 1); ++i) {
    Result<topology::Route> way =
        topology::route(*model_, {model_host(one).label, model_nic({.rank = one}, i)},
                        {model_host(other).label, model_nic({.rank = other}, i)});
    if (way.ok()) routes.push_back(std::move(way).value());
  }
  uint64_t sum = 0;
  for (const uint64_t each : topology::rates(*model_, routes)) {
    sum = std::min(sum + each, topology::kMaxBytesPerS);
  }
  return sum;
}

// Returns the cost of the transport that is fastest for a message of medium length, among those
// that both ranks have. Returns a default cost if there is none.
LinkCost PeerDirectory::transport_link_between(int one, int other) const {
  constexpr uint64_t kTypicalMessage = 64u << 10;
  const LinkCost* best = nullptr;
  for (const RankClass::Kind& kind : class_of(one).kinds) {
    // Transports within a host count only between ranks of the same host and the same declared
    // cluster.
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
  // Uses the clusters of a measured model if it has several for these ranks, otherwise its hosts.
  // Without a measured model, uses the declared clusters or, if there are none, the hosts.
  const bool is_measured = model_ && !is_estimate_;
  const bool by_model = is_measured && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
                          return model_host(rank).cluster != model_host(ranks[0]).cluster;
                        });
  // Ranks of the same group are near each other.
  const auto group_of = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    if (by_model) return static_cast<uint32_t>(model_host(rank).cluster);
    if (is_measured) return digest_.label_of[index];
    return declared ? digest_.cluster_of[index] : digest_.host_of[index];
  };
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> cluster_of;  // by group: the number of its cluster, or kNone
  std::vector<int> firsts;           // first rank of each cluster
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
  // If no cluster has two ranks, all links are between clusters.
  if (inside == nothing) inside = across;
  return RankPlacement(labels, inside, across);
}

}  // namespace hetcomm
