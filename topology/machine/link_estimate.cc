#include "topology/machine/link_estimate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::topology {
namespace {

constexpr size_t kMaxPrefix = 64;            // maximum bytes of a host label in a resource name
constexpr uint64_t kTypicalMessage = 65536;  // message size for comparing transports, in bytes

// Returns |name| in a form that a LinkModel accepts: printable, and at most |most_bytes| long.
std::string fitting(std::string_view name, size_t most_bytes) {
  std::string text(name.substr(0, most_bytes));
  // If the cut has split a UTF-8 character, its remaining bytes are removed.
  for (int i = 0; i < 3 && name.size() > most_bytes && printable(text) != text; ++i) {
    text.pop_back();
  }
  if (printable(text) != text) {
    for (char& c : text) c = c >= ' ' && c <= '~' ? c : '_';
  }
  return text.empty() ? "unnamed" : text;
}

// DistinctNames makes names distinct by appending numbers.
class DistinctNames {
 public:
  // Prevents unique() from producing |name| by appending a number to another name.
  void reserve(std::string_view name) { reserved_.insert(fitting(name, kMaxLinkName)); }
  // Returns |wanted|, shortened if necessary. Appends a number if that name is already used.
  std::string unique(std::string_view wanted) {
    std::string name = fitting(wanted, kMaxLinkName);
    int& count = counts_[name];
    if (++count == 1 && used_.insert(name).second) return name;
    for (count = std::max(count, 2);; ++count) {
      const std::string end = fmt::format("#{}", count);
      name = fitting(wanted, kMaxLinkName - end.size()) + end;
      if (!reserved_.contains(name) && used_.insert(name).second) return name;
    }
  }

 private:
  std::set<std::string> reserved_;
  std::set<std::string> used_;
  std::map<std::string, int> counts_;  // by requested name: the last number that was tried
};

// A host, as described by all of its ranks together.
struct Host {
  std::string_view label;
  int cluster = 0;
  uint64_t transports = UINT64_MAX;  // bit mask of the transports that all of its ranks have
  std::vector<const HostLinks*> said;
  std::vector<PcieLink> pcie;
  std::vector<HostNic> nics;
};

// A declared cluster, or the cluster of the hosts without a declared one.
struct Cluster {
  std::string_view name;  // empty: the hosts without a declared cluster
  int hosts = 0;
  uint64_t transports = UINT64_MAX;  // bit mask of the transports that all of its ranks have
};

template <typename Named>
int find_named(const std::vector<Named>& all, std::string_view name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Named& each) { return each.name == name; });
  return found != all.end() ? static_cast<int>(found - all.begin()) : -1;
}

// Adds the links and NICs in |said| to |host|, unless |host| already has them.
void merge(const HostLinks& said, Host* host) {
  std::vector<uint8_t> indices;  // by link in |said|: index in |host->pcie|; UINT8_MAX: not added
  for (const PcieLink& link : said.pcie) {
    int at = find_named(host->pcie, link.name);
    if (at < 0 && host->pcie.size() < UINT8_MAX) {
      at = static_cast<int>(host->pcie.size());
      host->pcie.push_back(link);
    }
    indices.push_back(static_cast<uint8_t>(at < 0 ? UINT8_MAX : at));
  }
  for (const HostNic& nic : said.nics) {
    if (find_named(host->nics, nic.name) >= 0 || host->nics.size() == kMaxLinkNics) continue;
    HostNic& added = host->nics.emplace_back(nic);
    for (uint8_t& link : added.links) link = indices[link];
    std::erase(added.links, UINT8_MAX);
  }
}

// Returns whether the link is at least as fast as all NICs behind it together. Returns false if the
// rate of one of these NICs is unknown.
bool never_limits(const Host& host, size_t link) {
  uint64_t sum = 0;
  for (const HostNic& nic : host.nics) {
    if (std::find(nic.links.begin(), nic.links.end(), link) == nic.links.end()) continue;
    if (nic.mbit_per_s == 0) return false;
    sum += nic.mbit_per_s;
  }
  return sum <= uint64_t{host.pcie[link].mbyte_per_s} * 8;
}

void leave_out_wide_links(Host* host) {
  std::vector<PcieLink> kept;
  std::vector<uint8_t> indices;
  for (size_t i = 0; i < host->pcie.size(); ++i) {
    const bool is_wide = never_limits(*host, i);
    indices.push_back(static_cast<uint8_t>(is_wide ? UINT8_MAX : kept.size()));
    if (!is_wide) kept.push_back(host->pcie[i]);
  }
  for (HostNic& nic : host->nics) {
    for (uint8_t& link : nic.links) link = indices[link];
    std::erase(nic.links, UINT8_MAX);
  }
  host->pcie = std::move(kept);
}

class Estimator {
 public:
  Estimator(std::span<const RankLinks> ranks, std::span<const EstimatedTransport> transports)
      : ranks_(ranks),
        transports_(transports.first(std::min(transports.size(), kMaxEstimatedTransports))) {}

  Result<LinkEstimate> run() {
    gather_hosts();
    if (hosts_.size() > kMaxLinkHosts) return too_many(hosts_.size(), kMaxLinkHosts, "hosts");
    if (clusters_.size() > kMaxLinkClusters) {
      return too_many(clusters_.size(), kMaxLinkClusters, "clusters");
    }
    if (resource_count() > kMaxLinkResources) {
      for (Host& host : hosts_) leave_out_wide_links(&host);
    }
    if (resource_count() > kMaxLinkResources) {
      return too_many(resource_count(), kMaxLinkResources, "resources");
    }
    model_.source = "estimated from the NICs of the hosts and the figures of transports";
    add_clusters();
    add_hosts();
    add_paths();
    HETCOMM_RETURN_IF_ERROR(check(model_));
    LinkEstimate estimate;
    std::vector<std::string> labels;
    for (const LinkHost& host : model_.hosts) labels.push_back(host.label);
    normalize(model_);
    for (const size_t host : host_of_) estimate.host_of.push_back(model_.find_host(labels[host]));
    estimate.model = std::move(model_);
    return estimate;
  }

 private:
  static Status too_many(size_t count, size_t most, const char* what) {
    return {Code::kInvalidArgument,
            fmt::format("there are {} {}; {} are the most", count, what, most)};
  }

  void gather_hosts() {
    std::map<std::tuple<HostId, std::string_view, std::string_view>, size_t> known;
    std::map<std::string_view, int> known_clusters;
    for (const RankLinks& rank : ranks_) {
      const auto [entry, is_new] =
          known.try_emplace({rank.host, rank.label, rank.cluster}, hosts_.size());
      host_of_.push_back(entry->second);
      const auto cluster =
          known_clusters.try_emplace(rank.cluster, static_cast<int>(clusters_.size()));
      if (cluster.second) clusters_.emplace_back().name = rank.cluster;
      const int number = cluster.first->second;
      if (is_new) {
        Host& added = hosts_.emplace_back();
        added.label = rank.label;
        added.cluster = number;
        ++clusters_[static_cast<size_t>(number)].hosts;
      }
      Host& host = hosts_[entry->second];
      host.transports &= rank.transports;
      clusters_[static_cast<size_t>(number)].transports &= rank.transports;
      const bool is_known = rank.links == nullptr || std::find(host.said.begin(), host.said.end(),
                                                               rank.links) != host.said.end();
      if (is_known) continue;
      host.said.push_back(rank.links);
      merge(*rank.links, &host);
    }
  }

  size_t resource_count() const {
    size_t count = 0;
    for (const Host& host : hosts_) count += 1 + 2 * host.pcie.size() + 2 * host.nics.size();
    return count;
  }

  // Returns the transport that is fastest for a typical message, among those whose bits are set in
  // |numbers|. If |between_hosts| is set, skips transports that work only within a host. Returns
  // null if no transport remains.
  const EstimatedTransport* quickest(uint64_t numbers, bool between_hosts) const {
    const auto time_ns = [](const EstimatedTransport& each) {
      const uint64_t rate = std::max<uint64_t>(each.bytes_per_s, 1);
      return each.latency_ns + kTypicalMessage * 1'000'000'000 / rate;
    };
    const EstimatedTransport* best = nullptr;
    for (size_t i = 0; i < transports_.size(); ++i) {
      const EstimatedTransport& each = transports_[i];
      if (((numbers >> i) & 1) == 0 || (between_hosts && each.within_host)) continue;
      if (best == nullptr || time_ns(each) < time_ns(*best)) best = &each;
    }
    return best;
  }

  void add_clusters() {
    DistinctNames names;
    for (const Cluster& cluster : clusters_) names.reserve(cluster.name);
    for (const Cluster& cluster : clusters_) {
      const std::string_view name = !cluster.name.empty()   ? cluster.name
                                    : clusters_.size() == 1 ? "all hosts"
                                                            : "not declared";
      model_.clusters.push_back(names.unique(name));
    }
  }

  int add_resource(const std::string& name, ResourceKind kind, uint64_t bytes_per_s) {
    model_.resources.push_back(
        {.name = names_.unique(name),
         .kind = kind,
         .bytes_per_s = std::clamp<uint64_t>(bytes_per_s, 1, kMaxBytesPerS)});
    return static_cast<int>(model_.resources.size()) - 1;
  }

  void add_hosts() {
    DistinctNames labels;
    for (const Host& host : hosts_) labels.reserve(host.label);
    for (const Host& host : hosts_) {
      LinkHost& added = model_.hosts.emplace_back();
      added.label = labels.unique(host.label);
      added.cluster = host.cluster;
      const std::string prefix = fitting(added.label, kMaxPrefix);
      if (const EstimatedTransport* const inside = quickest(host.transports, false)) {
        added.latency_ns = std::min(inside->latency_ns, kMaxLatencyNs);
        if (inside->bytes_per_s != 0) {
          added.inside = {
              add_resource(prefix + " memory", ResourceKind::kMemory, inside->bytes_per_s)};
        }
      }
      add_nics(host, prefix, &added);
    }
  }

  void add_nics(const Host& host, const std::string& prefix, LinkHost* added) {
    std::vector<std::pair<int, int>> pcie;  // by PCIe link: the outgoing and incoming resource
    for (const PcieLink& link : host.pcie) {
      const uint64_t rate = uint64_t{link.mbyte_per_s} * 1'000'000;
      pcie.emplace_back(
          add_resource(fmt::format("{} pcie {} out", prefix, link.name), ResourceKind::kPcie, rate),
          add_resource(fmt::format("{} pcie {} in", prefix, link.name), ResourceKind::kPcie, rate));
    }
    for (const HostNic& nic : host.nics) {
      LinkNic& result = added->nics.emplace_back();
      result.name = nic.name;
      for (const uint8_t link : nic.links) {
        if (result.out.size() + 1 >= kMaxCrossed) break;
        result.out.push_back(pcie[link].first);
        result.in.insert(result.in.begin(), pcie[link].second);
      }
      if (nic.mbit_per_s == 0) continue;
      const uint64_t rate = uint64_t{nic.mbit_per_s} * 125'000;
      result.out.push_back(
          add_resource(fmt::format("{} {} out", prefix, nic.name), ResourceKind::kNic, rate));
      result.in.insert(result.in.begin(), add_resource(fmt::format("{} {} in", prefix, nic.name),
                                                       ResourceKind::kNic, rate));
    }
    // If no NIC is known, other hosts reach this host through a NIC without resources, which limits
    // nothing.
    if (added->nics.empty() && hosts_.size() > 1) added->nics.emplace_back();
  }

  void add_paths() {
    const size_t count = clusters_.size();
    model_.paths.resize(count * count);
    for (size_t from = 0; from < count; ++from) {
      for (size_t to = 0; to < count; ++to) {
        if (from == to && clusters_[from].hosts < 2) continue;
        ClusterPath& path = model_.paths[from * count + to];
        path.exists = true;
        const EstimatedTransport* const joins =
            quickest(clusters_[from].transports & clusters_[to].transports, true);
        if (joins == nullptr) continue;
        path.latency_ns = std::min(joins->latency_ns, kMaxLatencyNs);
        path.single_bytes_per_s = std::min(joins->bytes_per_s, kMaxBytesPerS);
      }
    }
  }

  const std::span<const RankLinks> ranks_;
  const std::span<const EstimatedTransport> transports_;
  std::vector<Host> hosts_;        // in the order of their lowest ranks
  std::vector<Cluster> clusters_;  // in the order of their lowest ranks
  std::vector<size_t> host_of_;    // by rank: index in |hosts_|
  DistinctNames names_;            // names of resources
  LinkModel model_;
};

}  // namespace

Result<LinkEstimate> estimate_links(std::span<const RankLinks> ranks,
                                    std::span<const EstimatedTransport> transports) {
  return Estimator(ranks, transports).run();
}

}  // namespace hetcomm::topology
