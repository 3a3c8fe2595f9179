#include "pipeline/joint/link_ways.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "topology/links/link_model.h"

namespace hetcomm::pipeline {

LinkWays::LinkWays(const reshard::Links& links) : links_(links) {
  for (const topology::LinkResource& each : links.model().resources) names_.push_back(each.name);
}

Route LinkWays::way_of(const std::vector<reshard::Messages>& hops, uint32_t slices,
                       const std::string& name) {
  constexpr uint32_t kFlow = 1u << 24;
  Route route;
  route.slices = kFlow;
  for (size_t i = 0; i < hops.size(); ++i) {
    if (hops[i].empty()) continue;
    const size_t first = route.hops.size();
    add_hop(route, hops[i], hops.size() == 1 ? name : fmt::format("{} hop {}", name, i));
    route.hops[first].slices = slices;
  }
  return route;
}

void LinkWays::add_hop(Route& route, const reshard::Messages& messages, const std::string& name) {
  const reshard::HopLoad load = reshard::load_of(messages, links_);
  uint64_t latency_ns = 0;
  uint64_t alone_ns = 0;  // time of the longest transfer on its own
  for (const auto& [ends, bytes] : messages) {
    const topology::Route& way = links_.route(ends.first, ends.second);
    latency_ns = std::max(latency_ns, way.latency_ns);
    if (way.single_bytes_per_s > 0) {
      alone_ns = std::max(alone_ns, topology::transfer_ns(bytes, way.single_bytes_per_s));
    }
  }
  std::vector<RouteHop> hops;
  uint64_t longest_ns = 0;
  for (const auto& [resource, moved] : load.resource_bytes) {
    const uint64_t rate = links_.model().resources[static_cast<size_t>(resource)].bytes_per_s;
    hops.push_back({.busy_ns = topology::transfer_ns(moved, rate),
                    .latency_ns = 0,
                    .resources = {static_cast<uint32_t>(resource)}});
    longest_ns = std::max(longest_ns, hops.back().busy_ns);
  }
  if (alone_ns > longest_ns || hops.empty()) {
    hops.push_back({.busy_ns = alone_ns, .latency_ns = 0, .resources = {number_of(name)}});
  }
  std::stable_sort(hops.begin(), hops.end(),
                   [](const RouteHop& a, const RouteHop& b) { return a.busy_ns > b.busy_ns; });
  hops.back().latency_ns = latency_ns + load.message_ns;
  route.hops.insert(route.hops.end(), hops.begin(), hops.end());
}

uint32_t LinkWays::number_of(const std::string& name) {
  const auto [found, is_new] = streams_.emplace(name, static_cast<uint32_t>(names_.size()));
  if (is_new) names_.push_back(name);
  return found->second;
}

}  // namespace hetcomm::pipeline
