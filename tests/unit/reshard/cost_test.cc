// Plan costs:
//    - a forecast is the time of the busiest resource and the longest transfer, calculated by hand,
//      and hops that overlap share the links;
//    - batched send-receive prefers data on the same rank, then fast links, then lightly loaded
//      senders, and is proved over random layouts; it gives the volumes in Hetu's table 2;
//    - auto chooses the fastest strategy, at most one copy passes between clusters, and each
//      strategy wins somewhere.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/auto.h"
#include "reshard/bsr.h"
#include "reshard/mesh.h"
#include "reshard/proof.h"
#include "reshard/strategies.h"
#include "tests/unit/reshard/links_of.h"

namespace hetcomm::reshard {
namespace {

using ::testing::HasSubstr;

TEST(Forecast, IsTheTimeOfTheBusiestResource) {
  // Two hosts with two ranks each send half of the data each to one rank on one host.
  const Links links = links_of({2, 1}, 2, {.trunk = 400'000'000});
  const Layout source = layout_of({4000}, {{4}, ranks_from(0, 4)}, {shard(0)}).value();
  const Layout destination = layout_of({4000}, {{1}, {4}}, {shard(0)}).value();
  const MovePlan plan = plan_direct(source, destination).value();
  const Forecast expected = forecast(plan, 1000, links);
  // 4 MB over the trunk of 400 MB/s.
  EXPECT_EQ(expected.ns, 10'000'000 + 3 * kMessageNs);
  ASSERT_EQ(expected.hops.size(), 1u);
  EXPECT_EQ(expected.hops[0].messages, 4u);
  EXPECT_EQ(expected.hops[0].bytes, 4'000'000u);
  EXPECT_EQ(links.model().resources[static_cast<size_t>(expected.hops[0].slowest_resource)].name,
            "trunk 01");
  const auto& resources = links.model().resources;
  for (size_t i = 0; i < resources.size(); ++i) {
    const uint64_t bytes = expected.resource_bytes[i];
    if (resources[i].name == "c0h1 out") {
      EXPECT_EQ(bytes, 2'000'000u);
    }
    if (resources[i].name == "c1h0 in") {
      EXPECT_EQ(bytes, 4'000'000u);
    }
    if (resources[i].name == "c1h0 memory") {
      EXPECT_EQ(bytes, 0u);
    }
  }
}

TEST(Forecast, IsTheLatencyForOneSmallMessage) {
  const Links links = links_of({1, 1}, 1, {.latency_ns = 5'000'000});
  const Layout source = layout_of({8}, {{1}, {0}}, {shard(0)}).value();
  const Layout destination = layout_of({8}, {{1}, {1}}, {shard(0)}).value();
  EXPECT_EQ(forecast(plan_direct(source, destination).value(), 4, links).ns, 5'000'032u);
  EXPECT_EQ(forecast(plan_direct(source, source).value(), 4, links).ns, 0u);
}

TEST(Forecast, OverlapsTheHopsOfASlicedPlan) {
  const Links links = links_of({2, 2}, 1, {});
  const Layout source = layout_of({4000}, {{2}, {0, 1}}, {shard(0)}).value();
  const Layout destination = layout_of({4000}, {{2}, {2, 3}}, {shard(0)}).value();
  const MovePlan plan = plan_leader(source, destination).value();
  ASSERT_EQ(plan.hops.size(), 3u);
  const Forecast whole = forecast(plan, 1000, links, 1);
  const Forecast sliced = forecast(plan, 1000, links, 10);
  // 2 MB, 4 MB and 2 MB at 1 GB/s, and 1 us each.
  EXPECT_EQ(whole.ns, 8'003'000u);
  EXPECT_EQ(sliced.ns, 4'001'000u + 4'002'000u / 10);
}

// One plan moves its data in the first hop, and the other one in the second, over the same NICs.
TEST(Forecast, OverlappingHopsShareTheLinks) {
  const Links links = links_of({2}, 1, {});
  const Layout source = layout_of({4000}, {{1}, {0}}, {shard(0)}).value();
  const Layout destination = layout_of({4000}, {{1}, {1}}, {shard(0)}).value();
  const MovePlan first = plan_direct(source, destination).value();
  const MovePlan second = plan_gather_p2p_scatter(source, destination).value();
  JointForecast joint(links);
  joint.add(first, 1000, 3);
  joint.add(second, 1000, 3);
  JointForecast alone(links);
  alone.add(first, 1000, 6);
  EXPECT_GE(joint.forecast(64).ns, alone.forecast(64).ns - kMessageNs);
  JointForecast sum(links);
  sum.add(alone);
  sum.add(joint);
  EXPECT_GE(sum.forecast(64).ns, 48'000'000u);  // twelve tensors of 4 MB at 1 GB/s
}

// Short tensors of a list share a message.
TEST(Forecast, ShortTensorsShareMessages) {
  const Links links = links_of({2}, 1, {});
  const Layout source = layout_of({8}, {{1}, {0}}, {shard(0)}).value();
  const Layout destination = layout_of({8}, {{1}, {1}}, {shard(0)}).value();
  const MovePlan plan = plan_direct(source, destination).value();
  JointForecast apart(links);
  apart.add(plan, 4, 1000);
  JointForecast together(links);
  together.add(plan, 4, 1000, 100);
  EXPECT_EQ(apart.forecast(8).ns, 1000u + 32'000 + 999 * kMessageNs);
  EXPECT_EQ(together.forecast(8).ns, 1000u + 32'000 + 9 * kMessageNs);
}

TEST(Links, ErrorNamesTheRankMissingFromTheModel) {
  const topology::LinkModel model = model_of({1, 1}, {});
  EXPECT_THAT(std::string(Links::create(model, {{"c0h0", ""}, {"other", ""}}).status().text()),
              HasSubstr("rank 1"));
  EXPECT_THAT(std::string(Links::create(model, {{"c0h0", ""}, {"c1h0", "x"}}).status().text()),
              HasSubstr("rank 1"));
}

// A table of all routes between so many hosts would take gigabytes.
TEST(Links, RoutesBetweenThousandsOfHostsAreComputedOnDemand) {
  const Links links = links_of({4000, 1}, 1, {.trunk = 400'000'000});
  for (int rank = 0; rank < 4000; ++rank) {
    const topology::Route& next = links.route(rank, rank + 1);
    ASSERT_EQ(next.resources.size(), rank + 1 < 4000 ? 2u : 3u) << rank;
    ASSERT_EQ(links.bytes_per_s(rank, rank + 1), rank + 1 < 4000 ? Rates{}.nic : 400'000'000u);
    ASSERT_EQ(&links.route(rank, rank + 1), &next);
  }
  EXPECT_TRUE(links.route(7, 7).resources.empty());
  EXPECT_EQ(links.bytes_per_s(7, 7), topology::kMaxBytesPerS);
}

// --- batched send-receive ---------------------------------------------------------------------

std::map<int, uint64_t> sent_by(const MovePlan& plan) {
  std::map<int, uint64_t> sent;
  for (const Move& move : plan.hops[0].moves) {
    const int from = plan.source.parts[move.from].rank;
    if (from != plan.destination().parts[move.to].rank) sent[from] += move.box.elements();
  }
  return sent;
}

TEST(Bsr, PrefersOwnDataThenFastLinksThenLowLoad) {
  const Links links = links_of({2}, 2, {});
  // Ranks 0 and 1 share a host, 2 and 3 the other one; 0, 1 and 2 each hold everything.
  const Layout source = layout_of({12}, {{3}, {0, 1, 2}}, {replicate()}).value();
  SendLoads loads(&links);
  const Layout on_three = layout_of({12}, {{1}, {3}}, {replicate()}).value();
  EXPECT_EQ(sent_by(plan_bsr(source, on_three, 4, loads).value()),
            (std::map<int, uint64_t>{{2, 12}}));
  EXPECT_EQ(loads.bytes_of_ranks(), (std::vector<uint64_t>{0, 0, 48}));
  const Layout itself = layout_of({12}, {{1}, {1}}, {replicate()}).value();
  EXPECT_TRUE(sent_by(plan_bsr(source, itself, 4, loads).value()).empty());
  // Without links the least loaded rank sends; among equals, the first one.
  const Layout four = layout_of({12}, {{4}, {4, 5, 6, 7}}, {shard(0)}).value();
  SendLoads by_rank;
  EXPECT_EQ(sent_by(plan_bsr(source, on_three, 4, by_rank).value()),
            (std::map<int, uint64_t>{{0, 12}}));
  EXPECT_EQ(sent_by(plan_bsr(source, four, 4, by_rank).value()),
            (std::map<int, uint64_t>{{1, 6}, {2, 6}}));
  EXPECT_EQ(by_rank.bytes_of_ranks(), (std::vector<uint64_t>{48, 24, 24}));
  EXPECT_EQ(plan_bsr(source, four, 4, loads).status().code(), Code::kInvalidArgument);
}

TEST(Bsr, RandomPlansAreProvedCorrect) {
  std::mt19937 random(5);
  const auto draw = [&](uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random);
  };
  const Links links = links_of({3, 4}, 8, {});
  const int runs = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 50'000 : 1000;
  for (int run = 0; run < runs; ++run) {
    std::vector<uint64_t> shape(draw(1, 3));
    for (uint64_t& extent : shape) extent = draw(1, 10);
    const auto layout = [&](int first) {
      Mesh mesh;
      std::vector<Placement> placements;
      uint64_t ranks = 1;
      for (uint64_t axes = draw(1, 3); axes > 0; --axes) {
        mesh.axes.push_back(draw(1, 3));
        ranks *= mesh.axes.back();
        const size_t dimension = draw(0, shape.size() - 1);
        const std::vector<Placement> kinds = {replicate(), shard(dimension), zigzag(dimension),
                                              strided_shard(dimension, draw(1, 3))};
        placements.push_back(kinds[draw(0, 3)]);
      }
      mesh.ranks = ranks_from(first, ranks);
      std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), random);
      return layout_of(shape, mesh, placements, Uneven::kCeil).value();
    };
    const Layout source = layout(0);
    const Layout destination = layout(static_cast<int>(draw(0, 27)));
    SendLoads loads(&links);
    const uint64_t slice_bytes = draw(0, 64);
    const MovePlan plan =
        plan_bsr(source, destination, 2, loads, std::nullopt, slice_bytes).value();
    const Status proved = prove(plan);
    ASSERT_TRUE(proved.ok()) << proved.text() << to_table(source) << to_table(destination);
    uint64_t counted = 0;
    for (const uint64_t bytes : loads.bytes_of_ranks()) counted += bytes;
    EXPECT_EQ(counted, 2 * count_elements(plan));
    const Choice choice = plan_auto(source, destination, 2, links).value();
    ASSERT_TRUE(prove(choice.plan).ok());
  }
}

TEST(Bsr, RefusesPartialSums) {
  const Layout source = layout_of({8}, {{2}, {0, 1}}, {partial()}).value();
  const Layout destination = layout_of({8}, {{1}, {2}}, {shard(0)}).value();
  SendLoads loads;
  EXPECT_EQ(plan_bsr(source, destination, 4, loads).status().code(), Code::kUnsupported);
}

// --- Hetu v2, table 2 ---------------------------------------------------------------------------

// A 32B model on 32 GPUs, eight to a host, loses rank 31 (tables 2 and 7). All weights of a layer
// are one tensor here, whose quarter is 747.5 MB; that of the output layer is 284 MB.
constexpr uint64_t kLayerQuarter = 7475;  // elements of 0.1 MB
constexpr uint64_t kHeadQuarter = 2840;

// The ranks in a pipeline stage, and the stage's first and last layer.
struct HetuStage {
  std::vector<int> ranks;
  int first;
  int last;
};
using Pipelines = std::vector<std::vector<HetuStage>>;

// Returns the ranks that hold |layer|, whose quarters have |quarter| elements. Rank 31 no longer
// holds any.
Layout holders(const Pipelines& pipelines, int layer, uint64_t quarter) {
  Layout layout;
  layout.shape = {4 * quarter};
  for (uint32_t copy = 0; copy < pipelines.size(); ++copy) {
    for (const HetuStage& hop : pipelines[copy]) {
      if (layer < hop.first || layer > hop.last) continue;
      const uint64_t each = 4 * quarter / hop.ranks.size();
      for (size_t i = 0; i < hop.ranks.size(); ++i) {
        if (hop.ranks[i] == 31) continue;
        Part part;
        part.rank = hop.ranks[i];
        part.copy = copy;
        part.box = whole_of(layout.shape);
        part.box.begin[0] = i * each;
        part.box.end[0] = (i + 1) * each;
        part.strides = dense_strides(part.box);
        layout.parts.push_back(part);
      }
    }
  }
  EXPECT_TRUE(check(layout).ok()) << check(layout).text();
  return layout;
}

// MB that each rank sends within its host and beyond it.
using Volumes = std::map<int, std::pair<double, double>>;

Volumes volumes_of(bool fused) {
  const auto four = [](int first) { return ranks_from(first, 4); };
  const Pipelines before = {
      {{four(0), 0, 14}, {four(4), 15, 29}, {four(8), 30, 44}, {four(12), 45, 59}},
      {{four(16), 0, 14}, {four(20), 15, 29}, {four(24), 30, 44}, {four(28), 45, 59}}};
  const Pipelines after = {before[0],
                           {{four(16), 0, 15},
                            {four(20), 16, 31},
                            {four(24), 32, 47},
                            {{28, 29}, 48, 55},
                            {{30}, 56, 59}}};
  const Links links = links_of({4}, 8, {});
  SendLoads loads(fused ? &links : nullptr);
  Volumes volumes;
  for (int tensor = 0; tensor <= 60; ++tensor) {
    const bool is_head = tensor == 60;
    const int layer = is_head ? 59 : tensor;
    const uint64_t quarter = is_head ? kHeadQuarter : kLayerQuarter;
    if (!fused) loads = SendLoads();
    const MovePlan plan =
        plan_bsr(holders(before, layer, quarter), holders(after, layer, quarter), 1, loads).value();
    EXPECT_TRUE(prove(plan).ok()) << prove(plan).text();
    for (const Move& move : plan.hops[0].moves) {
      const int from = plan.source.parts[move.from].rank;
      const int to = plan.destination().parts[move.to].rank;
      if (from == to) continue;
      auto& [inside, beyond] = volumes[from];
      (from / 8 == to / 8 ? inside : beyond) += static_cast<double>(move.box.elements()) / 10;
    }
  }
  return volumes;
}

// The table is rounded to whole megabytes.
void expect_volumes(const Volumes& found, const Volumes& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [rank, volumes] : expected) {
    ASSERT_EQ(found.count(rank), 1u) << rank;
    EXPECT_NEAR(found.at(rank).first, volumes.first, 0.6) << rank;
    EXPECT_NEAR(found.at(rank).second, volumes.second, 0.6) << rank;
  }
}

TEST(Papers, VolumesMatchTableTwoOfHetu) {
  expect_volumes(volumes_of(false), {{4, {0, 748}},
                                     {5, {0, 747}},
                                     {6, {0, 747}},
                                     {7, {0, 747}},
                                     {8, {0, 1495}},
                                     {9, {0, 1495}},
                                     {10, {0, 1495}},
                                     {11, {0, 1495}},
                                     {12, {0, 5517}},
                                     {13, {0, 11496}},
                                     {14, {0, 8222}},
                                     {15, {0, 11496}}});
  expect_volumes(volumes_of(true), {{8, {0, 747}},
                                    {9, {0, 747}},
                                    {10, {0, 747}},
                                    {11, {0, 747}},
                                    {15, {0, 11496}},
                                    {20, {748, 0}},
                                    {21, {748, 0}},
                                    {22, {748, 0}},
                                    {23, {748, 0}},
                                    {24, {0, 748}},
                                    {25, {0, 748}},
                                    {26, {0, 748}},
                                    {27, {0, 748}},
                                    {28, {5517, 0}},
                                    {29, {11496, 0}},
                                    {30, {8222, 0}}});
}

// --- auto -------------------------------------------------------------------------------------

// Returns the number of bytes sent from one cluster to another.
uint64_t crossing(const MovePlan& plan, const Links& links) {
  uint64_t elements = 0;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    for (const Move& move : plan.hops[i].moves) {
      if (links.cluster(plan.from(i).parts[move.from].rank) !=
          links.cluster(plan.hops[i].to.parts[move.to].rank)) {
        elements += move.box.elements();
      }
    }
  }
  return elements;
}

TEST(Auto, ChoosesTheFastestStrategyAndExplainsTheChoice) {
  const Links links = links_of({1, 1}, 4, {.trunk = 100'000'000, .latency_ns = 1'000'000});
  const Layout source = activations(8, 64, 1024, {.data = 4}, ranks_from(0, 4)).value();
  const Layout destination = activations(8, 64, 1024, {.context = 4}, ranks_from(4, 4)).value();
  const Choice choice = plan_auto(source, destination, 2, links).value();
  ASSERT_EQ(choice.considered.size(), 5u);
  uint64_t least = UINT64_MAX;
  for (const Considered& each : choice.considered) {
    EXPECT_EQ(each.refused, "") << each.strategy;
    least = std::min(least, each.ns);
  }
  EXPECT_EQ(choice.forecast.ns, least);
  // The part of one rank equals its share of the whole plan.
  const Choice part = plan_auto(source, destination, 2, links, 8, 5).value();
  EXPECT_EQ(part.forecast, choice.forecast);
  for (size_t i = 0; i < part.plan.hops.size(); ++i) {
    for (const Move& move : part.plan.hops[i].moves) {
      EXPECT_TRUE(part.plan.from(i).parts[move.from].rank == 5 ||
                  part.plan.hops[i].to.parts[move.to].rank == 5);
      EXPECT_NE(std::find(choice.plan.hops[i].moves.begin(), choice.plan.hops[i].moves.end(), move),
                choice.plan.hops[i].moves.end());
    }
  }
}

TEST(Auto, SendsOneCopyBetweenClusters) {
  const Links links = links_of({1, 2}, 4, {.trunk = 100'000'000});
  const Layout source = layout_of({64, 64}, {{4}, ranks_from(0, 4)}, {shard(0)}).value();
  const Layout destination =
      layout_of({64, 64}, {{4, 2}, ranks_from(4, 8)}, {replicate(), shard(1)}).value();
  const Choice choice = plan_auto(source, destination, 2, links).value();
  EXPECT_EQ(crossing(choice.plan, links), 64u * 64);
  EXPECT_THAT(choice.considered[0].refused,
              HasSubstr("it sends 4.00 copies from cluster 'c0' to 'c1'"));
  EXPECT_THAT(choice.considered[0].strategy, "direct");
}

TEST(Auto, ReducesSumsBeforeTheyCrossClusters) {
  const Links links = links_of({1, 1}, 4, {.trunk = 100'000'000});
  const Layout source = layout_of({64}, {{4}, ranks_from(0, 4)}, {partial()}).value();
  const Layout destination = layout_of({64}, {{4}, ranks_from(4, 4)}, {shard(0)}).value();
  const Choice choice = plan_auto(source, destination, 4, links).value();
  EXPECT_EQ(crossing(choice.plan, links), 64u);
  EXPECT_TRUE(prove(choice.plan).ok());
  EXPECT_THAT(choice.considered[4].refused, HasSubstr("does not add"));
}

TEST(Auto, RefusesRanksBeyondTheLinks) {
  const Links links = links_of({1}, 2, {});
  const Layout source = layout_of({4}, {{1}, {0}}, {shard(0)}).value();
  const Layout destination = layout_of({4}, {{1}, {2}}, {shard(0)}).value();
  EXPECT_THAT(std::string(plan_auto(source, destination, 4, links).status().text()),
              HasSubstr("rank 2 holds a part"));
}

// With many kinds of clusters no strategy is always the fastest.
TEST(Auto, AtLeastThreeStrategiesWinSomewhere) {
  std::set<std::string> winners;
  for (const uint64_t trunk : {20'000'000u, 1'000'000'000u}) {
    for (const uint64_t latency : {1'000u, 5'000'000u}) {
      for (const uint64_t memory : {uint64_t{500'000'000}, uint64_t{20'000'000'000}}) {
        const Links links =
            links_of({2, 2}, 4, {.memory = memory, .trunk = trunk, .latency_ns = latency});
        for (const uint64_t hidden : {1u, 1024u}) {
          for (const uint64_t degree : {1u, 2u, 4u, 8u}) {
            const Layout source =
                activations(8, 64, hidden, {.data = degree, .context = 8 / degree},
                            ranks_from(0, 8))
                    .value();
            const Layout replicas =
                layout_of({8, 64, hidden}, {{8}, ranks_from(0, 8)}, {replicate()}).value();
            const Layout destination =
                activations(8, 64, hidden, {.context = 8}, ranks_from(8, 8)).value();
            const Layout copies =
                layout_of({8, 64, hidden}, {{degree, 8 / degree}, ranks_from(8, 8)},
                          {replicate(), shard(0)})
                    .value();
            for (const Layout* from : {&source, &replicas}) {
              for (const Layout* to : {&destination, &copies}) {
                winners.insert(plan_auto(*from, *to, 2, links).value().plan.strategy);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GE(winners.size(), 3u) << *winners.begin();
}

}  // namespace
}  // namespace hetcomm::reshard
