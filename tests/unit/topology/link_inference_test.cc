// Clusters and link models from measurements:
//    - a uniform network with 10 % noise is one cluster; a jump in rate by a factor of two divides;
//    - a host with a slow NIC is no cluster of its own;
//    - random models with noise are recovered: predicted rates are within 10 % of the true ones;
//    - a shared limit of several transfers is distinguished from a limit of each one;
//    - found clusters that were never measured together have a path that limits nothing;
//    - the same measurements give the same model; each fault in them is reported with its object.
#include "topology/links/link_inference.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/links/link_model_json.h"

namespace hetcomm::topology {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  // Returns a number in [least, most].
  uint64_t between(uint64_t least, uint64_t most) { return least + random_() % (most - least + 1); }
  // Returns |rate| with an error of up to |percent|.
  uint64_t noisy(uint64_t rate, uint64_t percent) {
    return rate * (1000 - 10 * percent + between(0, 20 * percent)) / 1000;
  }

 private:
  std::mt19937_64 random_;
};

// Returns the shares between |hosts|, given by a function of both hosts.
template <typename Share>
PairShares shares_of(size_t hosts, Share share) {
  PairShares shares(hosts * hosts, 0);
  for (size_t i = 0; i < hosts; ++i) {
    for (size_t j = 0; j < hosts; ++j) {
      if (i != j) shares[i * hosts + j] = static_cast<uint32_t>(share(i, j));
    }
  }
  return shares;
}

TEST(FindClusters, NoiseDoesNotSplitAUniformNetwork) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Draw draw(seed);
    const size_t hosts = draw.between(1, 20);
    EXPECT_THAT(
        find_clusters(hosts,
                      shares_of(hosts, [&](size_t, size_t) { return draw.noisy(900'000, 10); })),
        Each(0));
  }
}

TEST(FindClusters, LargeRateGapSplitsClusters) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Draw draw(seed);
    const size_t hosts = draw.between(3, 20);
    const size_t count = draw.between(2, std::min<size_t>(hosts - 1, 5));
    std::vector<int> expected(hosts);
    for (size_t i = 0; i < hosts; ++i) {
      expected[i] = static_cast<int>(i < count ? i : draw.between(0, count - 1));
    }
    const uint64_t factor = draw.between(3, 50);
    const auto shares = shares_of(hosts, [&](size_t i, size_t j) {
      return draw.noisy(expected[i] == expected[j] ? 900'000 : 900'000 / factor, 10);
    });
    EXPECT_EQ(find_clusters(hosts, shares), expected) << "seed " << seed;
  }
}

TEST(FindClusters, OnlyARateGapOfTwoOrMoreSplits) {
  const auto divided = [](uint64_t across) {
    return find_clusters(4, shares_of(4, [&](size_t i, size_t j) -> uint64_t {
                           return i / 2 == j / 2 ? 800'000 : across;
                         }));
  };
  EXPECT_THAT(divided(400'000), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(divided(400'001), Each(0));
}

TEST(FindClusters, LargestRateGapDeterminesTheClusters) {
  // Racks in sites: 0.8 inside a rack, 0.3 inside a site, 0.01 beyond.
  const auto share = [](size_t i, size_t j) -> uint64_t {
    return i / 2 == j / 2 ? 800'000 : i / 4 == j / 4 ? 300'000 : 10'000;
  };
  EXPECT_THAT(find_clusters(8, shares_of(8, share)), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  // A chain is no cluster: hosts 0 and 2 are far apart.
  const auto chain = [](size_t i, size_t j) -> uint64_t {
    return std::max(i, j) - std::min(i, j) == 1 ? 800'000 : 100'000;
  };
  EXPECT_THAT(find_clusters(3, shares_of(3, chain)), Each(0));
}

TEST(FindClusters, SlowerDirectionOfAPairIsUsed) {
  const auto share = [](size_t i, size_t j) -> uint64_t {
    return i / 2 == j / 2 || i < j ? 800'000 : 100'000;
  };
  EXPECT_THAT(find_clusters(4, shares_of(4, share)), ElementsAre(0, 0, 1, 1));
}

TEST(FindClusters, UnmeasuredPairsAreIgnored) {
  const auto ring = [](size_t i, size_t j) -> uint64_t {
    const size_t apart = std::max(i, j) - std::min(i, j);
    if (apart != 1 && apart != 7) return 0;
    return i / 4 == j / 4 ? 800'000 : 100'000;
  };
  EXPECT_THAT(find_clusters(8, shares_of(8, ring)), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
}

// The true network, and its measurements.
struct Network {
  LinkModel model;
  std::vector<int> cluster_of;

  Route route_of(int from, int to) const {
    const auto label = [](int host) { return fmt::format("h{:02}", host); };
    return route(model, {label(from), ""}, {label(to), ""}).value();
  }
  // Returns the rates of concurrent transfers, each with noise.
  std::vector<MeasuredTransfer> measure(const std::vector<std::pair<int, int>>& pairs, Draw& draw,
                                        uint64_t noise) const {
    std::vector<Route> routes;
    for (const auto& [from, to] : pairs) routes.push_back(route_of(from, to));
    const std::vector<uint64_t> each = rates(model, routes);
    std::vector<MeasuredTransfer> result;
    for (size_t i = 0; i < pairs.size(); ++i) {
      result.push_back({pairs[i].first, pairs[i].second, draw.noisy(each[i], noise)});
    }
    return result;
  }
};

constexpr uint64_t kMbyte = 1'000'000;

// Returns hosts with their own NICs, in clusters that trunks join.
Network random_network(Draw& draw, uint64_t least_trunk, uint64_t most_trunk) {
  Network network;
  LinkModel& model = network.model;
  const int clusters = static_cast<int>(draw.between(1, 3));
  const auto add = [&](const std::string& name, ResourceKind kind, uint64_t rate) {
    model.resources.push_back({name, kind, rate});
    return static_cast<int>(model.resources.size()) - 1;
  };
  for (int c = 0; c < clusters; ++c) {
    model.clusters.push_back(fmt::format("c{}", c));
    for (uint64_t i = draw.between(2, 4); i > 0; --i) {
      const std::string label = fmt::format("h{:02}", model.hosts.size());
      const uint64_t rate = draw.between(100, 400) * kMbyte;
      LinkNic nic{.name = "",
                  .out = {add(label + " out", ResourceKind::kNic, rate)},
                  .in = {add(label + " in", ResourceKind::kNic, draw.noisy(rate, 20))}};
      model.hosts.push_back(
          {.label = label, .cluster = c, .latency_ns = 0, .inside = {}, .nics = {nic}});
      network.cluster_of.push_back(c);
    }
  }
  model.paths.resize(static_cast<size_t>(clusters * clusters));
  for (int a = 0; a < clusters; ++a) {
    for (int b = 0; b < clusters; ++b) {
      ClusterPath& path = model.path(a, b);
      path.exists = true;
      path.latency_ns = a == b ? 10'000 : 1'000'000;
      if (a == b) continue;
      path.resources = {add(fmt::format("trunk {} to {}", a, b), ResourceKind::kTrunk,
                            draw.between(least_trunk, most_trunk) * kMbyte)};
    }
  }
  EXPECT_TRUE(check(model).ok()) << check(model).text();
  normalize(model);
  return network;
}

// Measures like hetcomm_bench: every pair alone, every host with all others, and pairs of clusters.
LinkMeasurements measure(const Network& network, Draw& draw, uint64_t noise, bool declared) {
  LinkMeasurements measured;
  const int count = static_cast<int>(network.model.hosts.size());
  for (const LinkHost& host : network.model.hosts) {
    measured.hosts.push_back(host.label);
    if (declared) {
      measured.clusters.push_back(network.model.clusters[static_cast<size_t>(host.cluster)]);
    }
  }
  using Pairs = std::vector<std::pair<int, int>>;
  const auto add = [&](const Pairs& pairs) {
    if (!pairs.empty()) measured.rounds.push_back(network.measure(pairs, draw, noise));
  };
  for (int i = 0; i < count; ++i) {
    Pairs out;
    Pairs in;
    for (int j = 0; j < count; ++j) {
      if (i == j) continue;
      add({{i, j}});
      out.emplace_back(i, j);
      in.emplace_back(j, i);
    }
    add(out);
    add(in);
  }
  const int clusters = static_cast<int>(network.model.clusters.size());
  for (int a = 0; a < clusters; ++a) {
    for (int b = 0; b < clusters; ++b) {
      std::vector<int> from;
      std::vector<int> to;
      for (int host = 0; host < count; ++host) {
        if (network.cluster_of[static_cast<size_t>(host)] == a) from.push_back(host);
        if (network.cluster_of[static_cast<size_t>(host)] == b) to.push_back(host);
      }
      Pairs pairs;
      for (const int one : from) {
        for (const int other : to) {
          if (one != other) pairs.emplace_back(one, other);
        }
      }
      add(pairs);
    }
  }
  return measured;
}

void expect_promises(const Network& network, const LinkModel& found, Draw& draw, uint32_t seed) {
  const auto count = network.model.hosts.size();
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<Route> truth;
    std::vector<Route> promise;
    for (uint64_t k = draw.between(1, 4); k > 0; --k) {
      const int from = static_cast<int>(draw.between(0, count - 1));
      const int to = static_cast<int>(draw.between(0, count - 1));
      if (from == to) continue;
      truth.push_back(network.route_of(from, to));
      const auto label = [&](int host) {
        return network.model.hosts[static_cast<size_t>(host)].label;
      };
      const Result<Route> own = route(found, {label(from), ""}, {label(to), ""});
      ASSERT_TRUE(own.ok());
      promise.push_back(own.value());
    }
    const std::vector<uint64_t> expected = rates(network.model, truth);
    const std::vector<uint64_t> got = rates(found, promise);
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(got[i]) / static_cast<double>(expected[i]), 1, 0.1)
          << "seed " << seed << "\n"
          << to_json(network.model) << to_json(found);
    }
  }
}

TEST(LinkInference, RandomNetworksAreRecovered) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Draw draw(seed);
    const Network network = random_network(draw, 30, 800);
    const LinkMeasurements measured = measure(network, draw, 5, /*declared=*/true);
    Result<LinkModel> found = infer(measured);
    ASSERT_TRUE(found.ok()) << found.status().text();
    expect_promises(network, *found, draw, seed);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(LinkInference, ClustersAreRecoveredIfTrunksAreSlow) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    Draw draw(seed);
    // Every pair across gets less than half of what the slowest NIC can do.
    const Network network = random_network(draw, 5, 30);
    const LinkMeasurements measured = measure(network, draw, 10, /*declared=*/false);
    Result<LinkModel> found = infer(measured);
    ASSERT_TRUE(found.ok()) << found.status().text();
    EXPECT_THAT(found->clusters, SizeIs(network.model.clusters.size())) << "seed " << seed;
    for (size_t i = 0; i < found->hosts.size(); ++i) {
      EXPECT_EQ(found->hosts[i].cluster, network.cluster_of[i]) << "seed " << seed;
    }
  }
}

TEST(LinkInference, SameMeasurementsGiveTheSameModel) {
  Draw draw(7);
  const Network network = random_network(draw, 30, 800);
  const LinkMeasurements measured = measure(network, draw, 10, false);
  Result<LinkMeasurements> read = parse_link_measurements(to_json(measured));
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_EQ(*read, measured);
  EXPECT_EQ(infer(*read).value(), infer(measured).value());
}

// Returns measurements of two clusters with two hosts each.
LinkMeasurements four_hosts(uint64_t alone, uint64_t together) {
  LinkMeasurements measured;
  measured.hosts = {"a0", "a1", "b0", "b1"};
  measured.clusters = {"a", "a", "b", "b"};
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (i == j) continue;
      measured.rounds.push_back({{i, j, i / 2 == j / 2 ? 1000 * kMbyte : alone * kMbyte}});
      measured.latencies.push_back({i, j, i / 2 == j / 2 ? 20'000U : 900'000U});
    }
  }
  measured.rounds.push_back({{0, 2, together / 2 * kMbyte}, {1, 3, together / 2 * kMbyte}});
  measured.rounds.push_back({{2, 0, together / 2 * kMbyte}, {3, 1, together / 2 * kMbyte}});
  return measured;
}

TEST(LinkInference, DistinguishesSharedTrunksFromLimitsOfOneTransfer) {
  // Two pairs together get no more than one, so they share a trunk.
  const LinkModel shared = infer(four_hosts(200, 200)).value();
  const ClusterPath& trunk = shared.path(0, 1);
  ASSERT_THAT(trunk.resources, SizeIs(1));
  EXPECT_EQ(shared.resources[static_cast<size_t>(trunk.resources[0])].bytes_per_s, 200 * kMbyte);
  EXPECT_EQ(shared.resources[static_cast<size_t>(trunk.resources[0])].name, "trunk a to b");
  EXPECT_EQ(trunk.single_bytes_per_s, 0U);
  EXPECT_EQ(trunk.latency_ns, 900'000U);
  EXPECT_EQ(shared.path(0, 0).latency_ns, 20'000U);
  EXPECT_THAT(shared.path(0, 0).resources, SizeIs(0));
  // Together they get twice as much, so each has its own limit.
  const LinkModel single = infer(four_hosts(200, 400)).value();
  EXPECT_EQ(single.path(0, 1).single_bytes_per_s, 200 * kMbyte);
  EXPECT_THAT(single.path(0, 1).resources, SizeIs(0));
  // Both apply: one pair alone does not fill the trunk, but two do.
  const LinkModel both = infer(four_hosts(200, 300)).value();
  EXPECT_EQ(both.path(1, 0).single_bytes_per_s, 200 * kMbyte);
  ASSERT_THAT(both.path(1, 0).resources, SizeIs(1));
}

TEST(LinkInference, FindsTheUplinkOfACluster) {
  LinkMeasurements measured;
  measured.hosts = {"a0", "a1", "b0", "b1", "c0", "c1"};
  measured.clusters = {"a", "a", "b", "b", "c", "c"};
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) {
      if (i != j) {
        measured.rounds.push_back({{i, j, i / 2 == j / 2 ? 1000 * kMbyte : 200 * kMbyte}});
      }
    }
  }
  measured.rounds.push_back({{0, 2, 100 * kMbyte}, {1, 4, 100 * kMbyte}});
  const LinkModel model = infer(measured).value();
  const auto is_uplink = [](const LinkResource& each) {
    return each.kind == ResourceKind::kUplink && each.name == "uplink of a, out" &&
           each.bytes_per_s == 200 * kMbyte;
  };
  EXPECT_EQ(std::count_if(model.resources.begin(), model.resources.end(), is_uplink), 1);
  const std::vector<uint64_t> both = rates(model, {route(model, {"a0", ""}, {"b0", ""}).value(),
                                                   route(model, {"a1", ""}, {"c0", ""}).value()});
  EXPECT_THAT(both, ElementsAre(100 * kMbyte, 100 * kMbyte));
}

TEST(LinkInference, SlowHostDoesNotFormItsOwnCluster) {
  LinkMeasurements measured;
  measured.hosts = {"fast0", "fast1", "fast2", "slow"};
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (i != j) measured.rounds.push_back({{i, j, (i == 3 || j == 3 ? 50 : 1000) * kMbyte}});
    }
  }
  EXPECT_THAT(infer(measured).value().clusters, SizeIs(1));
}

TEST(LinkInference, ClustersNeverMeasuredTogetherHaveAPath) {
  // Clusters of two in a row; the first and the last one were never measured together.
  LinkMeasurements measured;
  for (int i = 0; i < 6; ++i) measured.hosts.push_back(fmt::format("h{}", i));
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) {
      if (i == j || std::abs(i / 2 - j / 2) == 2) continue;
      measured.rounds.push_back({{i, j, (i / 2 == j / 2 ? 1000 : 100) * kMbyte}});
    }
  }
  Result<LinkModel> model = infer(measured);
  ASSERT_TRUE(model.ok()) << model.status().text();
  EXPECT_THAT(model.value().clusters, SizeIs(3));
  EXPECT_TRUE(model.value().path(0, 2).exists);
}

TEST(LinkInference, ErrorNamesTheFaultyMeasurement) {
  const auto text = [](const LinkMeasurements& measured) {
    return std::string(infer(measured).status().text());
  };
  const LinkMeasurements good = four_hosts(200, 200);
  LinkMeasurements bad = good;
  bad.rounds[0][0].bytes_per_s = 0;
  EXPECT_THAT(text(bad), HasSubstr("from 'a0' to 'a1' has a rate of 0"));
  bad = good;
  bad.hosts[1] = "a0";
  EXPECT_THAT(text(bad), HasSubstr("host 'a0' is there twice"));
  bad = good;
  bad.clusters.pop_back();
  EXPECT_THAT(text(bad), HasSubstr("others have none"));
  bad = good;
  std::erase_if(bad.rounds, [](const auto& round) { return round[0].from / 2 != round[0].to / 2; });
  EXPECT_THAT(text(bad), HasSubstr("no transfer was measured from cluster 'a' to cluster 'b'"));
  bad = good;
  std::erase_if(bad.rounds, [](const auto& round) { return round.back().from == 3; });
  EXPECT_THAT(text(bad), HasSubstr("no transfer was measured from host 'b1'"));
  bad.hosts.clear();
  EXPECT_THAT(text(bad), HasSubstr("there is no host"));
  EXPECT_FALSE(parse_link_measurements("{}").ok());
  std::string json = to_json(good);
  json.replace(json.find("\"from\": 0"), 9, "\"from\": 4");
  EXPECT_THAT(std::string(parse_link_measurements(json).status().text()),
              HasSubstr("from is no whole"));
}

}  // namespace
}  // namespace hetcomm::topology
