// Plans:
//    - over random layouts every strategy's plan is proved, and gives the right tensor when
//      executed;
//    - a rank's own plan equals its share of the whole plan, and all the ranks' plans together
//      terminate;
//    - messages and bytes match the papers;
//    - the proof refuses a plan with one wrong move.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/bsr.h"
#include "reshard/mesh.h"
#include "reshard/proof.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {
namespace {

using ::testing::HasSubstr;

using Planning = Result<MovePlan> (*)(const Layout&, const Layout&, std::optional<int>, uint64_t);
Result<MovePlan> gather(const Layout& source, const Layout& destination, std::optional<int> rank,
                        uint64_t turn) {
  return plan_gather_p2p_scatter(source, destination, 0, rank, turn);
}
constexpr Planning kPlannings[] = {plan_direct, plan_leader, gather, plan_sendrecv_allgather};

std::vector<int> ranks_from(int first, uint64_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint64_t draw(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(engine_);
  }
  std::vector<uint64_t> shape() {
    std::vector<uint64_t> shape(draw(1, 3));
    for (uint64_t& extent : shape) extent = draw(1, 10);
    return shape;
  }
  // Returns a layout over some of the ranks starting at |first|.
  Layout layout(const std::vector<uint64_t>& shape, int first, bool may_be_partial) {
    Mesh mesh;
    std::vector<Placement> placements;
    uint64_t ranks = 1;
    for (uint64_t axes = draw(1, 3); axes > 0; --axes) {
      mesh.axes.push_back(draw(1, 3));
      ranks *= mesh.axes.back();
      const size_t dimension = draw(0, shape.size() - 1);
      const std::vector<Placement> kinds = {replicate(),
                                            shard(dimension),
                                            shard(dimension),
                                            zigzag(dimension),
                                            strided_shard(dimension, draw(1, 3)),
                                            partial()};
      placements.push_back(kinds[draw(0, may_be_partial ? 5 : 4)]);
    }
    mesh.ranks = ranks_from(first, ranks);
    std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), engine_);
    Layout layout = layout_of(shape, mesh, placements, Uneven::kCeil).value();
    if (draw(0, 3) == 0) pad(layout);
    return layout;
  }

 private:
  // Makes some boxes at the end of the tensor reach past its end.
  void pad(Layout& layout) {
    layout.padded_shape = layout.shape;
    layout.padded_shape[0] += 2;
    std::map<int, int> parts_of;
    for (const Part& part : layout.parts) ++parts_of[part.rank];
    for (Part& part : layout.parts.edit()) {
      if (part.box.end[0] != layout.shape[0] || parts_of[part.rank] > 1) continue;
      part.box.end[0] += 2;
      part.strides = dense_strides(part.box);
    }
    ASSERT_TRUE(check(layout).ok()) << check(layout).text();
  }

  std::mt19937 engine_;
};

// --- carrying out ---------------------------------------------------------------------------

uint64_t number_of(const std::vector<uint64_t>& index, const std::vector<uint64_t>& shape) {
  uint64_t number = 0;
  for (size_t d = 0; d < shape.size(); ++d) number = number * shape[d] + index[d];
  return number;
}

template <typename Use>
void for_each_element(const Box& box, Use&& use) {
  std::vector<uint64_t> index(box.begin.begin(),
                              box.begin.begin() + static_cast<long>(box.dimensions));
  for (;;) {
    use(index);
    size_t d = box.dimensions;
    while (d > 0 && ++index[d - 1] == box.end[d - 1]) {
      index[d - 1] = box.begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

uint64_t place_of(const Part& part, const std::vector<uint64_t>& index) {
  uint64_t place = part.offset;
  for (size_t d = 0; d < index.size(); ++d)
    place += (index[d] - part.box.begin[d]) * part.strides[d];
  return place;
}

// Every part has its own memory here: by layout (source, destination, scratch of a hop) and part.
// Values are sums of a term's values at an element.
class Memories {
 public:
  explicit Memories(const MovePlan& plan) : plan_(plan) {
    for (uint32_t i = 0; i < plan.source.parts.size(); ++i) {
      const Part& part = plan.source.parts[i];
      for_each_element(part.box, [&](const auto& index) {
        memory_[{0, i}][place_of(part, index)] = is_padding(index) ? -1 : value(index, part.term);
      });
    }
  }
  void run() {
    for (size_t hop = 0; hop < plan_.hops.size(); ++hop) {
      for (const Move& move : plan_.hops[hop].moves) {
        for_each_element(move.box, [&](const auto& index) {
          const int64_t moved = at(hop, move.from, index);
          int64_t& target = at(hop + 1, move.to, index);
          target = move.adds ? target + moved : moved;
        });
      }
    }
  }
  void expect_destination() {
    const Layout& to = plan_.destination();
    for (uint32_t i = 0; i < to.parts.size(); ++i) {
      for_each_element(to.parts[i].box, [&](const auto& index) {
        if (is_padding(index)) return;
        int64_t expected = 0;
        for (uint32_t term = 0; term < plan_.source.terms; ++term) expected += value(index, term);
        if (to.terms > 1) expected = value(index, to.parts[i].term);
        EXPECT_EQ(at(plan_.hops.size(), i, index), expected);
      });
    }
  }

 private:
  bool is_padding(const std::vector<uint64_t>& index) const {
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] >= plan_.source.shape[d]) return true;
    }
    return false;
  }
  int64_t value(const std::vector<uint64_t>& index, uint32_t term) const {
    return static_cast<int64_t>((number_of(index, plan_.source.shape) + 1) * (7 * term + 1));
  }
  int64_t& at(size_t layout, uint32_t part, const std::vector<uint64_t>& index) {
    if (layout == 0) return memory_[{0, part}][place_of(plan_.source.parts[part], index)];
    if (layout == plan_.hops.size()) {
      return memory_[{1, part}][place_of(plan_.destination().parts[part], index)];
    }
    const Scratch& scratch = plan_.hops[layout - 1].scratch[part];
    if (scratch.alias == Alias::kSource) return at(0, scratch.part, index);
    if (scratch.alias == Alias::kDestination) return at(plan_.hops.size(), scratch.part, index);
    return memory_[{1 + layout, part}][place_of(plan_.hops[layout - 1].to.parts[part], index)];
  }

  const MovePlan& plan_;
  std::map<std::pair<size_t, uint32_t>, std::map<uint64_t, int64_t>> memory_;
};

// --- random layouts ---------------------------------------------------------------------------

TEST(Plans, RandomPlansAreProvedAndGiveTheRightTensor) {
  Random random(1);
  std::map<std::string, int> made;
  const int runs = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 200'000 : 1500;
  for (int run = 0; run < runs; ++run) {
    const std::vector<uint64_t> shape = random.shape();
    const Layout source = random.layout(shape, 0, true);
    // Ranks may be both senders and receivers.
    const Layout destination = random.layout(shape, static_cast<int>(random.draw(0, 27)), false);
    for (const Planning strategy : kPlannings) {
      const Result<MovePlan> plan = strategy(source, destination, std::nullopt, random.draw(0, 5));
      if (!plan.ok()) {
        EXPECT_EQ(plan.status().code(), Code::kUnsupported) << plan.status().text();
        EXPECT_EQ(strategy, &gather) << plan.status().text();
        continue;
      }
      ++made[plan.value().strategy];
      const Status proved = prove(plan.value());
      ASSERT_TRUE(proved.ok()) << proved.text() << "\n"
                               << plan.value().strategy << " " << to_table(source)
                               << to_table(destination);
      Memories memories(plan.value());
      memories.run();
      memories.expect_destination();
      if (HasFailure())
        FAIL() << plan.value().strategy << " " << to_table(source) << to_table(destination);
    }
  }
  EXPECT_EQ(made["direct"], runs);
  EXPECT_EQ(made["leader"], runs);
  EXPECT_EQ(made["sendrecv_allgather"], runs);
  EXPECT_GT(made["gather_p2p_scatter"], runs / 3);
}

TEST(Plans, PartialTermsMayStayPartial) {
  const Layout source = layout_of({8}, {{2, 2}, ranks_from(0, 4)}, {partial(), shard(0)}).value();
  const Layout destination =
      layout_of({8}, {{4, 2}, ranks_from(4, 8)}, {shard(0), partial()}).value();
  const MovePlan plan = plan_direct(source, destination).value();
  EXPECT_TRUE(prove(plan).ok()) << prove(plan).text();
  Memories memories(plan);
  memories.run();
  memories.expect_destination();
  const Layout three = layout_of({8}, {{3}, ranks_from(4, 3)}, {partial()}).value();
  EXPECT_THAT(std::string(plan_direct(source, three).status().text()),
              HasSubstr("a sum of 2 terms, the destination of 3"));
  EXPECT_EQ(plan_leader(source, destination).status().code(), Code::kUnsupported);
}

// Two copies of the destination are cut by rows and by columns.
TEST(Plans, ReplicasMayBeShardedDifferently) {
  const Layout source = layout_of({8, 12}, {{2}, ranks_from(0, 2)}, {shard(0)}).value();
  Layout destination = layout_of({8, 12}, {{2}, ranks_from(2, 2)}, {shard(0)}).value();
  const Layout columns = layout_of({8, 12}, {{3}, ranks_from(4, 3)}, {shard(1)}).value();
  for (Part part : columns.parts) {
    part.copy = 1;
    destination.parts.push_back(part);
  }
  ASSERT_TRUE(check(destination).ok());
  SendLoads loads;
  for (const Result<MovePlan>& plan :
       {plan_direct(source, destination), plan_leader(source, destination),
        plan_sendrecv_allgather(source, destination), plan_bsr(source, destination, 4, loads)}) {
    ASSERT_TRUE(plan.ok()) << plan.status().text();
    EXPECT_TRUE(prove(plan.value()).ok()) << prove(plan.value()).text();
    Memories memories(plan.value());
    memories.run();
    memories.expect_destination();
  }
}

// Returns the moves of |hop| in which |rank| takes part, in a form that can be compared between
// plans.
std::vector<std::string> moves_of(const MovePlan& plan, int rank) {
  std::vector<std::string> moves;
  for (size_t hop = 0; hop < plan.hops.size(); ++hop) {
    for (const Move& move : plan.hops[hop].moves) {
      const int from = plan.from(hop).parts[move.from].rank;
      const int to = plan.hops[hop].to.parts[move.to].rank;
      if (from != rank && to != rank) continue;
      moves.push_back(std::to_string(hop) + " " + std::to_string(from) + "." +
                      std::to_string(move.from) + " " + std::to_string(to) + "." +
                      std::to_string(move.to) + " " + to_text(move.box) + (move.adds ? " +" : ""));
    }
  }
  return moves;
}

TEST(Plans, PlanOfARankEqualsItsShareOfTheWholePlan) {
  Random random(2);
  for (int run = 0; run < 300; ++run) {
    const std::vector<uint64_t> shape = random.shape();
    const Layout source = random.layout(shape, 0, true);
    const Layout destination = random.layout(shape, static_cast<int>(random.draw(0, 27)), false);
    for (const Planning strategy : kPlannings) {
      const Result<MovePlan> whole = strategy(source, destination, std::nullopt, 3);
      if (!whole.ok()) continue;
      std::vector<MovePlan> plans;
      for (int rank = 0; rank < 54; ++rank) {
        plans.push_back(strategy(source, destination, rank, 3).value());
        EXPECT_EQ(moves_of(plans.back(), rank), moves_of(whole.value(), rank));
        size_t moves = 0;
        for (const Hop& hop : plans.back().hops) moves += hop.moves.size();
        EXPECT_EQ(moves, moves_of(plans.back(), rank).size()) << "it has moves of others";
      }
      const Status progress = prove_progress(plans);
      EXPECT_TRUE(progress.ok()) << progress.text();
    }
  }
}

TEST(Plans, ProgressProofRefusesPlansThatDisagree) {
  const Layout source = layout_of({8}, {{2}, {0, 1}}, {shard(0)}).value();
  const Layout destination = layout_of({8}, {{2}, {1, 0}}, {shard(0)}).value();
  std::vector<MovePlan> plans = {plan_direct(source, destination, 0).value(),
                                 plan_direct(source, destination, 1).value()};
  EXPECT_TRUE(prove_progress(plans).ok());
  // In a ring, each rank would send first.
  std::swap(plans[1].hops[0].moves[0], plans[1].hops[0].moves[1]);
  EXPECT_THAT(std::string(prove_progress(plans).text()), HasSubstr("never happens"));
  std::swap(plans[1].hops[0].moves[0], plans[1].hops[0].moves[1]);
  plans[1].hops[0].moves.pop_back();
  EXPECT_THAT(std::string(prove_progress(plans).text()), HasSubstr("never happens"));
}

TEST(Plans, DifferentShapesAreRefused) {
  const Layout source = layout_of({8}, {{2}, {0, 1}}, {shard(0)}).value();
  const Layout destination = layout_of({9}, {{1}, {2}}, {shard(0)}).value();
  for (const Planning strategy : kPlannings) {
    const Status status = strategy(source, destination, std::nullopt, 0).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(status.text()),
                HasSubstr("the source has shape [8], the destination [9]"));
  }
}

// --- the papers -----------------------------------------------------------------------------

Layout activations_of(uint64_t data, uint64_t context, int first) {
  constexpr uint64_t kBatch = 5040;  // divisible by many degrees
  return activations(kBatch, kBatch, 1, {.data = data, .context = context},
                     ranks_from(first, data * context))
      .value();
}

// HetAuto, section 5.2: (d1 + d2 - gcd)(s1 + s2 - gcd) messages without gathering, and
// outer (s1 + s2 - gcd) between the clusters with it.
TEST(Papers, MessageCountsMatchHetAuto) {
  const std::vector<uint64_t> degrees = {1, 2, 3, 4, 6, 8, 16};
  for (const uint64_t d1 : degrees) {
    for (const uint64_t s1 : degrees) {
      for (const uint64_t d2 : degrees) {
        for (const uint64_t s2 : degrees) {
          if (d1 * s1 > 16 || d2 * s2 > 16) continue;
          const Layout source = activations_of(d1, s1, 0);
          const Layout destination = activations_of(d2, s2, 16);
          const uint64_t across_s = s1 + s2 - std::gcd(s1, s2);
          const MovePlan direct = plan_direct(source, destination).value();
          EXPECT_EQ(count_messages(direct, 0), (d1 + d2 - std::gcd(d1, d2)) * across_s);
          const MovePlan gathered = plan_gather_p2p_scatter(source, destination).value();
          EXPECT_EQ(count_messages(gathered, 1), std::gcd(d1, d2) * across_s);
          EXPECT_EQ(count_messages(plan_leader(source, destination).value(), 1), 1u);
        }
      }
    }
  }
  EXPECT_EQ(
      count_messages(plan_direct(activations_of(16, 1, 0), activations_of(1, 16, 16)).value(), 0),
      256u);
}

TEST(Papers, MessageCountFollowsTheGivenOuterGroups) {
  const Layout source = activations_of(4, 1, 0);
  const Layout destination = activations_of(4, 2, 16);
  EXPECT_EQ(count_messages(plan_gather_p2p_scatter(source, destination, 2).value(), 1), 4u);
  EXPECT_THAT(std::string(plan_gather_p2p_scatter(source, destination, 7).status().text()),
              HasSubstr("source: rank 0, box [0:1260, 0:5040, 0:1]: it reaches over the border"));
}

// H2, section 5: activations that all ranks of a tensor parallel group hold. From 4 to 2 there are
// four messages of a quarter, and each of the two receivers gets a half from the other.
TEST(Papers, PiecesMatchH2) {
  const auto replicas = [](int first, uint64_t count) {
    return layout_of({64, 3}, {{count}, ranks_from(first, count)}, {replicate()}).value();
  };
  const MovePlan plan = plan_sendrecv_allgather(replicas(0, 4), replicas(4, 2)).value();
  ASSERT_EQ(plan.hops.size(), 2u);
  EXPECT_EQ(count_messages(plan, 0), 4u);
  std::map<int, uint64_t> sent;
  for (const Move& move : plan.hops[0].moves) {
    sent[plan.source.parts[move.from].rank] += move.box.elements();
  }
  EXPECT_EQ(sent, (std::map<int, uint64_t>{{0, 48}, {1, 48}, {2, 48}, {3, 48}}));
  EXPECT_EQ(count_messages(plan, 1), 2u);
  EXPECT_EQ(count_elements(plan), 64u * 3 + 2 * 32 * 3);
  // One copy passes over the link, from 2 to 4 replicas too.
  const MovePlan more = plan_sendrecv_allgather(replicas(0, 2), replicas(4, 4)).value();
  EXPECT_EQ(count_messages(more, 0), 4u);
  EXPECT_TRUE(prove(more).ok());
}

// Strategies with hops send one copy between two clusters, however many replicas there are.
TEST(Papers, OneCopyPassesBetweenClusters) {
  const Layout source =
      layout_of({16, 8}, {{4, 2}, ranks_from(0, 8)}, {replicate(), shard(1)}).value();
  const Layout destination =
      layout_of({16, 8}, {{2, 3}, ranks_from(8, 6)}, {shard(0), replicate()}).value();
  for (const Planning strategy : {&plan_leader, &plan_sendrecv_allgather}) {
    const MovePlan plan = strategy(source, destination, std::nullopt, 0).value();
    uint64_t crossing = 0;
    for (size_t hop = 0; hop < plan.hops.size(); ++hop) {
      for (const Move& move : plan.hops[hop].moves) {
        const int from = plan.from(hop).parts[move.from].rank;
        const int to = plan.hops[hop].to.parts[move.to].rank;
        if ((from < 8) != (to < 8)) crossing += move.box.elements();
      }
    }
    EXPECT_EQ(crossing, 16u * 8) << plan.strategy;
  }
}

// Each of eight replicas sends an eighth to one rank.
TEST(Plans, ReplicasShareTheLoad) {
  const Layout source = layout_of({64}, {{4}, ranks_from(0, 4)}, {replicate()}).value();
  const Layout destination = layout_of({64}, {{16}, ranks_from(4, 16)}, {shard(0)}).value();
  const MovePlan plan = plan_direct(source, destination).value();
  std::map<int, uint64_t> sent;
  for (const Move& move : plan.hops[0].moves) sent[plan.source.parts[move.from].rank] += 1;
  EXPECT_EQ(sent, (std::map<int, uint64_t>{{0, 4}, {1, 4}, {2, 4}, {3, 4}}));
}

// --- wrong plans ---------------------------------------------------------------------------

// Makes one move of |plan| wrong. Returns false if the plan may still be right.
bool spoil(MovePlan& plan, Random& random) {
  std::vector<size_t> hops;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    if (!plan.hops[i].moves.empty()) hops.push_back(i);
  }
  if (hops.empty()) return false;
  const size_t number = hops[random.draw(0, hops.size() - 1)];
  Hop& hop = plan.hops[number];
  const size_t at = random.draw(0, hop.moves.size() - 1);
  Move& move = hop.moves[at];
  const size_t d = random.draw(0, move.box.dimensions - 1);
  switch (random.draw(0, 6)) {
    case 0:
      hop.moves.erase(hop.moves.begin() + static_cast<long>(at));
      return true;
    case 1:
      hop.moves.push_back(move);
      return true;
    case 2:
      ++move.box.end[d];
      return true;
    case 3:
      --move.box.end[d];
      return true;
    case 4:
      if (move.box.begin[d] == 0) return false;
      --move.box.begin[d];
      return true;
    case 5: {
      const Layout& from = plan.from(number);
      const auto other = static_cast<uint32_t>(random.draw(0, from.parts.size() - 1));
      if (from.parts[other].box.contains(move.box)) return false;
      move.from = other;
      return true;
    }
    default: {
      const auto other = static_cast<uint32_t>(random.draw(0, hop.to.parts.size() - 1));
      if (other == move.to) return false;
      move.to = other;
      return true;
    }
  }
}

TEST(Proof, RefusesAPlanWithOneWrongMove) {
  Random random(3);
  int refused = 0;
  while (refused < 10'000) {
    const std::vector<uint64_t> shape = random.shape();
    const Layout source = random.layout(shape, 0, true);
    const Layout destination = random.layout(shape, 30, false);
    for (const Planning strategy : kPlannings) {
      const Result<MovePlan> plan = strategy(source, destination, std::nullopt, 0);
      if (!plan.ok()) continue;
      for (int i = 0; i < 5; ++i) {
        MovePlan wrong = plan.value();
        if (!spoil(wrong, random)) continue;
        ASSERT_FALSE(prove(wrong).ok())
            << wrong.strategy << to_table(source) << to_table(destination);
        ++refused;
      }
    }
  }
}

TEST(Proof, NamesTheFaultOfAWrongPlan) {
  const Layout source = layout_of({8}, {{2, 2}, ranks_from(0, 4)}, {partial(), shard(0)}).value();
  const Layout destination = layout_of({8}, {{1}, {4}}, {shard(0)}).value();
  const MovePlan right = plan_direct(source, destination).value();
  ASSERT_EQ(right.hops[0].moves.size(), 4u);
  const auto fault = [](const MovePlan& plan) { return std::string(prove(plan).text()); };
  MovePlan wrong = right;
  wrong.hops[0].moves.pop_back();
  EXPECT_THAT(fault(wrong), HasSubstr("rank 4, [4:8]: it lacks a term of the sum"));
  wrong.hops[0].moves.erase(wrong.hops[0].moves.begin());
  EXPECT_THAT(fault(wrong), HasSubstr("rank 2 to rank 4, [0:4]: it is added to what was never"));
  wrong = right;
  wrong.hops[0].moves.push_back(right.hops[0].moves[3]);
  EXPECT_THAT(fault(wrong), HasSubstr("a term is added twice"));
  wrong = right;
  wrong.hops[0].moves[0].from = 1;
  EXPECT_THAT(fault(wrong), HasSubstr("rank 1 to rank 4, [0:4]: the sender does not have it"));
  wrong = right;
  wrong.hops[0].moves[2].adds = false;
  EXPECT_THAT(fault(wrong), HasSubstr("it is written twice"));
  EXPECT_EQ(prove(right, 1).code(), Code::kOutOfResources);
}

}  // namespace
}  // namespace hetcomm::reshard
