// End-to-end tests of hetcomm_bench links on known networks: the rounds in its plan, the rates of
// their transfers, with noise, and the inferred model.
//   - for 9 to 200 hosts, with declared and with found clusters, in rank order and interleaved, the
//     model predicts the rates of random sets of one to four transfers within 10 %;
//   - found clusters are those that slow trunks join.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tools/links/links_plan.h"
#include "topology/links/link_inference.h"
#include "topology/links/link_model.h"

namespace tools {
namespace {

namespace topology = hetcomm::topology;
using topology::LinkModel;
using topology::Route;

constexpr uint64_t kMbyte = 1'000'000;

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // Returns a number in [least, most].
  uint64_t between(uint64_t least, uint64_t most) { return least + random_() % (most - least + 1); }
  // Returns |rate| with an error of up to |percent|.
  uint64_t noisy(uint64_t rate, uint64_t percent) {
    return std::max<uint64_t>(rate * (1000 - 10 * percent + between(0, 20 * percent)) / 1000, 1);
  }

 private:
  std::mt19937_64 random_;
};

// The shape of a network.
struct Shape {
  int hosts = 0;
  int clusters = 1;
  bool interleaved = false;  // consecutive ranks are in different clusters
  bool slow_trunks = false;  // lets clusters be found
  bool uplinks = false;      // each cluster has one link each way, shared by all other clusters
};

// Hosts with their own NICs, in clusters that trunks or uplinks join.
class Network {
 public:
  Network(const Shape& shape, Draw& draw) {
    for (int c = 0; c < shape.clusters; ++c) model_.clusters.push_back(fmt::format("c{}", c));
    for (int i = 0; i < shape.hosts; ++i) {
      const int cluster = shape.interleaved ? i % shape.clusters : i * shape.clusters / shape.hosts;
      cluster_of_.push_back(cluster);
      const uint64_t rate = draw.between(100, 400) * kMbyte;
      const topology::LinkNic nic{
          .name = "",
          .out = {add(fmt::format("{} out", i), topology::ResourceKind::kNic, rate)},
          .in = {add(fmt::format("{} in", i), topology::ResourceKind::kNic, draw.noisy(rate, 20))}};
      model_.hosts.push_back(
          {.label = label(i), .cluster = cluster, .latency_ns = 0, .inside = {}, .nics = {nic}});
    }
    join_clusters(shape, draw);
    EXPECT_TRUE(check(model_).ok()) << check(model_).text();
    normalize(model_);
  }

  static std::string label(int host) { return fmt::format("h{:03}", host); }
  const LinkModel& model() const { return model_; }
  const std::vector<int>& cluster_of() const { return cluster_of_; }

 private:
  int add(std::string name, topology::ResourceKind kind, uint64_t rate) {
    model_.resources.push_back({std::move(name), kind, rate});
    return static_cast<int>(model_.resources.size()) - 1;
  }

  void join_clusters(const Shape& shape, Draw& draw) {
    const auto rate = [&] {
      return (shape.slow_trunks ? draw.between(5, 30) : draw.between(30, 800)) * kMbyte;
    };
    std::vector<int> out;
    std::vector<int> in;
    for (int c = 0; c < shape.clusters && shape.uplinks; ++c) {
      out.push_back(add(fmt::format("up {}", c), topology::ResourceKind::kUplink, rate()));
      in.push_back(add(fmt::format("down {}", c), topology::ResourceKind::kUplink, rate()));
    }
    model_.paths.resize(model_.clusters.size() * model_.clusters.size());
    for (int from = 0; from < shape.clusters; ++from) {
      for (int to = 0; to < shape.clusters; ++to) {
        topology::ClusterPath& path = model_.path(from, to);
        path.exists = true;
        if (from == to) continue;
        if (shape.uplinks) {
          path.resources = {out[static_cast<size_t>(from)], in[static_cast<size_t>(to)]};
        } else {
          path.resources = {
              add(fmt::format("trunk {} to {}", from, to), topology::ResourceKind::kTrunk, rate())};
        }
      }
    }
  }

  LinkModel model_;
  std::vector<int> cluster_of_;  // indexed by host
};

// Returns the rates that |model| predicts for the concurrent transfers in |round|.
std::vector<uint64_t> rates_of(const LinkModel& model, const HostRound& round) {
  std::vector<Route> routes;
  for (const auto& [from, to] : round) {
    routes.push_back(route(model, {Network::label(from), ""}, {Network::label(to), ""}).value());
  }
  return rates(model, routes);
}

class Bench {
 public:
  Bench(const Network& network, bool declared, uint64_t noise_percent, Draw& draw)
      : network_(network), noise_percent_(noise_percent), draw_(draw) {
    for (const topology::LinkHost& host : network.model().hosts) {
      measured_.hosts.push_back(host.label);
    }
    for (const int cluster : network.cluster_of()) {
      if (declared) measured_.clusters.push_back(fmt::format("c{}", cluster));
    }
  }

  // Returns the model inferred from hetcomm_bench's rounds.
  LinkModel run() {
    measure(first_rounds(static_cast<int>(measured_.hosts.size())));
    measure(further_rounds(measured_.clusters.empty() ? found_clusters() : network_.cluster_of()));
    return infer(measured_).value();
  }

 private:
  void measure(const std::vector<HostRound>& rounds) {
    for (const HostRound& round : rounds) {
      const std::vector<uint64_t> each = rates_of(network_.model(), round);
      auto& transfers = measured_.rounds.emplace_back();
      for (size_t i = 0; i < round.size(); ++i) {
        transfers.push_back(
            {round[i].first, round[i].second, draw_.noisy(each[i], noise_percent_)});
      }
    }
  }

  std::vector<int> found_clusters() const {
    std::vector<int> clusters;
    const LinkModel model = infer(measured_).value();
    for (const topology::LinkHost& host : model.hosts) clusters.push_back(host.cluster);
    return clusters;
  }

  const Network& network_;
  const uint64_t noise_percent_;
  Draw& draw_;
  topology::LinkMeasurements measured_;
};

// Returns the largest deviation of the model's predictions for one network.
double worst_of(const Shape& shape, bool declared, uint64_t seed) {
  Draw draw(seed);
  const Network network(shape, draw);
  const LinkModel model = Bench(network, declared, 3, draw).run();
  if (!declared) {
    EXPECT_EQ(model.clusters.size(), network.model().clusters.size()) << "seed " << seed;
    // Each found cluster exists.
    std::map<int, std::set<int>> by_found;
    for (size_t i = 0; i < model.hosts.size(); ++i) {
      by_found[model.hosts[i].cluster].insert(network.cluster_of()[i]);
    }
    for (const auto& [found, true_ones] : by_found) {
      EXPECT_EQ(true_ones.size(), 1U) << "seed " << seed << ", cluster " << found;
    }
  }
  double worst = 0;
  for (const HostRound& round : check_rounds(shape.hosts, 60, static_cast<uint32_t>(seed))) {
    const std::vector<uint64_t> truth = rates_of(network.model(), round);
    const std::vector<uint64_t> promised = rates_of(model, round);
    for (size_t i = 0; i < truth.size(); ++i) {
      const double deviation =
          std::abs(static_cast<double>(promised[i]) / static_cast<double>(truth[i]) - 1);
      if (deviation > 0.1 && deviation > worst) {
        fmt::print("{} hosts, seed {}: {} at once: {} to {}: {} for {}\n", shape.hosts, seed,
                   round.size(), round[i].first, round[i].second, promised[i], truth[i]);
      }
      worst = std::max(worst, deviation);
    }
  }
  return worst;
}

class LinksInference : public testing::TestWithParam<int> {};

TEST_P(LinksInference, ModelOfDeclaredClustersIsRecovered) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const bool interleaved : {false, true}) {
      const Shape shape{.hosts = GetParam(),
                        .clusters = 1 + static_cast<int>(seed % 3),
                        .interleaved = interleaved};
      EXPECT_LE(worst_of(shape, true, seed), 0.1) << "seed " << seed << " " << interleaved;
    }
  }
}

TEST_P(LinksInference, ModelOfInferredClustersIsRecovered) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const bool interleaved : {false, true}) {
      const Shape shape{.hosts = GetParam(),
                        .clusters = 1 + static_cast<int>(seed % 3),
                        .interleaved = interleaved,
                        .slow_trunks = true};
      EXPECT_LE(worst_of(shape, false, seed), 0.1) << "seed " << seed << " " << interleaved;
    }
  }
}

TEST_P(LinksInference, UplinksOfClustersAreRecovered) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Shape shape{.hosts = GetParam(), .clusters = 3, .uplinks = true};
    EXPECT_LE(worst_of(shape, true, seed), 0.1) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, LinksInference, testing::Values(9, 16, 64, 65, 200),
                         [](const auto& hosts) { return std::to_string(hosts.param); });

}  // namespace
}  // namespace tools
