// Agreement of ranks on the link figures by which algorithms are chosen (HETCOMM_LINK_MODEL):
//
//   * ranks with different figures have the same topology, and choose the same algorithms;
//   * a transport's figures are those of the first rank that has it: from a file, or the
//     transport's own;
//   * rank 0's link model is on all ranks, whatever its length, and only rank 0's is used; it gives
//     the clusters and figures;
//   * until a pair has measured its rates, it assumes those from the model.
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "src/core/collectives/estimate.h"
#include "tests/support/core_job.h"
#include "transports/self/factory.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

using collectives::Algorithm;

struct Figures {
  double latency_us;
  double megabytes_per_s;
  LinkCost link() const {
    return {.latency_ns = static_cast<uint64_t>(latency_us * 1000),
            .bytes_per_s = static_cast<uint64_t>(megabytes_per_s * 1e6)};
  }
};

// A file in the format of hetcomm_bench, with figures for shm and tcp.
class ModelFile {
 public:
  ModelFile(const Figures& shm, const Figures& tcp)
      : path_(fmt::format("{}hetcomm-links-{}-{}", testing::TempDir(), getpid(), ++count_)) {
    std::ofstream(path_) << "{\"rows\": [" << rows("shm", shm) << ", " << rows("tcp", tcp) << "]}";
  }
  ~ModelFile() { unlink(path_.c_str()); }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  std::string setting() const { return "LINK_MODEL=" + path_ + ";"; }

 private:
  static std::string rows(const char* transport, const Figures& figures) {
    const std::string common = fmt::format(
        R"("impl": "hetcomm", "transport": "{}", "memory": "host", "bytes": 8)", transport);
    return fmt::format(
        R"({{"test": "latency", {0}, "avg_us": {1}}},
            {{"test": "bandwidth", {0}, "bandwidth_MBps": {2}}})",
        common, figures.latency_us, figures.megabytes_per_s);
  }
  static inline int count_ = 0;
  const std::string path_;
};

Factories all_transports() {
  Factories factories;
  factories.push_back(make_self_factory());
  factories.push_back(make_shm_factory());
  factories.push_back(make_tcp_factory());
  return factories;
}

Factories without_shm() {
  Factories factories;
  factories.push_back(make_self_factory());
  factories.push_back(make_tcp_factory());
  return factories;
}

// Returns the algorithm chosen for an allreduce of each size.
std::vector<Algorithm> choices(const RankPlacement& placement) {
  std::vector<Algorithm> chosen;
  for (uint64_t bytes = 64; bytes <= 64u << 20; bytes *= 4) {
    collectives::Problem problem;
    problem.kind = collectives::Kind::kAllreduce;
    problem.element_bytes = problem.wide_bytes = 4;
    problem.placement = &placement;
    problem.ranks = static_cast<uint32_t>(placement.cluster_of.size());
    problem.bytes = bytes;
    chosen.push_back(collectives::choose(problem));
  }
  return chosen;
}

// Returns the placements by rank in a job whose ranks have their own settings and transports.
std::vector<RankPlacement> placements_of(const std::vector<std::string>& settings,
                                         const std::vector<int>& ranks,
                                         const std::function<Factories(int)>& factories) {
  std::vector<RankPlacement> placements(settings.size());
  run_core_job(
      static_cast<int>(settings.size()), "LOG=error;", factories,
      [&](CoreMember& me) {
        placements[static_cast<size_t>(me.rank())] =
            me.communicator().job().peers().placement(ranks);
      },
      {}, [&](int rank) { return settings[static_cast<size_t>(rank)]; });
  return placements;
}

void expect_alike(const std::vector<RankPlacement>& placements) {
  for (const RankPlacement& each : placements) {
    EXPECT_EQ(each.inside, placements[0].inside);
    EXPECT_EQ(each.across, placements[0].across);
    EXPECT_EQ(each.clusters, placements[0].clusters);
    EXPECT_EQ(choices(each), choices(placements[0]));
  }
}

// Figures that lead to different algorithms if they are used.
constexpr Figures kSlowStart{.latency_us = 900, .megabytes_per_s = 9000};
constexpr Figures kQuickStart{.latency_us = 1, .megabytes_per_s = 300};

TEST(AgreedLinks, RanksWithDifferentFiguresChooseTheSameAlgorithms) {
  const ModelFile slow(kSlowStart, kSlowStart);
  const ModelFile quick(kQuickStart, kQuickStart);
  // Each of these figures alone would lead to other choices.
  const std::vector<uint32_t> one_cluster(4, 0);
  EXPECT_NE(choices(RankPlacement(one_cluster, kSlowStart.link(), kSlowStart.link())),
            choices(RankPlacement(one_cluster, kQuickStart.link(), kQuickStart.link())));
  for (const bool slow_first : {true, false}) {
    const std::string first = slow_first ? slow.setting() : quick.setting();
    const std::string other = slow_first ? quick.setting() : slow.setting();
    const auto placements = placements_of({first, other, other, other}, {0, 1, 2, 3},
                                          [](int) { return all_transports(); });
    expect_alike(placements);
    const LinkCost expected = (slow_first ? kSlowStart : kQuickStart).link();
    EXPECT_EQ(placements[3].inside, expected);
    EXPECT_EQ(placements[3].across, expected);
  }
}

TEST(AgreedLinks, FirstRankWithATransportDeterminesItsFigures) {
  constexpr Figures kShm[] = {{1, 1000}, {2, 2000}, {3, 3000}, {4, 4000}};
  constexpr Figures kTcp[] = {{51, 100}, {52, 200}, {53, 300}, {54, 400}};
  std::vector<std::unique_ptr<ModelFile>> files;
  std::vector<std::string> settings;
  for (int rank = 0; rank < 4; ++rank) {
    files.push_back(std::make_unique<ModelFile>(kShm[rank], kTcp[rank]));
    settings.push_back(files.back()->setting() + (rank < 2 ? "CLUSTER=a;" : "CLUSTER=b;"));
  }
  // Rank 0 has no shm, so its shm figures are not used.
  const auto factories = [](int rank) { return rank == 0 ? without_shm() : all_transports(); };
  const auto near = placements_of(settings, {2, 3}, factories);
  expect_alike(near);
  EXPECT_EQ(near[0].inside, kShm[1].link());
  const auto both = placements_of(settings, {1, 2, 3}, factories);
  expect_alike(both);
  EXPECT_EQ(both[2].inside, kShm[1].link());
  EXPECT_EQ(both[2].across, kTcp[0].link());
}

TEST(AgreedLinks, FiguresOfTheFirstRankAreUsedIfThereIsNoFile) {
  const auto none = placements_of({"", ""}, {0, 1}, [](int) { return without_shm(); });
  expect_alike(none);
  EXPECT_NE(none[0].inside, kSlowStart.link());
  const ModelFile slow(kSlowStart, kSlowStart);
  const auto second =
      placements_of({"", slow.setting()}, {0, 1}, [](int) { return without_shm(); });
  expect_alike(second);
  EXPECT_EQ(second[1].inside, none[0].inside);
  const auto first = placements_of({slow.setting(), ""}, {0, 1}, [](int) { return without_shm(); });
  expect_alike(first);
  EXPECT_EQ(first[1].inside, kSlowStart.link());
}

// A file for four hosts in two clusters joined by a slow trunk with |latency_ns|, plus |further|
// hosts.
class HostsFile {
 public:
  explicit HostsFile(uint64_t latency_ns, int further = 0)
      : path_(fmt::format("{}hetcomm-hosts-{}-{}", testing::TempDir(), getpid(), latency_ns)) {
    std::string hosts;
    for (int i = 0; i < 4 + further; ++i) {
      hosts += fmt::format(
          R"({}{{"label": "h{}", "cluster": "{}", "nics": [{{"out": ["nic"], "in": []}}]}})",
          i > 0 ? "," : "", i, i / 2 == 1 ? "far" : "near");
    }
    std::ofstream(path_) << fmt::format(
        R"({{"format": "hetcomm link model", "version": 1,
             "resources": [{{"name": "nic", "kind": "nic", "bytes_per_s": 8000000000}},
                           {{"name": "trunk", "kind": "trunk", "bytes_per_s": 50000000}}],
             "clusters": [{{"name": "near"}}, {{"name": "far"}}], "hosts": [{}],
             "paths": [{{"from": "near", "to": "near", "latency_ns": 5000}},
                       {{"from": "far", "to": "far", "latency_ns": 5000}},
                       {{"from": "near", "to": "far", "latency_ns": {}, "resources": ["trunk"]}},
                       {{"from": "far", "to": "near", "latency_ns": {}, "resources": ["trunk"]}}]}})",
        hosts, latency_ns, latency_ns);
  }
  ~HostsFile() { unlink(path_.c_str()); }
  HostsFile(const HostsFile&) = delete;
  HostsFile& operator=(const HostsFile&) = delete;
  std::string setting() const { return "LINK_MODEL=" + path_ + ";"; }

 private:
  const std::string path_;
};

TEST(AgreedLinks, LinkModelOfRankZeroReachesAllRanks) {
  // 2000 hosts need more than one piece.
  const HostsFile first(900'000, 2000);
  const HostsFile other(7'000);
  std::vector<std::string> settings;
  for (int rank = 0; rank < 4; ++rank) {
    // Neighbours in rank belong to different clusters.
    settings.push_back(fmt::format("{}HOST_LABEL=h{};", (rank == 0 ? first : other).setting(),
                                   rank % 2 * 2 + rank / 2));
  }
  const auto placements =
      placements_of(settings, {0, 1, 2, 3}, [](int) { return all_transports(); });
  expect_alike(placements);
  EXPECT_EQ(placements[3].clusters, (std::vector<std::vector<uint32_t>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(placements[3].inside, (LinkCost{.latency_ns = 5'000, .bytes_per_s = 8'000'000'000}));
  EXPECT_EQ(placements[3].across, (LinkCost{.latency_ns = 900'000, .bytes_per_s = 50'000'000}));
  // Ranks in one cluster are distinguished by their hosts.
  const auto near = placements_of(settings, {0, 2}, [](int) { return all_transports(); });
  EXPECT_EQ(near[1].clusters, (std::vector<std::vector<uint32_t>>{{0}, {1}}));
  EXPECT_EQ(near[1].across.latency_ns, 5'000U);
}

TEST(AgreedLinks, PathsInitiallyAssumeTheModelRates) {
  const HostsFile model(900'000);
  std::vector<std::string> settings;
  for (int rank = 0; rank < 4; ++rank) {
    settings.push_back(fmt::format("{}HOST_LABEL=h{};", model.setting(), rank));
  }
  run_core_job(
      4, "LOG=error;", [](int) { return without_shm(); },
      [](CoreMember& me) {
        if (me.rank() != 0) return;
        Job& job = me.communicator().job();
        const Engine::Baton baton(job.engine());
        for (const auto& transport : job.transports().all()) {
          if (transport->capabilities().within_host) {
            EXPECT_EQ(job.paths().expected_rate(2, transport->index), UINT64_MAX);
            continue;
          }
          // The first rate is over the trunk, and the second over the NIC alone.
          EXPECT_EQ(job.paths().expected_rate(2, transport->index), 50'000'000U);
          EXPECT_EQ(job.paths().expected_rate(1, transport->index), 8'000'000'000U);
        }
      },
      {}, [&](int rank) { return settings[static_cast<size_t>(rank)]; });
}

}  // namespace
}  // namespace hetcomm::test
