#include "topology/links/link_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "src/base/mix64.h"
#include "src/base/sort_and_map.h"
#include "src/base/text.h"

namespace hetcomm::topology {
namespace {

Status broken(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }

Status check_count(size_t count, size_t most, const char* what) {
  if (count <= most) return {};
  return broken(fmt::format("there are {} {}; {} are the most", count, what, most));
}

// Checks that |name| is not empty, is not too long, is printable and is not in |seen| yet. Adds it
// to |seen|.
Status check_name(const std::string& name, const char* what, std::set<std::string>* seen) {
  if (name.empty()) return broken(fmt::format("a {} has no name", what));
  if (name.size() > kMaxLinkName) {
    return broken(fmt::format("the name of {} '{}...' has {} bytes; {} are the most", what,
                              printable(name.substr(0, 40)), name.size(), kMaxLinkName));
  }
  if (printable(name) != name) {
    return broken(fmt::format("the name of {} '{}' has characters that cannot be printed", what,
                              printable(name)));
  }
  if (!seen->insert(name).second) {
    return broken(fmt::format("{} '{}' is there twice", what, name));
  }
  return {};
}

Status check_resources(const LinkModel& model) {
  HETCOMM_RETURN_IF_ERROR(check_count(model.resources.size(), kMaxLinkResources, "resources"));
  std::set<std::string> names;
  for (const LinkResource& resource : model.resources) {
    HETCOMM_RETURN_IF_ERROR(check_name(resource.name, "resource", &names));
    if (resource.bytes_per_s == 0 || resource.bytes_per_s > kMaxBytesPerS) {
      return broken(fmt::format("resource '{}' has a rate of {} bytes per second; 1 to {} can be",
                                resource.name, resource.bytes_per_s, kMaxBytesPerS));
    }
  }
  return {};
}

// Checks that |crossed| contains indices in LinkModel::resources. |whose| names the owner in the
// error text, such as "host 'a'".
Status check_crossed(const LinkModel& model, const std::vector<int>& crossed,
                     const std::string& whose) {
  if (crossed.size() > kMaxCrossed) {
    return broken(fmt::format("{} crosses {} resources; {} are the most", whose, crossed.size(),
                              kMaxCrossed));
  }
  for (const int index : crossed) {
    if (index >= 0 && static_cast<size_t>(index) < model.resources.size()) continue;
    return broken(fmt::format("{} crosses a resource that is not there", whose));
  }
  return {};
}

Status check_latency(uint64_t latency_ns, const std::string& whose) {
  if (latency_ns <= kMaxLatencyNs) return {};
  return broken(
      fmt::format("{} has a latency of {} ns; {} is the most", whose, latency_ns, kMaxLatencyNs));
}

Status check_host(const LinkModel& model, const LinkHost& host) {
  const std::string whose = fmt::format("host '{}'", host.label);
  if (host.cluster < 0 || static_cast<size_t>(host.cluster) >= model.clusters.size()) {
    return broken(fmt::format("{} is in no cluster", whose));
  }
  HETCOMM_RETURN_IF_ERROR(check_latency(host.latency_ns, whose));
  HETCOMM_RETURN_IF_ERROR(check_crossed(model, host.inside, whose));
  HETCOMM_RETURN_IF_ERROR(check_count(host.nics.size(), kMaxLinkNics, "NICs of a host"));
  if (host.nics.empty() && model.hosts.size() > 1) {
    return broken(fmt::format("{} has no NIC: no other host can reach it", whose));
  }
  std::set<std::string> names;
  for (const LinkNic& nic : host.nics) {
    // The name is optional if the host has only one NIC.
    if (!nic.name.empty() || host.nics.size() > 1) {
      HETCOMM_RETURN_IF_ERROR(check_name(nic.name, "NIC", &names).annotate(whose));
    }
    HETCOMM_RETURN_IF_ERROR(check_crossed(model, nic.out, whose));
    HETCOMM_RETURN_IF_ERROR(check_crossed(model, nic.in, whose));
  }
  return {};
}

Status check_paths(const LinkModel& model) {
  const size_t count = model.clusters.size();
  if (model.paths.size() != count * count) return broken("not every pair of clusters has a path");
  std::vector<size_t> sizes(count, 0);
  for (const LinkHost& host : model.hosts) ++sizes[static_cast<size_t>(host.cluster)];
  for (size_t from = 0; from < count; ++from) {
    if (sizes[from] == 0) {
      return broken(fmt::format("cluster '{}' has no host", model.clusters[from]));
    }
    for (size_t to = 0; to < count; ++to) {
      const ClusterPath& path = model.paths[from * count + to];
      const std::string whose = fmt::format("the path from cluster '{}' to cluster '{}'",
                                            model.clusters[from], model.clusters[to]);
      if (!path.exists && (from != to || sizes[from] > 1)) {
        return broken(fmt::format("{} is missing", whose));
      }
      HETCOMM_RETURN_IF_ERROR(check_latency(path.latency_ns, whose));
      HETCOMM_RETURN_IF_ERROR(check_crossed(model, path.resources, whose));
      if (path.single_bytes_per_s > kMaxBytesPerS) {
        return broken(fmt::format("{} has a rate of {} bytes per second; {} is the most", whose,
                                  path.single_bytes_per_s, kMaxBytesPerS));
      }
    }
  }
  return {};
}

// Sorts |objects| by |name|. Returns the new index of each object, by its old index.
template <typename Object, typename Name>
std::vector<int> sort_by_name(std::vector<Object>& objects, Name name) {
  return sort_and_map(objects, [&](const Object& a, const Object& b) { return name(a) < name(b); });
}

void renumber(std::vector<int>& crossed, const std::vector<int>& position) {
  for (int& index : crossed) index = position[static_cast<size_t>(index)];
}

// Hashes numbers and texts. Every eight characters of a text form one number, with the first
// character in the low byte, so that the hash is the same on all processors.
class Hash {
 public:
  void add(uint64_t number) { value_ = mix64(value_, number); }
  void add(const std::string& text) {
    add(text.size());
    for (size_t begin = 0; begin < text.size(); begin += 8) {
      uint64_t word = 0;
      for (size_t i = begin; i < std::min(begin + 8, text.size()); ++i) {
        word |= uint64_t{static_cast<uint8_t>(text[i])} << 8 * (i - begin);
      }
      add(word);
    }
  }
  void add(const std::vector<int>& indices) {
    add(indices.size());
    for (const int index : indices) add(static_cast<uint64_t>(index));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace

int LinkModel::find_host(std::string_view label) const {
  const auto found = std::lower_bound(
      hosts.begin(), hosts.end(), label,
      [](const LinkHost& host, std::string_view wanted) { return host.label < wanted; });
  return found != hosts.end() && found->label == label ? static_cast<int>(found - hosts.begin())
                                                       : -1;
}

Status check(const LinkModel& model) {
  if (model.hosts.empty()) return broken("there is no host");
  HETCOMM_RETURN_IF_ERROR(check_count(model.hosts.size(), kMaxLinkHosts, "hosts"));
  HETCOMM_RETURN_IF_ERROR(check_count(model.clusters.size(), kMaxLinkClusters, "clusters"));
  HETCOMM_RETURN_IF_ERROR(check_resources(model));
  std::set<std::string> names;
  for (const std::string& cluster : model.clusters) {
    HETCOMM_RETURN_IF_ERROR(check_name(cluster, "cluster", &names));
  }
  std::set<std::string> labels;
  for (const LinkHost& host : model.hosts) {
    HETCOMM_RETURN_IF_ERROR(check_name(host.label, "host", &labels));
    HETCOMM_RETURN_IF_ERROR(check_host(model, host));
  }
  return check_paths(model);
}

void normalize(LinkModel& model) {
  const auto own_name = [](const std::string& name) { return name; };
  const size_t count = model.clusters.size();
  const std::vector<int> resource_positions =
      sort_by_name(model.resources, [](const LinkResource& each) { return each.name; });
  const std::vector<int> cluster_positions = sort_by_name(model.clusters, own_name);
  sort_by_name(model.hosts, [](const LinkHost& host) { return host.label; });
  for (LinkHost& host : model.hosts) {
    host.cluster = cluster_positions[static_cast<size_t>(host.cluster)];
    renumber(host.inside, resource_positions);
    for (LinkNic& nic : host.nics) {
      renumber(nic.out, resource_positions);
      renumber(nic.in, resource_positions);
    }
  }
  std::vector<ClusterPath> paths(count * count);
  for (size_t i = 0; i < model.paths.size(); ++i) {
    const auto from = static_cast<size_t>(cluster_positions[i / count]);
    const auto to = static_cast<size_t>(cluster_positions[i % count]);
    renumber(model.paths[i].resources, resource_positions);
    paths[from * count + to] = std::move(model.paths[i]);
  }
  model.paths = std::move(paths);
}

uint64_t hash_of(const LinkModel& model) {
  Hash hash;
  hash.add(model.resources.size());
  for (const LinkResource& resource : model.resources) {
    hash.add(resource.name);
    hash.add(static_cast<uint64_t>(resource.kind));
    hash.add(resource.bytes_per_s);
  }
  hash.add(model.clusters.size());
  for (const std::string& cluster : model.clusters) hash.add(cluster);
  hash.add(model.hosts.size());
  for (const LinkHost& host : model.hosts) {
    hash.add(host.label);
    hash.add(static_cast<uint64_t>(host.cluster));
    hash.add(host.latency_ns);
    hash.add(host.inside);
    hash.add(host.nics.size());
    for (const LinkNic& nic : host.nics) {
      hash.add(nic.name);
      hash.add(nic.out);
      hash.add(nic.in);
    }
  }
  for (const ClusterPath& path : model.paths) {
    hash.add(path.exists ? 1 : 0);
    hash.add(path.latency_ns);
    hash.add(path.resources);
    hash.add(path.single_bytes_per_s);
  }
  return hash.value();
}

Result<Route> route(const LinkModel& model, const LinkEnd& from, const LinkEnd& to) {
  const LinkHost* hosts[2] = {};
  const LinkNic* nics[2] = {};
  const LinkEnd* const ends[2] = {&from, &to};
  for (int i = 0; i < 2; ++i) {
    const int index = model.find_host(ends[i]->host);
    if (index < 0) {
      return Status(Code::kNotFound,
                    fmt::format("the link model has no host '{}'", printable(ends[i]->host)));
    }
    hosts[i] = &model.hosts[static_cast<size_t>(index)];
    const auto& all = hosts[i]->nics;
    const auto found = std::find_if(all.begin(), all.end(), [&](const LinkNic& nic) {
      return ends[i]->nic.empty() || nic.name == ends[i]->nic;
    });
    if (found != all.end()) nics[i] = &*found;
    if (found == all.end() && !ends[i]->nic.empty()) {
      return Status(Code::kNotFound, fmt::format("host '{}' of the link model has no NIC '{}'",
                                                 hosts[i]->label, printable(ends[i]->nic)));
    }
  }
  if (hosts[0] == hosts[1]) {
    return Route{
        .resources = hosts[0]->inside, .latency_ns = hosts[0]->latency_ns, .single_bytes_per_s = 0};
  }
  const ClusterPath& path = model.path(hosts[0]->cluster, hosts[1]->cluster);
  Route route{.resources = nics[0]->out,
              .latency_ns = path.latency_ns,
              .single_bytes_per_s = path.single_bytes_per_s};
  route.resources.insert(route.resources.end(), path.resources.begin(), path.resources.end());
  route.resources.insert(route.resources.end(), nics[1]->in.begin(), nics[1]->in.end());
  return route;
}

// Raises the rates of all routes equally until a resource is full or a route reaches its own limit.
// The routes that are limited there keep their rate, and the others continue to grow. Rounding down
// to whole numbers loses less than one byte per second in each step. Only resources that some route
// crosses are examined, since a model may have thousands of resources.
std::vector<uint64_t> rates(const LinkModel& model, const std::vector<Route>& routes) {
  std::vector<int> crossed;  // the resources that any route crosses, sorted
  for (const Route& route : routes) {
    crossed.insert(crossed.end(), route.resources.begin(), route.resources.end());
  }
  std::sort(crossed.begin(), crossed.end());
  crossed.erase(std::unique(crossed.begin(), crossed.end()), crossed.end());
  std::vector<std::vector<size_t>> ways(routes.size());  // by route: indices in |crossed|
  std::vector<uint64_t> left(crossed.size());
  std::vector<uint64_t> crossings(crossed.size(), 0);  // how often growing routes cross each
  for (size_t i = 0; i < crossed.size(); ++i) {
    left[i] = model.resources[static_cast<size_t>(crossed[i])].bytes_per_s;
  }
  for (size_t i = 0; i < routes.size(); ++i) {
    for (const int resource : routes[i].resources) {
      const auto at = std::lower_bound(crossed.begin(), crossed.end(), resource);
      ways[i].push_back(static_cast<size_t>(at - crossed.begin()));
      ++crossings[ways[i].back()];
    }
  }
  const auto limit_of = [&](const Route& route) {
    return route.single_bytes_per_s != 0 ? route.single_bytes_per_s : kMaxBytesPerS;
  };
  std::vector<uint64_t> result(routes.size(), 0);
  std::vector<bool> settled(routes.size(), false);
  for (size_t open = routes.size(); open > 0;) {
    uint64_t level = kMaxBytesPerS;
    for (size_t i = 0; i < left.size(); ++i) {
      if (crossings[i] > 0) level = std::min(level, left[i] / crossings[i]);
    }
    for (size_t i = 0; i < routes.size(); ++i) {
      if (!settled[i]) level = std::min(level, limit_of(routes[i]));
    }
    // Finds all routes that this level limits, before settling one of them changes a resource.
    std::vector<size_t> ending;
    for (size_t i = 0; i < routes.size(); ++i) {
      if (settled[i]) continue;
      const auto is_full = [&](size_t position) {
        return left[position] / crossings[position] <= level;
      };
      if (limit_of(routes[i]) <= level || std::any_of(ways[i].begin(), ways[i].end(), is_full)) {
        ending.push_back(i);
      }
    }
    for (const size_t i : ending) {
      settled[i] = true;
      result[i] = level;
      --open;
      for (const size_t position : ways[i]) {
        left[position] -= level;
        --crossings[position];
      }
    }
  }
  return result;
}

uint64_t rate_alone(const LinkModel& model, const Route& route) {
  return rates(model, {route}).front();
}

uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_s) {
  // Computes three decimal digits at a time. Nothing overflows, since rates are at most 10^15.
  static_assert(kMaxBytesPerS <= UINT64_MAX / 1000);
  uint64_t ns = bytes / bytes_per_s;
  if (ns >= kMaxTransferNs / 1'000'000'000) return kMaxTransferNs;
  uint64_t rest = bytes % bytes_per_s;
  for (int i = 0; i < 3; ++i) {
    rest *= 1000;
    ns = ns * 1000 + rest / bytes_per_s;
    rest %= bytes_per_s;
  }
  return ns + (rest > 0 ? 1 : 0);
}

}  // namespace hetcomm::topology
