// Link models for tests: clusters of hosts, each host with a memory and a NIC.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "reshard/links.h"
#include "topology/links/link_model.h"

namespace hetcomm::reshard {

inline std::vector<int> ranks_from(int first, uint64_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

struct Rates {
  uint64_t memory = 10'000'000'000;  // within a host
  uint64_t nic = 1'000'000'000;
  uint64_t trunk = 0;  // 0: none
  uint64_t latency_ns = 1000;
};

// Returns a model with clusters of hosts "c0h0", "c0h1", ...; each direction between two clusters
// has a trunk.
inline topology::LinkModel model_of(const std::vector<int>& hosts, const Rates& rates) {
  topology::LinkModel model;
  const auto add = [&](std::string name, topology::ResourceKind kind, uint64_t rate) {
    model.resources.push_back({std::move(name), kind, rate});
    return static_cast<int>(model.resources.size()) - 1;
  };
  const auto clusters = static_cast<int>(hosts.size());
  for (int c = 0; c < clusters; ++c) {
    model.clusters.push_back("c" + std::to_string(c));
    for (int h = 0; h < hosts[static_cast<size_t>(c)]; ++h) {
      topology::LinkHost host;
      host.label = "c" + std::to_string(c) + "h" + std::to_string(h);
      host.cluster = c;
      host.latency_ns = 100;
      host.inside = {add(host.label + " memory", topology::ResourceKind::kMemory, rates.memory)};
      host.nics = {{"nic",
                    {add(host.label + " out", topology::ResourceKind::kNic, rates.nic)},
                    {add(host.label + " in", topology::ResourceKind::kNic, rates.nic)}}};
      model.hosts.push_back(host);
    }
  }
  for (int a = 0; a < clusters; ++a) {
    for (int b = 0; b < clusters; ++b) {
      topology::ClusterPath path;
      path.exists = true;
      path.latency_ns = rates.latency_ns;
      if (a != b && rates.trunk != 0) {
        path.resources = {add("trunk " + std::to_string(a) + std::to_string(b),
                              topology::ResourceKind::kTrunk, rates.trunk)};
      }
      model.paths.push_back(path);
    }
  }
  topology::normalize(model);
  EXPECT_TRUE(topology::check(model).ok()) << topology::check(model).text();
  return model;
}

// Returns links with |each| ranks on every host, in cluster order.
inline Links links_of(const std::vector<int>& hosts, int each, const Rates& rates) {
  std::vector<RankEnd> ends;
  for (size_t c = 0; c < hosts.size(); ++c) {
    for (int h = 0; h < hosts[c]; ++h) {
      for (int i = 0; i < each; ++i) {
        ends.push_back({"c" + std::to_string(c) + "h" + std::to_string(h), ""});
      }
    }
  }
  return Links::create(model_of(hosts, rates), ends).value();
}

}  // namespace hetcomm::reshard
