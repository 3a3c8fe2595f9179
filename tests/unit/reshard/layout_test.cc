// Layouts:
//    - check() names the faults: holes, overlaps, boxes outside, strides that map elements to one
//      place;
//    - meshes agree with PyTorch's placements, and degrees with HetAuto's section 5.2;
//    - after a loss of ranks the remaining ranks hold what they held, and copies replace the lost
//      parts, checked by brute force over random cuts; elements without a holder are named;
//    - every element in a rank's memory is one element of the tensor, checked by brute force over
//      random meshes.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/mesh.h"
#include "reshard/survivors.h"

namespace hetcomm::reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> up_to(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Box box_of(const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
  Box box;
  for (const auto& [begin, end] : ranges) {
    box.begin[box.dimensions] = begin;
    box.end[box.dimensions++] = end;
  }
  return box;
}

Part part_of(int rank, const Box& box, uint32_t copy = 0) {
  Part part;
  part.rank = rank;
  part.box = box;
  part.copy = copy;
  part.strides = dense_strides(box);
  return part;
}

// Returns the text that describes the fault, or an empty string.
std::string fault(const Layout& layout) {
  const Status status = check(layout);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return std::string(status.text());
}

template <typename T>
std::string fault(const Result<T>& result) {
  return result.ok() ? "" : std::string(result.status().text());
}

// Returns the boxes of |rank| as text.
std::vector<std::string> boxes(const Layout& layout, int rank) {
  std::vector<std::string> texts;
  for (const Part& part : layout.parts) {
    if (part.rank == rank) texts.push_back(to_text(part.box));
  }
  return texts;
}

TEST(Layout, LayoutThatHoldsEveryElementIsValid) {
  Layout layout;
  layout.shape = {4, 6};
  layout.parts = {part_of(0, box_of({{0, 4}, {0, 2}})), part_of(1, box_of({{0, 1}, {2, 6}})),
                  part_of(2, box_of({{1, 4}, {2, 6}}))};
  EXPECT_EQ(fault(layout), "");
  layout.parts.push_back(part_of(3, box_of({{0, 4}, {0, 6}}), 1));
  EXPECT_EQ(fault(layout), "");
  // A part from another copy suffices.
  layout.parts.push_back(part_of(4, box_of({{0, 2}, {0, 6}}), 2));
  EXPECT_EQ(fault(layout), "");
}

TEST(Layout, ErrorNamesTheFault) {
  Layout layout;
  EXPECT_THAT(fault(layout), HasSubstr("0 dimensions"));
  layout.shape = {4, 6};
  EXPECT_THAT(fault(layout), HasSubstr("no rank holds [0:4, 0:6]"));
  layout.parts = {part_of(0, box_of({{0, 4}, {0, 2}})), part_of(1, box_of({{0, 1}, {2, 6}}))};
  EXPECT_THAT(fault(layout), HasSubstr("no rank holds [1:4, 2:6]"));
  layout.parts.push_back(part_of(2, box_of({{1, 4}, {1, 6}})));
  EXPECT_THAT(fault(layout), HasSubstr("rank 2, box [1:4, 1:6] overlaps rank 0, box [0:4, 0:2]"));
  layout.parts.edit().back() = part_of(2, box_of({{1, 4}, {2, 7}}));
  EXPECT_THAT(fault(layout), HasSubstr("rank 2, box [1:4, 2:7]: the box is not inside"));
  layout.parts.edit().back() = part_of(2, box_of({{1, 4}, {2, 2}}));
  EXPECT_THAT(fault(layout), HasSubstr("is empty"));
  layout.parts.edit().back() = part_of(-1, box_of({{1, 4}, {2, 6}}));
  EXPECT_THAT(fault(layout), HasSubstr("ranks start at 0"));
  layout.parts.edit().back() = part_of(2, box_of({{1, 4}}));
  EXPECT_THAT(fault(layout), HasSubstr("1 dimensions, the tensor 2"));
  layout.parts.edit().back() = part_of(2, box_of({{1, 4}, {2, 6}}));
  layout.parts.push_back(part_of(2, box_of({{3, 4}, {0, 3}}), 1));
  EXPECT_THAT(fault(layout), HasSubstr("rank 2 holds [3:4, 2:3] twice"));
  layout.parts.edit().pop_back();
  layout.parts.edit().back().term = 1;
  EXPECT_THAT(fault(layout), HasSubstr("term 1 of a sum of 1"));
  layout.terms = 2;
  EXPECT_THAT(fault(layout), HasSubstr("term 0 of the sum: no rank holds [1:4, 2:6]"));
  layout.terms = 3;
  EXPECT_THAT(fault(layout), HasSubstr("no rank holds term 2"));
  layout.shape = {uint64_t{1} << 40, uint64_t{1} << 40};
  EXPECT_THAT(fault(layout), HasSubstr("more than 2^48"));
}

TEST(Layout, LayoutOfAnEmptyTensorIsValid) {
  Layout layout;
  layout.shape = {4, 0};
  EXPECT_EQ(fault(layout), "");
  layout.parts = {part_of(0, box_of({{0, 4}, {0, 0}})), part_of(1, box_of({{2, 2}, {0, 0}}))};
  EXPECT_EQ(fault(layout), "");
  EXPECT_EQ(elements_needed(layout, 0), 0u);
  layout.parts = {part_of(0, box_of({{0, 4}, {0, 1}}))};
  EXPECT_THAT(fault(layout), HasSubstr("is not inside"));
  layout.shape = {4, 3};
  layout.parts = {part_of(0, box_of({{0, 4}, {0, 0}}))};
  EXPECT_THAT(fault(layout), HasSubstr("is empty"));
  Result<Layout> made = layout_of({4, 0}, {{2, 2}, up_to(4)}, {shard(0), partial()}, Uneven::kCeil);
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_TRUE(made->parts.empty());
}

TEST(Layout, StridesThatMapTwoElementsToOneAddressAreRefused) {
  Layout layout;
  layout.shape = {4, 6};
  layout.parts = {part_of(0, layout.whole())};
  const auto with = [&](uint64_t first, uint64_t second) {
    layout.parts.edit()[0].strides = {first, second};
    return fault(layout);
  };
  EXPECT_EQ(with(6, 1), "");
  EXPECT_EQ(with(1, 4), "");
  EXPECT_EQ(with(100, 3), "");
  EXPECT_EQ(with(7, 2), "");  // interleaved
  EXPECT_THAT(with(5, 1), HasSubstr("strides [5, 1] several elements would lie at one place"));
  EXPECT_THAT(with(6, 0), HasSubstr("one place"));
  EXPECT_THAT(with(uint64_t{1} << 60, 1), HasSubstr("one place"));
  // Neither stride is a multiple of the other's reach.
  layout.shape = {3, 2};
  layout.parts = {part_of(0, layout.whole())};
  EXPECT_EQ(with(2, 3), "");
  // A dimension of one element needs no stride.
  layout.shape = {1, 6};
  layout.parts = {part_of(0, layout.whole())};
  EXPECT_EQ(with(0, 1), "");
}

TEST(Layout, PaddingNeedsNoHolder) {
  Layout layout;
  layout.shape = {10, 2};
  layout.padded_shape = {12, 2};
  layout.parts = {part_of(0, box_of({{0, 4}, {0, 2}})), part_of(1, box_of({{4, 8}, {0, 2}})),
                  part_of(2, box_of({{8, 12}, {0, 2}}))};
  EXPECT_EQ(fault(layout), "");
  EXPECT_EQ(to_text(clip(layout, layout.parts[2])), "[8:10, 0:2]");
  layout.parts.edit()[2].box.end[0] = 13;
  EXPECT_THAT(fault(layout), HasSubstr("not inside of the shape [12, 2]"));
  layout.padded_shape = {9, 2};
  EXPECT_THAT(fault(layout), HasSubstr("10 elements, 9 with padding"));
}

TEST(Layout, PrintsAsATable) {
  Result<Layout> layout = layout_of({4, 6}, {{2}, {0, 1}}, {shard(1)}, Uneven::kRefuse,
                                    {.offset = 2, .strides = {10, 1}});
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(to_table(*layout),
            "shape [4, 6]\n"
            "  rank  box                               memory\n"
            "     0  [0:4, 0:3]                        offset 2, strides [10, 1]\n"
            "     1  [0:4, 3:6]                        offset 2, strides [10, 1]\n");
}

TEST(Mesh, ShardsLikeDTensor) {
  const Layout layout = layout_of({8, 6}, {{2, 2}, {0, 1, 2, 3}}, {shard(0), shard(0)}).value();
  EXPECT_THAT(boxes(layout, 2), ElementsAre("[4:6, 0:6]"));
  const Layout replicas =
      layout_of({8, 6}, {{2, 2}, {5, 7, 3, 1}}, {replicate(), shard(1)}).value();
  EXPECT_THAT(boxes(replicas, 1), ElementsAre("[0:8, 3:6]"));
  EXPECT_THAT(boxes(replicas, 7), ElementsAre("[0:8, 3:6]"));
  // torch.chunk: pieces of 3, 3, 3, 1.
  const Layout uneven = layout_of({10}, {{4}, up_to(4)}, {shard(0)}, Uneven::kCeil).value();
  EXPECT_THAT(boxes(uneven, 3), ElementsAre("[9:10]"));
  // With 5 elements in 4 pieces of 2 the last rank has none.
  const Layout few = layout_of({5}, {{4}, up_to(4)}, {shard(0)}, Uneven::kCeil).value();
  EXPECT_THAT(boxes(few, 2), ElementsAre("[4:5]"));
  EXPECT_TRUE(boxes(few, 3).empty());
}

// FSDP over tensor parallelism: the tensor axis cuts first, although it is the last one.
TEST(Mesh, StridedShardsAreCutAfterLaterAxes) {
  const Layout layout =
      layout_of({16}, {{2, 4}, up_to(8)}, {strided_shard(0, 4), shard(0)}).value();
  for (int rank = 0; rank < 8; ++rank) {
    const int data = rank / 4;
    const int tensor = rank % 4;
    EXPECT_THAT(boxes(layout, rank),
                ElementsAre(to_text(box_of({{static_cast<uint64_t>(4 * tensor + 2 * data),
                                             static_cast<uint64_t>(4 * tensor + 2 * data + 2)}}))))
        << rank;
  }
}

TEST(Mesh, ZigzagGivesEachRankTwoPieces) {
  const Layout layout = layout_of({16, 2}, {{4}, up_to(4)}, {zigzag(0)}).value();
  EXPECT_THAT(boxes(layout, 1), ElementsAre("[2:4, 0:2]", "[12:14, 0:2]"));
  // Both are consecutive in its memory.
  EXPECT_EQ(layout.parts[2].offset, 0u);
  EXPECT_EQ(layout.parts[3].offset, 4u);
  EXPECT_THAT(boxes(layout, 3), ElementsAre("[6:10, 0:2]"));  // the two boxes touch
}

TEST(Mesh, ShardSizesMayDiffer) {
  const Layout layout = layout_of({10}, {{3}, up_to(3)}, {shard(0, {5, 0, 5})}).value();
  EXPECT_THAT(boxes(layout, 0), ElementsAre("[0:5]"));
  EXPECT_TRUE(boxes(layout, 1).empty());
  EXPECT_THAT(fault(layout_of({10}, {{3}, up_to(3)}, {shard(0, {5, 1, 5})})),
              HasSubstr("axis 0: the sizes [5, 1, 5] do not add up to the 10 elements"));
  EXPECT_THAT(fault(layout_of({10}, {{3}, up_to(3)}, {shard(0, {UINT64_MAX, 1, 10})})),
              HasSubstr("do not add up"));
}

TEST(Mesh, PartialPlacementsBecomeTerms) {
  const Layout layout = layout_of({4}, {{2, 2}, up_to(4)}, {partial(), shard(0)}).value();
  EXPECT_EQ(layout.terms, 2u);
  EXPECT_EQ(layout.parts[3].term, 1u);
  EXPECT_EQ(to_text(layout.parts[3].box), "[2:4]");
}

TEST(Mesh, AverageDividesByItsNumberOfRanks) {
  Result<Layout> made = layout_of({6}, {{2, 3}, up_to(6)}, {average(), partial()});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->terms, 6u);
  EXPECT_EQ(made->divisor, 2u);
  EXPECT_THAT(to_table(made.value()), HasSubstr("a sum of 6 terms divided by 2"));
  made = layout_of({6}, {{1}, {0}}, {average()});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->divisor, 1u);
  Layout layout = made.value();
  layout.divisor = 2;
  EXPECT_THAT(fault(layout), HasSubstr("only sums are divided"));
}

TEST(Mesh, ErrorNamesTheFaultyAxis) {
  EXPECT_THAT(fault(layout_of({10}, {{4}, up_to(4)}, {shard(0)})),
              HasSubstr("axis 0: 4 pieces do not divide the 10 elements of dimension 0"));
  EXPECT_THAT(fault(layout_of({8}, {{2}, {3, 3}}, {shard(0)})),
              HasSubstr("rank 3 is in two places"));
  EXPECT_THAT(fault(layout_of({8}, {{2, 2}, up_to(3)}, {shard(0), shard(0)})),
              HasSubstr("a mesh of 2 x 2 has 4 ranks, and 3 are given"));
  EXPECT_THAT(fault(layout_of({8}, {{2}, up_to(2)}, {shard(1)})),
              HasSubstr("axis 0 cuts dimension 1 of a tensor that has 1"));
  EXPECT_THAT(fault(layout_of({8}, {{2}, up_to(2)}, {})), HasSubstr("0 placements are given"));
  EXPECT_THAT(fault(layout_of({8}, {{0}, {}}, {shard(0)})), HasSubstr("axis 0 has 0 ranks"));
  EXPECT_THAT(fault(layout_of({8}, {{2}, {0, -1}}, {shard(0)})), HasSubstr("ranks start at 0"));
  EXPECT_THAT(fault(layout_of({8}, {{2}, up_to(2)}, {shard(0, {8})})),
              HasSubstr("2 ranks and 1 sizes"));
  EXPECT_THAT(fault(layout_of({8}, {{2}, up_to(2)}, {strided_shard(0, 0)})),
              HasSubstr("a split factor of 0"));
}

TEST(Degrees, ShardActivationsByParallelDegree) {
  const Layout layout =
      activations(4, 8, 2, {.data = 2, .context = 2, .tensor = 2}, up_to(8)).value();
  EXPECT_THAT(boxes(layout, 0), ElementsAre("[0:2, 0:2, 0:2]"));
  EXPECT_THAT(boxes(layout, 3), ElementsAre("[0:2, 6:8, 0:2]"));
  EXPECT_THAT(boxes(layout, 4), ElementsAre("[2:4, 0:2, 0:2]"));
  // The same with tensor parallelism as the slowest axis: rank 1 is d 0, c 1 and t 0.
  const Layout other =
      activations(4, 8, 2, {.data = 2, .context = 2, .tensor = 2, .order = "tdc"}, up_to(8))
          .value();
  EXPECT_THAT(boxes(other, 1), ElementsAre("[0:2, 4:6, 0:2]"));
  EXPECT_THAT(boxes(other, 2), ElementsAre("[2:4, 0:2, 0:2]"));
  EXPECT_THAT(boxes(other, 4), ElementsAre("[0:2, 2:4, 0:2]"));
  const Layout pairs =
      activations(1, 16, 1, {.context = 2, .tensor = 2, .zigzag = true}, up_to(4)).value();
  EXPECT_THAT(boxes(pairs, 0), ElementsAre("[0:1, 0:4, 0:1]"));
  EXPECT_THAT(boxes(pairs, 1), ElementsAre("[0:1, 12:16, 0:1]"));
  EXPECT_THAT(fault(activations(3, 8, 2, {.data = 2}, up_to(2))), HasSubstr("do not divide"));
  EXPECT_THAT(fault(activations(4, 8, 2, {.data = 2, .order = "ddt"}, up_to(2))),
              HasSubstr("no permutation"));
  EXPECT_THAT(fault(activations(4, 8, 2, {.data = 2}, up_to(3))), HasSubstr("3 are given"));
}

// Every rank's memory is filled without holes. Along each cut axis the ranks together hold every
// element once per copy and term.
TEST(Mesh, RandomMeshesGiveValidLayouts) {
  std::mt19937 random(1);
  const auto draw = [&](uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random);
  };
  for (int run = 0; run < 3000; ++run) {
    std::vector<uint64_t> shape(draw(1, 3));
    for (uint64_t& extent : shape) extent = draw(1, 12);
    Mesh mesh;
    std::vector<Placement> placements;
    uint64_t ranks = 1;
    uint64_t copies = 1;
    for (uint64_t axes = draw(1, 3); axes > 0; --axes) {
      mesh.axes.push_back(draw(1, 3));
      ranks *= mesh.axes.back();
      const size_t dimension = draw(0, shape.size() - 1);
      const std::vector<Placement> kinds = {replicate(), shard(dimension), zigzag(dimension),
                                            strided_shard(dimension, draw(1, 3)), partial()};
      placements.push_back(kinds[draw(0, 4)]);
      const Placement::Kind kind = placements.back().kind;
      if (kind == Placement::Kind::kReplicate || kind == Placement::Kind::kPartial) {
        copies *= mesh.axes.back();
      }
    }
    mesh.ranks = up_to(static_cast<int>(ranks));
    std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), random);
    const Result<Layout> layout = layout_of(shape, mesh, placements, Uneven::kCeil);
    ASSERT_TRUE(layout.ok()) << fault(layout);
    std::map<int, std::set<uint64_t>> places;
    std::map<int, uint64_t> held;
    uint64_t elements = 0;
    for (const Part& part : layout.value().parts) {
      elements += part.box.elements();
      held[part.rank] += part.box.elements();
      std::vector<uint64_t> at(shape.size(), 0);
      for (uint64_t i = 0; i < part.box.elements(); ++i) {
        uint64_t rest = i;
        uint64_t place = part.offset;
        for (size_t d = shape.size(); d-- > 0;) {
          place += rest % part.box.extent(d) * part.strides[d];
          rest /= part.box.extent(d);
        }
        EXPECT_TRUE(places[part.rank].insert(place).second);
      }
    }
    EXPECT_EQ(elements, copies * whole_of(shape).elements());
    for (const auto& [rank, taken] : places) EXPECT_EQ(*taken.rbegin() + 1, held[rank]);
  }
}

// --- after ranks were lost ------------------------------------------------------

// Cuts |box| randomly into parts for ranks starting at |*rank|.
void cut(std::mt19937& random, const Box& box, uint32_t copy, uint32_t term, int depth, int* rank,
         Layout* layout) {
  const size_t d = random() % box.dimensions;
  if (depth > 0 && box.extent(d) > 1) {
    Box first = box;
    Box second = box;
    first.end[d] = second.begin[d] = box.begin[d] + 1 + random() % (box.extent(d) - 1);
    cut(random, first, copy, term, depth - 1, rank, layout);
    cut(random, second, copy, term, depth - 1, rank, layout);
    return;
  }
  Part part = part_of((*rank)++, box, copy);
  part.term = term;
  part.offset = random() % 5;
  layout->parts.push_back(part);
}

// The element and term at each place of each rank's memory.
using Places = std::map<std::pair<int, uint64_t>, std::pair<uint32_t, Numbers>>;

Places places_of(const Layout& layout) {
  Places places;
  for (const Part& part : layout.parts) {
    const Box box = clip(layout, part);
    if (box.is_empty()) continue;
    Numbers at = box.begin;
    for (uint64_t left = box.elements(); left > 0; --left) {
      uint64_t place = part.offset;
      for (size_t d = 0; d < box.dimensions; ++d) {
        place += (at[d] - part.box.begin[d]) * part.strides[d];
      }
      const bool fresh =
          places.emplace(std::pair(part.rank, place), std::pair(part.term, at)).second;
      EXPECT_TRUE(fresh);
      for (size_t d = box.dimensions; d-- > 0;) {
        if (++at[d] < box.end[d]) break;
        at[d] = box.begin[d];
      }
    }
  }
  return places;
}

TEST(Survivors, KeepTheirPartsAndReplaceLostOnesWithCopies) {
  std::mt19937 random(7);
  int refused = 0;
  int repaired = 0;
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    Layout layout;
    for (size_t d = 1 + random() % 3; d > 0; --d) layout.shape.push_back(1 + random() % 5);
    if (random() % 3 == 0) {
      layout.padded_shape = layout.shape;
      layout.padded_shape[random() % layout.shape.size()] += 1 + random() % 3;
    }
    layout.terms = 1 + (random() % 4 == 0);
    int ranks = 0;
    for (uint32_t term = 0; term < layout.terms; ++term) {
      const auto copies = static_cast<uint32_t>(1 + random() % 3);
      for (uint32_t copy = 0; copy < copies; ++copy) {
        cut(random, whole_of(layout.outer_shape()), copy, term, static_cast<int>(random() % 4),
            &ranks, &layout);
      }
    }
    // Some boxes in additional copies are missing.
    std::erase_if(layout.parts.edit(),
                  [&](const Part& part) { return part.copy > 0 && random() % 5 == 0; });
    ASSERT_EQ(fault(layout), "");

    std::vector<int> rank_now(static_cast<size_t>(ranks));
    const uint64_t one_in = 2 + random() % 8;
    int next = 0;
    for (int& rank : rank_now) rank = random() % one_in == 0 ? -1 : next++;
    Places left;
    std::set<std::pair<uint32_t, Numbers>> held;
    for (const auto& [where, what] : places_of(layout)) {
      const int now = rank_now[static_cast<size_t>(where.first)];
      if (now < 0) continue;
      left.emplace(std::pair(now, where.second), what);
      held.insert(what);
    }
    const bool all_held = held.size() == layout.terms * layout.whole().elements();
    const Result<Layout> found = layout_of_survivors(layout, rank_now);
    ASSERT_EQ(found.ok(), all_held) << fault(found);
    if (!found.ok()) {
      ++refused;
      EXPECT_EQ(found.status().code(), Code::kPeerLost);
      EXPECT_THAT(fault(found), HasSubstr("which no other holds"));
      continue;
    }
    repaired += next < ranks;
    EXPECT_EQ(fault(found.value()), "");
    EXPECT_EQ(places_of(found.value()), left);
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(repaired, 500);
}

TEST(Survivors, ErrorNamesElementsWithoutAHolder) {
  Layout layout;
  layout.shape = {4, 6};
  layout.parts = {part_of(0, box_of({{0, 2}, {0, 6}})), part_of(1, box_of({{2, 4}, {0, 6}})),
                  part_of(2, box_of({{0, 4}, {0, 3}}), 1)};
  EXPECT_EQ(fault(layout_of_survivors(layout, {0, 1, -1})), "");
  EXPECT_THAT(fault(layout_of_survivors(layout, {0, -1, 1})),
              HasSubstr("rank 1 was lost with [2:4, 3:6], which no other holds"));
  EXPECT_THAT(fault(layout_of_survivors(layout, {0, 1})),
              HasSubstr("rank 2 holds [0:4, 0:3], and has no number among 2"));
  EXPECT_THAT(fault(layout_of_survivors(layout, {0, 1, 1})),
              HasSubstr("two ranks are to be rank 1"));
  EXPECT_THAT(fault(layout_of_survivors(layout, {0, 1, -2})),
              HasSubstr("rank 2 cannot be rank -2"));
}

}  // namespace
}  // namespace hetcomm::reshard
