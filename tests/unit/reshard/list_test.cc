// Plans for lists of tensors, which share the links:
//   * a source with copies is read from all of them, by the load of NICs and not of ranks
//   * no byte crosses the network where a copy is on the receiver's host
//   * holders share long pieces, and the plans are proved
//   * auto is no slower than any one strategy for the whole list, by the forecast of the list
//   * all ranks make the same plans
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/bsr.h"
#include "reshard/mesh.h"
#include "reshard/plans.h"
#include "reshard/proof.h"
#include "tests/unit/reshard/links_of.h"

namespace hetcomm::reshard {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1u << 20;

// A list of tensors that owns its layouts.
class List {
 public:
  void add(Layout source, Layout destination, uint64_t count = 1) {
    layouts_.push_back(std::make_unique<Layout>(std::move(source)));
    layouts_.push_back(std::make_unique<Layout>(std::move(destination)));
    for (uint64_t i = 0; i < count; ++i) {
      tensors_.push_back({layouts_[layouts_.size() - 2].get(), layouts_.back().get(), 4});
    }
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::vector<Choice> plans(const Wishes& wishes) const {
    Result<std::vector<Choice>> choices = make_plans(tensors_, wishes);
    EXPECT_TRUE(choices.ok()) << choices.status().text();
    return choices.ok() ? std::move(choices).value() : std::vector<Choice>();
  }
  Forecast forecast(const Wishes& wishes) const {
    return forecast_of_list(tensors_, plans(wishes), wishes);
  }

 private:
  std::vector<std::unique_ptr<Layout>> layouts_;
  std::vector<Tensor> tensors_;
};

Wishes wishes_for(const Links& links, Strategy strategy = Strategy::kAuto,
                  uint64_t slice_bytes = kMiB) {
  return {.strategy = strategy,
          .bundle_bytes = 8 * slice_bytes,
          .slice_bytes = slice_bytes,
          .links = &links};
}

// Returns the bytes that cross each resource whose name ends with |end|.
std::map<std::string, uint64_t> carried(const Forecast& forecast, const Links& links,
                                        const std::string& end) {
  std::map<std::string, uint64_t> bytes;
  const auto& resources = links.model().resources;
  for (size_t i = 0; i < resources.size(); ++i) {
    if (resources[i].name.ends_with(end)) bytes[resources[i].name] = forecast.resource_bytes[i];
  }
  return bytes;
}

// Expects that the loads of |names| differ by at most |most| bytes.
void expect_even(const std::map<std::string, uint64_t>& loads,
                 const std::vector<std::string>& names, uint64_t most) {
  uint64_t least = UINT64_MAX;
  uint64_t highest = 0;
  for (const std::string& name : names) {
    ASSERT_TRUE(loads.contains(name)) << name;
    least = std::min(least, loads.at(name));
    highest = std::max(highest, loads.at(name));
  }
  EXPECT_LE(highest - least, most) << ::testing::PrintToString(loads);
}

TEST(Lists, SliceCountFollowsTheRequestedSliceSize) {
  EXPECT_EQ(slices_for(kMiB, 1, kMiB), 1U);
  EXPECT_EQ(slices_for(kMiB + 1, 1, kMiB), 2U);
  EXPECT_EQ(slices_for(4096 * kMiB, 1, 4 * kMiB), 1024U);
  EXPECT_EQ(slices_for(4096 * kMiB, 3, 4 * kMiB), 1024U);
  EXPECT_EQ(slices_for(16 * kMiB, 3, 4 * kMiB), 16U) << "several hops overlap by more slices";
  EXPECT_EQ(slices_for(UINT64_MAX, 1, 1), 65'536U);
  EXPECT_EQ(slices_for(kMiB, 1, 1000), 64U) << "short slices are few";
  EXPECT_EQ(slices_for(16 * kMiB, 1, 1000), 256U);
}

// Four replicas of a model, each on its own host, and four engines that take a part each.
TEST(Lists, EveryReplicaSendsAnEqualShare) {
  const Links links = links_of({8}, 1, {});
  for (const bool is_sharded : {false, true}) {
    List list;
    for (int i = 0; i < 64; ++i) {
      const std::vector<uint64_t> shape = {512, 1024};
      list.add(is_sharded
                   ? layout_of(shape, {{2, 2}, ranks_from(0, 4)}, {replicate(), shard(0)}).value()
                   : layout_of(shape, {{4}, ranks_from(0, 4)}, {replicate()}).value(),
               layout_of(shape, {{1}, {4 + i % 4}}, {replicate()}).value());
    }
    for (const Strategy strategy : {Strategy::kAuto, Strategy::kDirect, Strategy::kBsr}) {
      SCOPED_TRACE(name_of(strategy));
      const Forecast forecast = list.forecast(wishes_for(links, strategy));
      expect_even(carried(forecast, links, " out"),
                  {"c0h0 out", "c0h1 out", "c0h2 out", "c0h3 out"}, 2 * kMiB);
    }
  }
}

// The tensors of a layer alternate, so that turns counted over all tensors would meet the same
// copy.
TEST(Lists, AlternatingTensorsUseAllCopies) {
  const Links links = links_of({8}, 1, {});
  for (const bool has_three_short_ones : {false, true}) {
    const int copies = has_three_short_ones ? 4 : 2;
    List list;
    for (int i = 0; i < 64; ++i) {
      const auto add = [&](const std::vector<uint64_t>& shape) {
        Mesh mesh{{static_cast<uint64_t>(copies)}, ranks_from(0, static_cast<uint64_t>(copies))};
        list.add(layout_of(shape, mesh, {replicate()}).value(),
                 layout_of(shape, {{1}, {4 + i % 4}}, {replicate()}).value());
      };
      add({512, 512});
      for (int j = 0; j < (has_three_short_ones ? 3 : 1); ++j) add({512});
    }
    for (const Strategy strategy : {Strategy::kAuto, Strategy::kDirect, Strategy::kBsr}) {
      SCOPED_TRACE(name_of(strategy));
      const auto loads = carried(list.forecast(wishes_for(links, strategy)), links, " out");
      expect_even(loads, {"c0h0 out", "c0h1 out"}, 2 * kMiB);
    }
  }
}

// There are more kinds of tensors than are compared with each other.
TEST(Lists, EachTensorCrossesClustersOnce) {
  const Links links = links_of({4, 8}, 4, {.trunk = 100'000'000});
  List list;
  for (int i = 0; i < 40; ++i) {
    const std::vector<uint64_t> shape = {512, 512};
    list.add(layout_of(shape, {{2}, {i % 16, (i + 1) % 16}}, {shard(0)}).value(),
             layout_of(shape, {{2}, {16 + i % 32, 16 + (i + 1) % 32}}, {shard(0)}).value());
  }
  for (int i = 0; i < 40; ++i) {
    const std::vector<uint64_t> shape = {256, 256};
    list.add(layout_of(shape, {{2}, {i % 16, (i + 1) % 16}}, {shard(0)}).value(),
             layout_of(shape, {{8}, ranks_from(16 + i % 24, 8)}, {replicate()}).value());
  }
  uint64_t all = 0;
  for (const Tensor& tensor : list.tensors()) all += bytes_of(tensor);
  EXPECT_EQ(carried(list.forecast(wishes_for(links)), links, "trunk 01").at("trunk 01"), all);
}

// Each host has a replica and an engine.
TEST(Lists, BytesStayOnTheirHostIfItHasACopy) {
  const Links links = links_of({4}, 2, {});
  for (const int first : {0, 1}) {
    List list;
    for (int i = 0; i < 64; ++i) {
      list.add(layout_of({512, 1024}, {{4}, {0, 2, 4, 6}}, {replicate()}).value(),
               layout_of({512, 1024}, {{1}, {2 * ((i + first) % 4) + 1}}, {replicate()}).value());
    }
    for (const auto& [name, bytes] : carried(list.forecast(wishes_for(links)), links, " out")) {
      EXPECT_EQ(bytes, 0u) << name;
    }
  }
}

// Four of five replicas are behind one NIC.
TEST(Lists, LoadIsBalancedByNicAndNotByRank) {
  const Links links = links_of({14}, 4, {});
  // Ranks 0 to 3 are on the first host, rank 4 on the second.
  std::vector<int> shards;
  for (int host = 2; host < 12; ++host) shards.push_back(4 * host);
  List list;
  list.add(layout_of({1000, 1000}, {{5}, ranks_from(0, 5)}, {replicate()}).value(),
           layout_of({1000, 1000}, {{10}, shards}, {shard(0)}).value());
  const Forecast forecast = list.forecast(wishes_for(links));
  expect_even(carried(forecast, links, " out"), {"c0h0 out", "c0h1 out"}, 0);
}

// All ways cross a slow trunk, so that all transfers would end at the same time.
TEST(Lists, SendersBehindASlowTrunkBalanceTheirNics) {
  const Links links = links_of({2, 1}, 2, {.trunk = 100'000'000});
  // Ranks 0 and 1 are on one host, and rank 2 on another.
  List list;
  for (int i = 0; i < 12; ++i) {
    list.add(layout_of({256, 256}, {{3}, ranks_from(0, 3)}, {replicate()}).value(),
             layout_of({256, 256}, {{1}, {4}}, {replicate()}).value());
  }
  const Forecast forecast = list.forecast(wishes_for(links, Strategy::kBsr));
  expect_even(carried(forecast, links, " out"), {"c0h0 out", "c0h1 out"}, kMiB / 4);
}

// One long tensor, and two replicas of which one has a slow NIC.
TEST(Lists, ReplicasSplitALongPieceByLinkRate) {
  topology::LinkModel model = model_of({3}, {});
  for (topology::LinkResource& resource : model.resources) {
    if (resource.name == "c0h0 out") resource.bytes_per_s /= 4;
    if (resource.name == "c0h2 in") resource.bytes_per_s *= 8;
  }
  const Links links = Links::create(model, {{"c0h0", ""}, {"c0h1", ""}, {"c0h2", ""}}).value();
  List list;
  list.add(layout_of({1024, 1024, 10}, {{2}, {0, 1}}, {replicate()}).value(),
           layout_of({1024, 1024, 10}, {{1}, {2}}, {replicate()}).value());
  const std::vector<Choice> choices = list.plans(wishes_for(links));
  EXPECT_TRUE(prove(choices[0].plan).ok()) << prove(choices[0].plan).text();
  EXPECT_EQ(choices[0].plan.hops[0].moves.size(), 2u);  // one box of each
  EXPECT_EQ(choices[0].plan.cuts.size(), 1u);
  const auto loads = carried(choices[0].forecast, links, " out");
  EXPECT_NEAR(static_cast<double>(loads.at("c0h0 out")), 8.0 * kMiB, kMiB);
  EXPECT_NEAR(static_cast<double>(loads.at("c0h1 out")), 32.0 * kMiB, kMiB);
}

TEST(Lists, ShortPiecesAreNotSplit) {
  const Links links = links_of({3}, 1, {});
  List list;
  list.add(layout_of({1024, 256}, {{2}, {0, 1}}, {replicate()}).value(),
           layout_of({1024, 256}, {{1}, {2}}, {replicate()}).value());
  const std::vector<Choice> choices = list.plans(wishes_for(links));
  EXPECT_EQ(choices[0].plan.hops[0].moves.size(), 1u);
  EXPECT_TRUE(choices[0].plan.cuts.empty());
}

// The largest tensor alone goes quickest by another strategy than the many others together.
TEST(Lists, StrategyIsChosenForTheWholeList) {
  const Links links = links_of({1, 1}, 4, {.trunk = 100'000'000});
  List list;
  // One sender and one receiver: no strategy is better than direct.
  list.add(layout_of({1024, 1024}, {{1}, {0}}, {replicate()}).value(),
           layout_of({1024, 1024}, {{1}, {4}}, {replicate()}).value());
  // Four receivers of the same data: one copy should cross the trunk.
  list.add(layout_of({1000, 1024}, {{1}, {0}}, {replicate()}).value(),
           layout_of({1000, 1024}, {{4}, ranks_from(4, 4)}, {replicate()}).value(), 20);
  const std::vector<Choice> choices = list.plans(wishes_for(links));
  EXPECT_THAT(choices[1].plan.strategy, AnyOf("leader", "sendrecv_allgather"));
  ASSERT_EQ(choices[0].considered.size(), 5u);
  EXPECT_THAT(choices[0].considered[0].refused, HasSubstr("tensor 1: it sends 4.00 copies"));
}

TEST(Lists, EmptyTensorsKeepTheirIndexAndErrorsNameIt) {
  const Links links = links_of({4}, 1, {});
  const Layout empty = layout_of({0, 4}, {{1}, {0}}, {replicate()}).value();
  const Layout one = layout_of({8, 4}, {{1}, {0}}, {replicate()}).value();
  const Layout other = layout_of({8, 4}, {{1}, {1}}, {replicate()}).value();
  const Layout longer = layout_of({9, 4}, {{1}, {1}}, {replicate()}).value();
  const Layout sum = layout_of({8, 4}, {{2}, {0, 1}}, {partial()}).value();
  List list;
  list.add(empty, empty);
  list.add(one, other);
  list.add(empty, empty);
  const std::vector<Choice> choices = list.plans(wishes_for(links));
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_TRUE(choices[0].plan.hops[0].moves.empty());
  EXPECT_EQ(choices[1].plan.hops[0].moves.size(), 1u);
  list.add(one, longer);
  EXPECT_THAT(std::string(make_plans(list.tensors(), wishes_for(links)).status().text()),
              HasSubstr("tensor 3: source and destination are layouts"));
  List sums;
  sums.add(one, other);
  sums.add(other, sum);
  EXPECT_THAT(std::string(make_plans(sums.tensors(), wishes_for(links)).status().text()),
              HasSubstr("tensor 1: "));
  List beyond;
  beyond.add(one, other);
  beyond.add(one, layout_of({8, 4}, {{1}, {9}}, {replicate()}).value());
  EXPECT_THAT(std::string(make_plans(beyond.tensors(), wishes_for(links)).status().text()),
              HasSubstr("tensor 1: "));
}

// --- random lists -----------------------------------------------------------------------------

class RandomLists : public ::testing::Test {
 protected:
  uint64_t draw(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random_);
  }
  Layout layout(const std::vector<uint64_t>& shape, int first, int last) {
    for (;;) {
      Mesh mesh;
      std::vector<Placement> placements;
      uint64_t ranks = 1;
      for (uint64_t axes = draw(1, 2); axes > 0; --axes) {
        mesh.axes.push_back(draw(1, 4));
        ranks *= mesh.axes.back();
        placements.push_back(draw(0, 1) == 0 ? replicate() : shard(draw(0, shape.size() - 1)));
      }
      const auto room = static_cast<uint64_t>(last - first);
      if (ranks > room) continue;
      mesh.ranks = ranks_from(first + static_cast<int>(draw(0, room - ranks)), ranks);
      return layout_of(shape, mesh, placements, Uneven::kCeil).value();
    }
  }
  // Returns links with unequal NICs, in one or two clusters.
  Links links(int hosts, int each) {
    const bool has_trunk = draw(0, 1) == 0;
    topology::LinkModel model =
        has_trunk ? model_of({hosts / 2, hosts - hosts / 2}, {.trunk = draw(1, 40) * 50'000'000})
                  : model_of({hosts}, {});
    for (topology::LinkResource& resource : model.resources) {
      if (resource.kind == topology::ResourceKind::kNic) {
        resource.bytes_per_s = draw(1, 8) * 250'000'000;
      }
    }
    std::vector<RankEnd> ends;
    for (const topology::LinkHost& host : model.hosts) {
      for (int i = 0; i < each; ++i) ends.push_back({host.label, ""});
    }
    return Links::create(model, ends).value();
  }
  List list(int ranks) {
    List made;
    for (uint64_t kinds = draw(1, 5); kinds > 0; --kinds) {
      const std::vector<uint64_t> shape = {draw(1, 64) * 8, draw(1, 8) * 128};
      Layout source = layout(shape, 0, ranks / 2 + 2);
      made.add(std::move(source), layout(shape, ranks / 2, ranks), draw(1, 6));
    }
    return made;
  }

  std::mt19937 random_{7};
};

TEST_F(RandomLists, AutoIsAboutAsFastAsTheBestSingleStrategy) {
  const int runs = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 2000 : 60;
  int slower = 0;
  for (int run = 0; run < runs; ++run) {
    SCOPED_TRACE(run);
    const Links links = this->links(8, 2);
    const List list = this->list(16);
    const Wishes wishes = wishes_for(links, Strategy::kAuto, 64u << 10);
    const std::vector<Choice> choices = list.plans(wishes);
    const uint64_t own = forecast_of_list(list.tensors(), choices, wishes).ns;
    for (const Choice& choice : choices) {
      ASSERT_TRUE(prove(choice.plan).ok()) << prove(choice.plan).text();
    }
    uint64_t best = UINT64_MAX;
    for (const Considered& each : choices[0].considered) {
      if (!each.refused.empty()) continue;
      const Wishes with = wishes_for(links, *strategy_named(each.strategy), 64u << 10);
      // A strategy may refuse some sizes of a kind.
      const Result<std::vector<Choice>> plans = make_plans(list.tensors(), with);
      if (plans.ok()) {
        best = std::min(best, forecast_of_list(list.tensors(), plans.value(), with).ns);
      }
    }
    // The loads of some tensors of a kind stand for all of them.
    if (best != UINT64_MAX && own > best + best / 20) {
      ++slower;
      ADD_FAILURE() << own << " for " << best << ", " << choices[0].plan.strategy;
    }
  }
  EXPECT_EQ(slower, 0) << "of " << runs;
}

TEST_F(RandomLists, EachRankComputesItsPartOfTheSamePlans) {
  for (int run = 0; run < 10; ++run) {
    const Links links = this->links(8, 2);
    const List list = this->list(16);
    const Wishes wishes = wishes_for(links, Strategy::kAuto, 64u << 10);
    const std::vector<Choice> whole = list.plans(wishes);
    for (const int rank : {0, 7, 9, 15}) {
      const std::vector<Choice> own = make_plans(list.tensors(), wishes, rank).value();
      ASSERT_EQ(own.size(), whole.size());
      for (size_t i = 0; i < own.size(); ++i) {
        ASSERT_EQ(own[i].plan.strategy, whole[i].plan.strategy);
        ASSERT_EQ(own[i].plan.cuts, whole[i].plan.cuts);
        for (size_t hop = 0; hop < own[i].plan.hops.size(); ++hop) {
          const Layout& from = whole[i].plan.from(hop);
          const Hop& all = whole[i].plan.hops[hop];
          std::vector<Move> expected;
          std::copy_if(all.moves.begin(), all.moves.end(), std::back_inserter(expected),
                       [&](const Move& move) {
                         return from.parts[move.from].rank == rank ||
                                all.to.parts[move.to].rank == rank;
                       });
          ASSERT_EQ(own[i].plan.hops[hop].moves, expected) << i << " " << hop;
        }
      }
    }
  }
}

// Copies of one tensor on hosts with equal NICs, some with several ranks.
TEST_F(RandomLists, LoadsOfNicsWithACopyDifferByAboutOneSlice) {
  constexpr uint64_t kSlice = 64u << 10;
  for (int run = 0; run < 50; ++run) {
    const Links links = links_of({8}, 2, {});
    const int copies = static_cast<int>(draw(2, 6));
    std::vector<int> holders = ranks_from(0, 8);
    std::shuffle(holders.begin(), holders.end(), random_);
    holders.resize(static_cast<size_t>(copies));
    std::set<std::string> names;
    for (const int rank : holders) names.insert("c0h" + std::to_string(rank / 2) + " out");
    List list;
    uint64_t bytes = 0;
    while (bytes < 4 * kSlice) {
      const std::vector<uint64_t> shape = {draw(1, 2000), draw(1, 300)};
      list.add(layout_of(shape, {{holders.size()}, holders}, {replicate()}).value(),
               layout(shape, 8, 16));
      bytes += shape[0] * shape[1] * 4;
    }
    const Forecast forecast = list.forecast(wishes_for(links, Strategy::kBsr, kSlice));
    expect_even(carried(forecast, links, " out"), {names.begin(), names.end()},
                kSlice + kSlice / 8);
  }
}

}  // namespace
}  // namespace hetcomm::reshard
