#include "topology/links/link_inference.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::topology {
namespace {

constexpr uint64_t kMillion = 1'000'000;

using Transfers = std::vector<MeasuredTransfer>;

bool leaves_host(const MeasuredTransfer& transfer) { return transfer.from != transfer.to; }

// Returns |part| in parts per million of |whole|, at most a million. Neither argument may exceed
// kMaxBytesPerS.
uint64_t share_of(uint64_t part, uint64_t whole) {
  return std::min<uint64_t>(part * 1000 / std::max<uint64_t>(whole / 1000, 1), kMillion);
}

// Returns whether |seen| is below 93 % of |expected|. Noise causes a smaller difference.
bool is_clearly_less(uint64_t seen, uint64_t expected) {
  return share_of(seen, expected) < 930'000;
}

uint64_t median_of(std::vector<uint64_t> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

// Estimates a resource's capacity from the total rates that crossed it: the mean of the totals
// within 5 % of the greatest one. The greatest total alone would contain the most noise.
uint64_t capacity_of(const std::vector<uint64_t>& totals) {
  const uint64_t most = *std::max_element(totals.begin(), totals.end());
  uint64_t sum = 0;
  uint64_t count = 0;
  for (const uint64_t total : totals) {
    if (total < most - most / 20) continue;
    sum += total / 1000;  // divides first to avoid overflow
    ++count;
  }
  return std::clamp<uint64_t>(sum / count * 1000 + (count == 1 ? most % 1000 : 0), 1,
                              kMaxBytesPerS);
}

using Crosses = std::function<bool(const MeasuredTransfer&)>;

// Returns the total rate across a resource, for each round in which a transfer crosses it.
// |crosses| returns whether a transfer does.
std::vector<uint64_t> totals_of(const std::vector<Transfers>& rounds, const Crosses& crosses) {
  std::vector<uint64_t> totals;
  for (const Transfers& round : rounds) {
    uint64_t total = 0;
    for (const MeasuredTransfer& each : round) {
      if (crosses(each)) total += each.bytes_per_s;
    }
    if (total > 0) totals.push_back(std::min(total, kMaxBytesPerS));
  }
  return totals;
}

// Estimates from all rounds the rates at which each host can send, receive, and move data
// internally. 0: not measured.
struct HostRates {
  explicit HostRates(const LinkMeasurements& measured)
      : out(measured.hosts.size()), in(measured.hosts.size()), inside(measured.hosts.size()) {
    std::vector<std::vector<uint64_t>> totals[3];
    for (auto& each : totals) each.resize(measured.hosts.size());
    std::map<int, uint64_t> sums[3];
    for (const Transfers& round : measured.rounds) {
      for (auto& each : sums) each.clear();
      for (const MeasuredTransfer& each : round) {
        if (!leaves_host(each)) {
          sums[2][each.from] += each.bytes_per_s;
          continue;
        }
        sums[0][each.from] += each.bytes_per_s;
        sums[1][each.to] += each.bytes_per_s;
      }
      for (int i = 0; i < 3; ++i) {
        for (const auto& [host, sum] : sums[i]) {
          totals[i][static_cast<size_t>(host)].push_back(std::min(sum, kMaxBytesPerS));
        }
      }
    }
    std::vector<uint64_t>* const rates[] = {&out, &in, &inside};
    for (int i = 0; i < 3; ++i) {
      for (size_t host = 0; host < out.size(); ++host) {
        if (!totals[i][host].empty()) (*rates[i])[host] = capacity_of(totals[i][host]);
      }
    }
  }

  uint64_t of(const MeasuredTransfer& transfer) const {
    return std::min(out[static_cast<size_t>(transfer.from)], in[static_cast<size_t>(transfer.to)]);
  }

  std::vector<uint64_t> out;
  std::vector<uint64_t> in;
  std::vector<uint64_t> inside;
};

// Builds the model step by step.
class Inference {
 public:
  explicit Inference(const LinkMeasurements& measured) : measured_(measured), rates_(measured) {}

  Result<LinkModel> run() {
    model_.source = measured_.source;
    name_clusters();
    add_hosts();
    HETCOMM_RETURN_IF_ERROR(add_paths());
    add_trunks();
    if (model_.clusters.size() > 2) add_uplinks();
    HETCOMM_RETURN_IF_ERROR(check(model_));
    normalize(model_);
    return std::move(model_);
  }

 private:
  void name_clusters() {
    if (measured_.clusters.empty()) {
      cluster_of_ = find_clusters(measured_.hosts.size(), pair_shares(measured_));
      const int count = *std::max_element(cluster_of_.begin(), cluster_of_.end()) + 1;
      for (int i = 0; i < count; ++i) {
        model_.clusters.push_back(fmt::format("cluster {}", i));
      }
      return;
    }
    for (const std::string& name : measured_.clusters) {
      const auto found = std::find(model_.clusters.begin(), model_.clusters.end(), name);
      cluster_of_.push_back(static_cast<int>(found - model_.clusters.begin()));
      if (found == model_.clusters.end()) model_.clusters.push_back(name);
    }
  }

  int add_resource(std::string name, ResourceKind kind, uint64_t bytes_per_s) {
    model_.resources.push_back({std::move(name), kind, bytes_per_s});
    return static_cast<int>(model_.resources.size()) - 1;
  }

  void add_hosts() {
    for (size_t i = 0; i < measured_.hosts.size(); ++i) {
      const std::string& label = measured_.hosts[i];
      LinkHost host{.label = label,
                    .cluster = cluster_of_[i],
                    .latency_ns = 0,
                    .inside = {},
                    .nics = {LinkNic{}}};
      if (rates_.inside[i] > 0) {
        host.inside = {add_resource(label + " memory", ResourceKind::kMemory, rates_.inside[i])};
      }
      if (rates_.out[i] > 0) {
        host.nics[0].out = {add_resource(label + " out", ResourceKind::kNic, rates_.out[i])};
      }
      if (rates_.in[i] > 0) {
        host.nics[0].in = {add_resource(label + " in", ResourceKind::kNic, rates_.in[i])};
      }
      const std::vector<uint64_t> latencies =
          latencies_of([i](int from, int to) { return from == to && from == static_cast<int>(i); });
      if (!latencies.empty()) host.latency_ns = median_of(latencies);
      model_.hosts.push_back(std::move(host));
    }
  }

  std::vector<uint64_t> latencies_of(const std::function<bool(int, int)>& wanted) const {
    std::vector<uint64_t> result;
    for (const MeasuredLatency& each : measured_.latencies) {
      if (wanted(each.from, each.to)) result.push_back(each.latency_ns);
    }
    return result;
  }

  int cluster_of(int host) const { return cluster_of_[static_cast<size_t>(host)]; }
  bool crosses(const MeasuredTransfer& transfer, int from, int to) const {
    return leaves_host(transfer) && cluster_of(transfer.from) == from &&
           cluster_of(transfer.to) == to;
  }

  Status add_paths() {
    const int count = static_cast<int>(model_.clusters.size());
    model_.paths.resize(model_.clusters.size() * model_.clusters.size());
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        const auto size = std::count(cluster_of_.begin(), cluster_of_.end(), from);
        if (from == to && size == 1) continue;
        HETCOMM_RETURN_IF_ERROR(add_path(from, to));
      }
    }
    return {};
  }

  Status add_path(int from, int to) {
    std::vector<uint64_t> alone;
    uint64_t own = 0;  // highest rate that the NICs allow for any of these transfers
    for (const Transfers& round : measured_.rounds) {
      if (round.size() != 1 || !crosses(round[0], from, to)) continue;
      alone.push_back(round[0].bytes_per_s);
      own = std::max(own, rates_.of(round[0]));
    }
    const std::vector<uint64_t> totals = totals_of(
        measured_.rounds, [&](const MeasuredTransfer& each) { return crosses(each, from, to); });
    // If the clusters were inferred, the measurements need not include each pair of clusters. A
    // path that was not measured has no limit.
    if (totals.empty() && measured_.clusters.empty()) {
      model_.path(from, to) = {
          .exists = true, .latency_ns = 0, .resources = {}, .single_bytes_per_s = 0};
      return {};
    }
    if (totals.empty()) {
      return {Code::kInvalidArgument,
              fmt::format("no transfer was measured from cluster '{}' to cluster '{}'",
                          printable(model_.clusters[static_cast<size_t>(from)]),
                          printable(model_.clusters[static_cast<size_t>(to)]))};
    }
    ClusterPath& path = model_.path(from, to);
    path.exists = true;
    const std::vector<uint64_t> latencies = latencies_of(
        [&](int a, int b) { return a != b && cluster_of(a) == from && cluster_of(b) == to; });
    if (!latencies.empty()) path.latency_ns = median_of(latencies);
    // Limits single transfers only if several transfers together got more. Otherwise a trunk
    // describes the path.
    if (alone.empty()) return {};
    const uint64_t single = capacity_of(alone);
    if (is_clearly_less(single, own) && is_clearly_less(single, capacity_of(totals))) {
      path.single_bytes_per_s = single;
    }
    return {};
  }

  // Returns the rate that the model predicts for each transfer, by round.
  std::vector<std::vector<uint64_t>> promises() const {
    std::vector<std::vector<uint64_t>> result;
    for (const Transfers& round : measured_.rounds) {
      std::vector<Route> routes;
      for (const MeasuredTransfer& each : round) routes.push_back(route_of(each));
      result.push_back(rates(model_, routes));
    }
    return result;
  }

  // Returns the route of a transfer. route() cannot be used, since the hosts are not sorted yet.
  Route route_of(const MeasuredTransfer& transfer) const {
    const LinkHost& from = model_.hosts[static_cast<size_t>(transfer.from)];
    const LinkHost& to = model_.hosts[static_cast<size_t>(transfer.to)];
    if (!leaves_host(transfer)) return {.resources = from.inside};
    const ClusterPath& path = model_.path(from.cluster, to.cluster);
    Route route{.resources = from.nics[0].out,
                .latency_ns = 0,
                .single_bytes_per_s = path.single_bytes_per_s};
    route.resources.insert(route.resources.end(), path.resources.begin(), path.resources.end());
    route.resources.insert(route.resources.end(), to.nics[0].in.begin(), to.nics[0].in.end());
    return route;
  }

  // Returns the rate of the resource that |crosses| selects, or 0 if the model does not need the
  // resource. The model needs it if, in some round, the predicted total of the resource's transfers
  // is clearly above the total that any round showed.
  uint64_t needed(const std::vector<std::vector<uint64_t>>& promised,
                  const Crosses& crosses) const {
    const std::vector<uint64_t> totals = totals_of(measured_.rounds, crosses);
    if (totals.empty()) return 0;
    uint64_t most = 0;
    for (size_t i = 0; i < promised.size(); ++i) {
      uint64_t total = 0;
      for (size_t k = 0; k < promised[i].size(); ++k) {
        if (crosses(measured_.rounds[i][k])) total += promised[i][k];
      }
      most = std::max(most, total);
    }
    const uint64_t seen = capacity_of(totals);
    return is_clearly_less(seen, std::min(most, kMaxBytesPerS)) ? seen : 0;
  }

  // Adds the trunks that are needed according to a model without trunks.
  void add_trunks() {
    const int count = static_cast<int>(model_.clusters.size());
    const std::vector<std::vector<uint64_t>> promised = promises();
    std::vector<uint64_t> trunks;
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        trunks.push_back(
            !model_.path(from, to).exists ? 0 : needed(promised, [&](const MeasuredTransfer& each) {
              return crosses(each, from, to);
            }));
      }
    }
    for (size_t i = 0; i < trunks.size(); ++i) {
      if (trunks[i] == 0) continue;
      const std::string& from = model_.clusters[i / model_.clusters.size()];
      const std::string& to = model_.clusters[i % model_.clusters.size()];
      std::string name = from == to ? fmt::format("trunk inside {}", from)
                                    : fmt::format("trunk {} to {}", from, to);
      model_.paths[i].resources = {add_resource(std::move(name), ResourceKind::kTrunk, trunks[i])};
    }
  }

  void add_uplinks() {
    const int count = static_cast<int>(model_.clusters.size());
    const auto leaves = [this](const MeasuredTransfer& each) {
      return cluster_of(each.from) != cluster_of(each.to);
    };
    const std::vector<std::vector<uint64_t>> promised = promises();
    std::vector<uint64_t> uplinks;
    for (int cluster = 0; cluster < count; ++cluster) {
      uplinks.push_back(needed(promised, [&](const MeasuredTransfer& each) {
        return leaves(each) && cluster_of(each.from) == cluster;
      }));
      uplinks.push_back(needed(promised, [&](const MeasuredTransfer& each) {
        return leaves(each) && cluster_of(each.to) == cluster;
      }));
    }
    for (int cluster = 0; cluster < count; ++cluster) {
      const std::string& name = model_.clusters[static_cast<size_t>(cluster)];
      const auto first = 2 * static_cast<size_t>(cluster);
      const int out = uplinks[first] == 0 ? -1
                                          : add_resource(fmt::format("uplink of {}, out", name),
                                                         ResourceKind::kUplink, uplinks[first]);
      const int in = uplinks[first + 1] == 0
                         ? -1
                         : add_resource(fmt::format("uplink of {}, in", name),
                                        ResourceKind::kUplink, uplinks[first + 1]);
      for (int other = 0; other < count; ++other) {
        if (other == cluster) continue;
        auto& leaving = model_.path(cluster, other).resources;
        auto& entering = model_.path(other, cluster).resources;
        if (out >= 0) leaving.insert(leaving.begin(), out);
        if (in >= 0) entering.push_back(in);
      }
    }
  }

  const LinkMeasurements& measured_;
  const HostRates rates_;
  std::vector<int> cluster_of_;
  LinkModel model_;
};

}  // namespace

Status check(const LinkMeasurements& measured) {
  const auto broken = [](std::string text) {
    return Status(Code::kInvalidArgument, std::move(text));
  };
  const size_t count = measured.hosts.size();
  if (count == 0) return broken("there is no host");
  if (count > kMaxLinkHosts) {
    return broken(fmt::format("there are {} hosts; {} are the most", count, kMaxLinkHosts));
  }
  std::set<std::string> labels;
  for (const std::string& label : measured.hosts) {
    if (label.empty()) return broken("a host has no label");
    if (!labels.insert(label).second) {
      return broken(fmt::format("host '{}' is there twice", printable(label)));
    }
  }
  if (!measured.clusters.empty() && measured.clusters.size() != count) {
    return broken("some hosts have a cluster, and others have none");
  }
  const auto is_host = [&](int host) { return host >= 0 && static_cast<size_t>(host) < count; };
  for (const MeasuredLatency& each : measured.latencies) {
    if (!is_host(each.from) || !is_host(each.to)) return broken("a latency is of no host");
  }
  std::vector<bool> sends(count, false);
  std::vector<bool> receives(count, false);
  size_t transfers = 0;
  for (const Transfers& round : measured.rounds) {
    for (const MeasuredTransfer& each : round) {
      if (!is_host(each.from) || !is_host(each.to)) return broken("a transfer is of no host");
      const auto name = [&](int host) {
        return printable(measured.hosts[static_cast<size_t>(host)]);
      };
      if (each.bytes_per_s == 0 || each.bytes_per_s > kMaxBytesPerS) {
        return broken(
            fmt::format("the transfer from '{}' to '{}' has a rate of {} bytes per second",
                        name(each.from), name(each.to), each.bytes_per_s));
      }
      if (++transfers > kMaxMeasuredTransfers) return broken("there are too many transfers");
      if (!leaves_host(each)) continue;
      sends[static_cast<size_t>(each.from)] = true;
      receives[static_cast<size_t>(each.to)] = true;
    }
  }
  for (size_t i = 0; i < count && count > 1; ++i) {
    if (sends[i] && receives[i]) continue;
    return broken(fmt::format("no transfer was measured {} host '{}'", sends[i] ? "to" : "from",
                              printable(measured.hosts[i])));
  }
  return {};
}

Result<LinkModel> infer(const LinkMeasurements& measured) {
  HETCOMM_RETURN_IF_ERROR(check(measured));
  return Inference(measured).run();
}

PairShares pair_shares(const LinkMeasurements& measured) {
  const HostRates rates(measured);
  const size_t count = measured.hosts.size();
  std::vector<uint64_t> best(count * count, 0);
  for (const Transfers& round : measured.rounds) {
    std::map<int, int> sent;
    std::map<int, int> received;
    for (const MeasuredTransfer& each : round) {
      ++sent[each.from];
      ++received[each.to];
    }
    for (const MeasuredTransfer& each : round) {
      if (sent[each.from] > 1 || received[each.to] > 1) continue;
      uint64_t& rate = best[static_cast<size_t>(each.from) * count + static_cast<size_t>(each.to)];
      rate = std::max(rate, each.bytes_per_s);
    }
  }
  PairShares shares(count * count, 0);
  for (size_t i = 0; i < best.size(); ++i) {
    const uint64_t own = std::min(rates.out[i / count], rates.in[i % count]);
    if (best[i] == 0 || i / count == i % count) continue;
    shares[i] = static_cast<uint32_t>(std::max<uint64_t>(share_of(best[i], own), 1));
  }
  return shares;
}

}  // namespace hetcomm::topology
