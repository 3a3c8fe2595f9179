// Sums of gradients over ranks:
//   * for layouts that are drawn, with terms, copies and cuts of their own in several stages, every
//     rank ends with the sum of all terms of all holders, and ranks of a set agree about its order
//   * the sets and pieces of layouts that are known by hand
//   * what ranks say differently, or leave out, is refused with its rank, item and tensor
#include "pipeline/execute/sum_plan.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/layout.h"
#include "reshard/mesh.h"

namespace hetcomm::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ranks = std::vector<uint32_t>;

// Adds what the ranks of |mesh| hold of a tensor.
void add(std::vector<std::vector<HeldGradient>>& held, uint32_t item, uint32_t index,
         uint32_t holder, const std::vector<uint64_t>& shape, const reshard::Mesh& mesh,
         const std::vector<reshard::Placement>& placements) {
  auto layout = reshard::layout_of(shape, mesh, placements);
  ASSERT_TRUE(layout.ok()) << layout.status().text();
  for (const auto& part : layout->parts) {
    auto& of_rank = held[static_cast<size_t>(part.rank)];
    auto found = std::find_if(of_rank.begin(), of_rank.end(), [&](const HeldGradient& each) {
      return each.item == item && each.index == index;
    });
    if (found == of_rank.end()) {
      of_rank.push_back({.item = item,
                         .index = index,
                         .holder = holder,
                         .type = 13,
                         .terms = layout->terms,
                         .shape = shape});
      found = of_rank.end() - 1;
    }
    found->parts.push_back({.box = part.box,
                            .copy = part.copy,
                            .term = part.term,
                            .offset = part.offset,
                            .strides = part.strides});
  }
}

reshard::Mesh mesh_of(std::vector<uint64_t> axes, std::vector<int> ranks) {
  return {.axes = std::move(axes), .ranks = std::move(ranks)};
}

// Calls use(index in the whole tensor, place in memory) for the elements of a piece.
template <typename Use>
void for_each_element(const std::vector<uint64_t>& shape, const reshard::Box& box, uint64_t offset,
                      const reshard::Numbers& strides, Use&& use) {
  for (uint64_t i = 0; i < box.elements(); ++i) {
    uint64_t rest = i;
    uint64_t whole = 0;
    uint64_t own = offset;
    uint64_t scale = 1;
    for (size_t d = shape.size(); d > 0; --d) {
      const uint64_t at = rest % box.extent(d - 1);
      rest /= box.extent(d - 1);
      whole += (box.begin[d - 1] + at) * scale;
      own += at * strides[d - 1];
      scale *= shape[d - 1];
    }
    use(whole, own);
  }
}

// Performs the sums of all ranks. What each term has of an element is drawn, alike in all copies.
class Played {
 public:
  explicit Played(const std::vector<std::vector<HeldGradient>>& held) : held_(held) {
    for (uint32_t rank = 0; rank < held.size(); ++rank) {
      auto plan = plan_sums(held, rank);
      EXPECT_TRUE(plan.ok()) << plan.status().text();
      if (!plan.ok()) return;
      plans_.push_back(std::move(plan).value());
      auto& memory = memory_.emplace_back();
      for (const HeldGradient& each : held[rank]) {
        auto& own = memory.emplace_back();
        for_each_place(each, [&](uint64_t whole, uint64_t place, uint32_t term) {
          own[place] = value(each, term, whole);
        });
      }
    }
  }

  void run() {
    auto results = memory_;
    std::map<std::pair<Ranks, size_t>, std::map<uint64_t, uint64_t>> sums;  // by set and turn
    std::vector<std::map<Ranks, size_t>> turns(plans_.size());
    // First all add, and then all read: the ranks of a set have the same pieces in each turn.
    for (const bool reads : {false, true}) {
      for (auto& each : turns) each.clear();
      for (size_t rank = 0; rank < plans_.size(); ++rank) {
        EXPECT_EQ(plans_[rank].sets, plans_[0].sets);
        for (const SumBucket& bucket : plans_[rank].buckets) {
          const Ranks& set = plans_[rank].sets[bucket.set];
          auto& sum = sums[{set, turns[rank][set]++}];
          uint64_t at = 0;
          for (const SumPiece& piece : bucket.pieces) {
            const HeldGradient& gradient = held_[rank][piece.gradient];
            EXPECT_EQ(gradient.item, bucket.item);
            for_each_element(gradient.shape, piece.box, piece.offset, piece.strides,
                             [&](uint64_t, uint64_t place) {
                               if (!reads) {
                                 sum[at++] += memory_[rank][piece.gradient].at(place);
                               } else if (piece.keeps_result) {
                                 results[rank][piece.gradient].at(place) = sum.at(at++);
                               } else {
                                 ++at;
                               }
                             });
          }
          EXPECT_EQ(at, bucket.elements);
        }
      }
    }
    for (size_t rank = 0; rank < held_.size(); ++rank) {
      for (size_t i = 0; i < held_[rank].size(); ++i) {
        for_each_place(held_[rank][i], [&](uint64_t whole, uint64_t place, uint32_t) {
          ASSERT_EQ(results[rank][i].at(place), expected(held_[rank][i], whole))
              << "rank " << rank << ", gradient " << i << ", element " << whole;
        });
      }
    }
  }

 private:
  template <typename Use>
  static void for_each_place(const HeldGradient& gradient, Use&& use) {
    for (const GradientPart& part : gradient.parts) {
      for_each_element(gradient.shape, part.box, part.offset, part.strides,
                       [&](uint64_t whole, uint64_t place) { use(whole, place, part.term); });
    }
  }
  static uint64_t value(const HeldGradient& gradient, uint32_t term, uint64_t whole) {
    return (gradient.holder * 31 + term * 7 + gradient.index * 3 + 1) * 1'000'003 + whole * whole;
  }
  uint64_t expected(const HeldGradient& gradient, uint64_t whole) const {
    std::set<std::pair<uint32_t, uint32_t>> terms;
    for (const auto& of_rank : held_) {
      for (const HeldGradient& each : of_rank) {
        if (each.item != gradient.item || each.index != gradient.index) continue;
        for (const GradientPart& part : each.parts) terms.insert({each.holder, part.term});
      }
    }
    uint64_t sum = 0;
    for (const auto& [holder, term] : terms) {
      HeldGradient of = gradient;
      of.holder = holder;
      sum += value(of, term, whole);
    }
    return sum;
  }

  const std::vector<std::vector<HeldGradient>>& held_;
  std::vector<SumPlan> plans_;
  std::vector<std::vector<std::map<uint64_t, uint64_t>>> memory_;  // by rank and gradient
};

TEST(SumPlan, DataParallelRanksSumTheirShards) {
  std::vector<std::vector<HeldGradient>> held(4);
  // Two ranks along the tensor degree cut it, two along the data degree are terms.
  add(held, 3, 0, 0, {8, 2}, mesh_of({2, 2}, {0, 1, 2, 3}),
      {reshard::partial(), reshard::shard(0)});
  const SumPlan plan = plan_sums(held, 2).value();
  EXPECT_THAT(plan.sets, ElementsAre(Ranks{0, 2}, Ranks{1, 3}));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].set, 0u);
  EXPECT_EQ(plan.buckets[0].elements, 8u);
  EXPECT_EQ(plan.buckets[0].pieces[0].offset, 0u);
  Played(held).run();
}

// A stage that cuts a tensor in halves, and one of another pipeline that does not.
TEST(SumPlan, StagesMayShardATensorDifferently) {
  std::vector<std::vector<HeldGradient>> held(3);
  add(held, 0, 0, 0, {8}, mesh_of({2}, {0, 1}), {reshard::shard(0)});
  add(held, 0, 0, 1, {8}, mesh_of({1}, {2}), {reshard::replicate()});
  const SumPlan plan = plan_sums(held, 2).value();
  EXPECT_THAT(plan.sets, ElementsAre(Ranks{0, 2}, Ranks{1, 2}));
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[1].pieces[0].offset, 4u);
  Played(held).run();
}

// One rank serves both copies of the other stage, and keeps one result.
TEST(SumPlan, EachCopyIsSummedInItsOwnSet) {
  std::vector<std::vector<HeldGradient>> held(3);
  add(held, 0, 0, 0, {8}, mesh_of({2}, {0, 1}), {reshard::replicate()});
  add(held, 0, 0, 1, {8}, mesh_of({1}, {2}), {reshard::replicate()});
  const SumPlan plan = plan_sums(held, 2).value();
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_TRUE(plan.buckets[0].pieces[0].keeps_result);
  EXPECT_FALSE(plan.buckets[1].pieces[0].keeps_result);
  Played(held).run();
}

TEST(SumPlan, GradientWithOneTermIsNotSummed) {
  std::vector<std::vector<HeldGradient>> held(3);
  add(held, 0, 0, 0, {8}, mesh_of({1}, {0}), {reshard::replicate()});
  add(held, 1, 0, 1, {8}, mesh_of({2}, {1, 2}), {reshard::replicate()});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const SumPlan plan = plan_sums(held, rank).value();
    EXPECT_TRUE(plan.sets.empty());
    EXPECT_TRUE(plan.buckets.empty());
  }
}

TEST(SumPlan, LastItemsAreSummedFirst) {
  std::vector<std::vector<HeldGradient>> held(2);
  for (const uint32_t item : {2u, 0u, 1u}) {
    add(held, item, 0, 0, {4}, mesh_of({2}, {0, 1}), {reshard::partial()});
  }
  const SumPlan plan = plan_sums(held, 0).value();
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].item, 2u);
  EXPECT_EQ(plan.buckets[2].item, 0u);
}

TEST(SumPlan, RandomLayoutsGiveTheSumsOfAllTerms) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto number = [&](uint32_t from, uint32_t to) {
      return from + static_cast<uint32_t>(random() % (to - from + 1));
    };
    std::vector<std::vector<HeldGradient>> held;
    const uint32_t holders = number(1, 3);
    std::vector<reshard::Mesh> meshes;
    for (uint32_t holder = 0; holder < holders; ++holder) {
      const std::vector<uint64_t> axes = {number(1, 3), number(1, 3)};
      std::vector<int> ranks;
      for (uint64_t i = 0; i < axes[0] * axes[1]; ++i) {
        ranks.push_back(static_cast<int>(held.size()));
        held.emplace_back();
      }
      std::shuffle(ranks.begin(), ranks.end(), random);
      meshes.push_back(mesh_of(axes, ranks));
    }
    for (uint32_t item = 0; item < 3; ++item) {
      for (uint32_t index = 0; index < number(1, 2); ++index) {
        const std::vector<uint64_t> shape = {6 * number(1, 2), 6};
        for (uint32_t holder = 0; holder < holders; ++holder) {
          const auto placement = [&]() -> reshard::Placement {
            const uint32_t kind = number(0, 3);
            if (kind == 0) return reshard::replicate();
            return kind == 1 ? reshard::partial() : reshard::shard(kind - 2);
          };
          reshard::Placement first = placement();
          reshard::Placement second = placement();
          using Kind = reshard::Placement::Kind;
          const bool cuts_twice = first.kind == Kind::kShard && second.kind == Kind::kShard &&
                                  first.dimension == second.dimension;
          if (cuts_twice) second = reshard::replicate();
          add(held, item, index, holder, shape, meshes[holder], {first, second});
        }
      }
    }
    Played(held).run();
    if (HasFailure()) return;
  }
}

TEST(SumPlan, RanksThatDisagreeAreRefused) {
  std::vector<std::vector<HeldGradient>> held(2);
  add(held, 5, 1, 0, {4}, mesh_of({2}, {0, 1}), {reshard::partial()});
  auto other = held;
  other[1][0].shape = {5};
  EXPECT_THAT(std::string(plan_sums(other, 0).status().text()),
              HasSubstr("gradient 1 of item 5: rank 1 has another shape or type"));
  other = held;
  other[1][0].type = 14;
  EXPECT_FALSE(plan_sums(other, 0).ok());
  // A rank of the layout that gives nothing.
  held.clear();
  held.resize(2);
  add(held, 5, 1, 0, {4}, mesh_of({2}, {0, 1}), {reshard::shard(0)});
  held[1].clear();
  EXPECT_THAT(std::string(plan_sums(held, 0).status().text()),
              HasSubstr("hold 2 of its 4 elements"));
}

// Layouts that have as many elements as the tensor, and still are not those of one stage.
TEST(SumPlan, LayoutsThatDifferBetweenRanksAreRefused) {
  std::vector<std::vector<HeldGradient>> partial(2);
  std::vector<std::vector<HeldGradient>> copies(2);
  std::vector<std::vector<HeldGradient>> shards(2);
  std::vector<std::vector<HeldGradient>> swapped(2);
  add(partial, 0, 0, 0, {4}, mesh_of({2}, {0, 1}), {reshard::partial()});
  add(copies, 0, 0, 0, {4}, mesh_of({2}, {0, 1}), {reshard::replicate()});
  add(shards, 0, 0, 0, {4}, mesh_of({2}, {0, 1}), {reshard::shard(0)});
  add(swapped, 0, 0, 0, {4}, mesh_of({2}, {1, 0}), {reshard::shard(0)});
  EXPECT_THAT(std::string(plan_sums({partial[0], copies[1]}, 0).status().text()),
              HasSubstr("rank 1 has it in 1 terms, and another rank of its stage in 2"));
  EXPECT_THAT(std::string(plan_sums({shards[0], swapped[1]}, 0).status().text()),
              HasSubstr("ranks 0 and 1 both hold copy 0"));
  EXPECT_FALSE(plan_sums({copies[0], shards[1]}, 0).ok());
}

// Such a rank would add a part of the result again, if it formed one sum in its place.
TEST(SumPlan, RankInSeveralSetsOfAPieceIsMarked) {
  std::vector<std::vector<HeldGradient>> held(3);
  add(held, 0, 0, 0, {1 << 17}, mesh_of({2}, {0, 1}), {reshard::replicate()});
  add(held, 0, 0, 1, {1 << 17}, mesh_of({1}, {2}), {reshard::replicate()});
  EXPECT_TRUE(plan_sums(held, 0)->buckets[0].pieces[0].is_in_one_set);
  const SumPlan both = plan_sums(held, 2).value();
  EXPECT_EQ(both.buckets.size(), 2u);
  for (const SumBucket& each : both.buckets) EXPECT_FALSE(each.pieces[0].is_in_one_set);
}

TEST(SumPlan, LargePiecesHaveBucketsOfTheirOwn) {
  std::vector<std::vector<HeldGradient>> held(2);
  for (uint32_t index = 0; index < 4; ++index) {
    add(held, 0, index, 0, {index % 2 == 0 ? 1u << 17 : 4u}, mesh_of({2}, {0, 1}),
        {reshard::partial()});
  }
  const SumPlan plan = plan_sums(held, 0).value();
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].pieces.size(), 2u);
  EXPECT_EQ(plan.buckets[1].elements, 1u << 17);
  EXPECT_EQ(plan.buckets[2].elements, 1u << 17);
}

TEST(SumPlan, RankWithSeveralTermsIsRefused) {
  std::vector<std::vector<HeldGradient>> held(1);
  add(held, 0, 0, 0, {4}, mesh_of({1}, {0}), {reshard::replicate()});
  held[0][0].parts.push_back(held[0][0].parts[0]);
  held[0][0].parts[1].term = 1;
  held[0][0].terms = 2;
  EXPECT_THAT(std::string(plan_sums(held, 0).status().text()),
              HasSubstr("rank 0 holds several terms"));
}

TEST(SumPlan, TooManyPiecesAreRefused) {
  std::vector<std::vector<HeldGradient>> held(2);
  const std::vector<uint64_t> shape = {4096, 4096};
  HeldGradient gradient{.item = 0, .index = 0, .holder = 0, .type = 13, .shape = shape};
  for (uint64_t i = 0; i < 2048; ++i) {
    GradientPart part;
    part.box = reshard::whole_of(shape);
    part.box.begin = {2 * i, 2 * i};
    part.box.end = {2 * i + 2, 2 * i + 2};
    part.copy = 1;
    gradient.parts.push_back(part);
  }
  GradientPart whole;
  whole.box = reshard::whole_of(shape);
  held[0].push_back(gradient);
  gradient.parts = {whole};
  held[1].push_back(gradient);
  EXPECT_EQ(plan_sums(held, 0).status().code(), Code::kOutOfRange);
}

}  // namespace
}  // namespace hetcomm::pipeline
