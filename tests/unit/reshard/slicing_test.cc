// Slicings:
//    - when all ranks execute them, in any order that is possible with one message in flight from
//      a rank to another, they give the right tensor, over random layouts, strategies and slices,
//      and write nothing else;
//    - both ends of a message count the same number of elements;
//    - every rank has a share of each slice, and consecutive boxes are merged;
//    - there are as many slices as wanted, of about the same size, and rows stay whole, wherever
//      the two sides are cut;
//    - messages hold elements in the order of both sides' memory.
#include "reshard/slicing.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/bsr.h"
#include "reshard/memory_order.h"
#include "reshard/mesh.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {
namespace {

constexpr int64_t kUntouched = -77;

std::vector<int> ranks_from(int first, uint64_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

// Calls use(place, index) for all elements of |part|, with their index in the tensor.
template <typename Use>
void for_each_element(const Part& part, Use&& use) {
  const uint64_t elements = part.box.elements();
  std::vector<uint64_t> index(part.box.dimensions);
  for (uint64_t i = 0; i < elements; ++i) {
    uint64_t rest = i;
    uint64_t place = part.offset;
    for (size_t d = part.box.dimensions; d-- > 0;) {
      const uint64_t at = rest % part.box.extent(d);
      rest /= part.box.extent(d);
      index[d] = part.box.begin[d] + at;
      place += at * part.strides[d];
    }
    use(place, index);
  }
}

template <typename Use>
void for_each_place(const StridedBox& box, Use&& use) {
  const uint64_t elements = box.elements();
  for (uint64_t i = 0; i < elements; ++i) {
    uint64_t rest = i;
    uint64_t place = box.offset;
    for (size_t d = box.dimensions; d-- > 0;) {
      place += rest % box.extents[d] * box.strides[d];
      rest /= box.extents[d];
    }
    use(place);
  }
}

// All ranks of a plan, with their memories, in a single thread.
class Machine {
 public:
  Machine(const MovePlan& plan, int ranks, uint32_t slices, std::mt19937& random)
      : plan_(plan), random_(random), states_(static_cast<size_t>(ranks)) {
    const bool rounds = random() % 2 == 0;
    for (int rank = 0; rank < ranks; ++rank) {
      State& state = states_[static_cast<size_t>(rank)];
      state.slicing = slicing_of(plan, rank, slices, rounds);
      state.memory[2].assign(state.slicing.scratch_elements, kUntouched);
    }
    for (const Part& part : plan.source.parts) {
      for_each_element(part, [&](uint64_t place, const std::vector<uint64_t>& index) {
        write(part.rank, 0, place, is_padding(index) ? kUntouched : value(index, part.term));
      });
    }
    for (const Part& part : plan.destination().parts) {
      for_each_element(part, [&](uint64_t place, const std::vector<uint64_t>&) {
        write(part.rank, 1, place, kUntouched);
      });
    }
    for (State& state : states_) state.before = state.memory[0];
  }

  // Returns false if no rank can proceed.
  bool run() {
    for (;;) {
      std::vector<size_t> unfinished;
      for (size_t rank = 0; rank < states_.size(); ++rank) {
        if (states_[rank].phase < states_[rank].slicing.phases.size()) unfinished.push_back(rank);
      }
      if (unfinished.empty()) return true;
      std::shuffle(unfinished.begin(), unfinished.end(), random_);
      if (std::none_of(unfinished.begin(), unfinished.end(),
                       [&](size_t rank) { return step(static_cast<int>(rank)); })) {
        return false;
      }
    }
  }

  void expect_destination() {
    for (const auto& [ends, ring] : rings_) EXPECT_TRUE(ring.empty());
    for (State& state : states_) EXPECT_EQ(state.memory[0], state.before) << "the source changed";
    const Layout& to = plan_.destination();
    for (const Part& part : to.parts) {
      const std::vector<int64_t>& memory = states_[static_cast<size_t>(part.rank)].memory[1];
      for_each_element(part, [&](uint64_t place, const std::vector<uint64_t>& index) {
        int64_t expected = 0;
        for (uint32_t term = 0; term < plan_.source.terms; ++term) expected += value(index, term);
        EXPECT_EQ(memory[place], is_padding(index) ? kUntouched : expected);
      });
    }
  }

  // Expects that each pair of ranks exchanges the elements that the plan's moves say.
  void expect_messages() {
    std::map<std::pair<int, int>, uint64_t> expected;
    for (size_t hop = 0; hop < plan_.hops.size(); ++hop) {
      for (const Move& move : plan_.hops[hop].moves) {
        const int from = plan_.from(hop).parts[move.from].rank;
        const int to = plan_.hops[hop].to.parts[move.to].rank;
        if (from != to) expected[{from, to}] += move.box.elements();
      }
    }
    std::map<std::pair<int, int>, uint64_t> sent;
    for (const State& state : states_) {
      for (const Phase& phase : state.slicing.phases) {
        for (const Message& message : phase.sends) {
          sent[{state.slicing.rank, message.peer}] += message.elements;
        }
      }
    }
    EXPECT_EQ(sent, expected);
  }

  size_t phases(int rank) const { return states_[static_cast<size_t>(rank)].slicing.phases.size(); }

 private:
  struct State {
    Slicing slicing;
    std::vector<int64_t> memory[4];
    std::vector<int64_t> before;  // source memory before the plan
    size_t phase = 0;
    size_t sent = 0;  // messages sent in this phase
  };

  bool is_padding(const std::vector<uint64_t>& index) const {
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] >= plan_.source.shape[d]) return true;
    }
    return false;
  }
  int64_t value(const std::vector<uint64_t>& index, uint32_t term) const {
    uint64_t number = 0;
    for (size_t d = 0; d < index.size(); ++d) number = number * plan_.source.shape[d] + index[d];
    return static_cast<int64_t>((number + 1) * (7 * term + 1));
  }
  void write(int rank, int memory, uint64_t place, int64_t to) {
    std::vector<int64_t>& values = states_[static_cast<size_t>(rank)].memory[memory];
    if (values.size() <= place) values.resize(place + 1, kUntouched);
    values[place] = to;
  }
  std::vector<int64_t>& memory_of(State& state, const StridedBox& box) {
    return state.memory[box.memory == Space::kSource        ? 0
                        : box.memory == Space::kDestination ? 1
                        : box.memory == Space::kScratch     ? 2
                                                            : 3];
  }
  std::vector<int64_t> pack(State& state, const std::vector<StridedBox>& boxes) {
    std::vector<int64_t> packed;
    for (const StridedBox& box : boxes) {
      for_each_place(box,
                     [&](uint64_t place) { packed.push_back(memory_of(state, box).at(place)); });
    }
    return packed;
  }

  // Executes one message, or all arrivals in a phase.
  bool step(int rank) {
    State& state = states_[static_cast<size_t>(rank)];
    const Phase& phase = state.slicing.phases[state.phase];
    if (state.sent < phase.sends.size()) {
      const Message& message = phase.sends[state.sent];
      auto& ring = rings_[{rank, message.peer}];
      if (!ring.empty()) return false;
      ring.push_back(pack(state, message.boxes));
      EXPECT_EQ(ring.back().size(), message.elements);
      EXPECT_LE(message.elements, state.slicing.largest_message);
      ++state.sent;
      return true;
    }
    for (const Message& message : phase.receives) {
      if (rings_[{message.peer, rank}].empty()) return false;
    }
    std::vector<std::vector<int64_t>> received;
    for (const Message& message : phase.receives) {
      auto& ring = rings_[{message.peer, rank}];
      received.push_back(std::move(ring.front()));
      ring.pop_front();
      EXPECT_EQ(received.back().size(), message.elements);
    }
    state.memory[3].assign(phase.sum_elements, kUntouched);
    for (const Arrival& arrival : phase.arrivals) {
      const std::vector<int64_t> own =
          arrival.receive < 0 ? pack(state, {arrival.from}) : std::vector<int64_t>();
      size_t at = arrival.position;
      for_each_place(arrival.to, [&](uint64_t place) {
        const int64_t moved = arrival.receive < 0
                                  ? own.at(at++)
                                  : received[static_cast<size_t>(arrival.receive)].at(at++);
        int64_t& target = memory_of(state, arrival.to).at(place);
        target = arrival.adds ? target + moved : moved;
      });
    }
    // Sums leave no gap, and terms are not added anywhere else.
    EXPECT_EQ(std::count(state.memory[3].begin(), state.memory[3].end(), kUntouched), 0);
    ++state.phase;
    state.sent = 0;
    return true;
  }

  const MovePlan& plan_;
  std::mt19937& random_;
  std::vector<State> states_;
  std::map<std::pair<int, int>, std::deque<std::vector<int64_t>>> rings_;
};

// Returns |layout| with all boxes of a rank dense in |order|, outermost dimension first, one behind
// the other.
Layout held_in(const Layout& layout, const std::vector<size_t>& order) {
  Layout result = layout;
  std::map<int, uint64_t> ends;
  for (Part& part : result.parts.edit()) {
    part.offset = ends[part.rank];
    uint64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      part.strides[order[i]] = stride;
      stride *= part.box.extent(order[i]);
    }
    ends[part.rank] += stride;
  }
  return result;
}

TEST(Slicings, RandomSlicingsGiveTheRightTensor) {
  std::mt19937 random(1);
  const auto draw = [&](uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random);
  };
  const int runs = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 50'000 : 1000;
  for (int run = 0; run < runs; ++run) {
    std::vector<uint64_t> shape(draw(1, 3));
    for (uint64_t& extent : shape) extent = draw(1, 12);
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    const auto layout = [&](int first, bool may_be_partial) {
      Mesh mesh;
      std::vector<Placement> placements;
      uint64_t ranks = 1;
      for (uint64_t axes = draw(1, 3); axes > 0; --axes) {
        mesh.axes.push_back(draw(1, 3));
        ranks *= mesh.axes.back();
        const size_t dimension = draw(0, shape.size() - 1);
        const std::vector<Placement> kinds = {replicate(), shard(dimension), zigzag(dimension),
                                              strided_shard(dimension, draw(1, 3)), partial()};
        placements.push_back(kinds[draw(0, may_be_partial ? 4 : 3)]);
      }
      mesh.ranks = ranks_from(first, ranks);
      std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), random);
      Layout made = layout_of(shape, mesh, placements, Uneven::kCeil).value();
      // Some tensors are part of a larger one, and some are held in another order.
      if (draw(0, 2) == 0) {
        for (Part& part : made.parts.edit()) {
          part.offset = 3 + part.offset * 2;
          for (uint64_t& stride : part.strides) stride *= 2;
        }
      } else if (draw(0, 1) == 0) {
        made = held_in(made, order);
      }
      return made;
    };
    const Layout source = layout(0, true);
    const Layout destination = layout(static_cast<int>(draw(0, 27)), false);
    SendLoads loads;
    const Result<MovePlan> plans[] = {
        plan_direct(source, destination), plan_leader(source, destination),
        plan_gather_p2p_scatter(source, destination), plan_sendrecv_allgather(source, destination),
        plan_bsr(source, destination, 4, loads, std::nullopt, draw(0, 3) * 16)};
    for (const Result<MovePlan>& plan : plans) {
      if (!plan.ok()) continue;
      Machine machine(plan.value(), 54, static_cast<uint32_t>(draw(1, 5)), random);
      ASSERT_TRUE(machine.run()) << "nobody can go on: " << plan.value().strategy;
      machine.expect_destination();
      machine.expect_messages();
      if (HasFailure()) {
        FAIL() << plan.value().strategy << " " << to_table(source) << to_table(destination);
      }
    }
  }
}

TEST(Slicings, EverySliceInvolvesEveryRank) {
  const Layout source = activations(8, 16, 64, {.data = 4, .context = 2}, ranks_from(0, 8)).value();
  const Layout destination =
      activations(8, 16, 64, {.data = 2, .tensor = 4}, ranks_from(8, 8)).value();
  const MovePlan plan = plan_gather_p2p_scatter(source, destination).value();
  for (int rank = 0; rank < 16; ++rank) {
    const Slicing slicing = slicing_of(plan, rank, 4);
    std::map<uint32_t, int> phases;
    for (const Phase& phase : slicing.phases) ++phases[phase.slice];
    EXPECT_EQ(phases.size(), 4u) << rank;
  }
}

// Returns the elements that |rank| sends in each slice.
std::vector<uint64_t> sent_by(const MovePlan& plan, int rank, uint32_t slices) {
  std::vector<uint64_t> sent(slices);
  for (const Phase& phase : slicing_of(plan, rank, slices).phases) {
    for (const Message& message : phase.sends) sent.at(phase.slice) += message.elements;
  }
  return sent;
}

// Returns a layout of rows of |width| elements. |ends| lists the ranks that hold them, each up to a
// row.
Layout rows_up_to(const std::vector<std::pair<int, uint64_t>>& ends, uint64_t width = 1) {
  Layout layout{.shape = {ends.back().second, width}};
  uint64_t begin = 0;
  std::map<int, uint64_t> held;
  for (const auto& [rank, end] : ends) {
    Part part{.rank = rank, .box = {.dimensions = 2, .begin = {begin, 0}, .end = {end, width}}};
    part.offset = held[rank];
    part.strides = dense_strides(part.box);
    held[rank] += part.box.elements();
    layout.parts.push_back(part);
    begin = end;
  }
  EXPECT_TRUE(check(layout).ok());
  return layout;
}

TEST(Slicings, NearlyCoincidingCutsStillGiveEvenSlices) {
  const Layout source = rows_up_to({{0, 5000}, {1, 10'001}});
  for (const uint64_t cut : {4999u, 5000u, 5001u, 5002u}) {
    const MovePlan plan = plan_direct(source, rows_up_to({{2, cut}, {3, 10'001}})).value();
    for (const int rank : {0, 1}) {
      for (const uint64_t elements : sent_by(plan, rank, 100)) {
        EXPECT_GE(elements, 49U) << cut;
        EXPECT_LE(elements, 52U) << cut;
      }
    }
  }
}

TEST(Slicings, ManyNarrowPiecesAreSpreadOverTheSlices) {
  // Half of the tensor is cut into single elements that take turns, or into pieces of three.
  for (const uint64_t narrow : {1u, 3u}) {
    std::vector<std::pair<int, uint64_t>> ends = {{1, 500}};
    for (uint64_t end = 500 + narrow; end < 1000; end += narrow) {
      ends.emplace_back(1 + static_cast<int>(end % 2), end);
    }
    ends.emplace_back(1, 1000);
    const MovePlan plan = plan_direct(rows_up_to({{0, 1000}}), rows_up_to(ends)).value();
    for (const uint64_t elements : sent_by(plan, 0, 50)) {
      EXPECT_GE(elements, 15U) << narrow;
      EXPECT_LE(elements, 25U) << narrow;
    }
  }
}

// Single rows that are dealt out like cards: those of one rank are in different slices.
TEST(Slicings, NarrowPiecesAtRegularDistancesAreSpreadOverTheSlices) {
  for (const uint64_t ranks : {8u, 16u, 50u}) {
    constexpr uint64_t kSlices = 8;
    std::vector<std::pair<int, uint64_t>> ends = {{1, 800}};
    for (uint64_t end = 801; end <= 1600; ++end) {
      ends.emplace_back(2 + static_cast<int>(end % ranks), end);
    }
    const MovePlan plan = plan_direct(rows_up_to({{0, 1600}}), rows_up_to(ends)).value();
    std::map<int, std::map<uint32_t, uint64_t>> received;
    for (const Phase& phase : slicing_of(plan, 0, kSlices).phases) {
      for (const Message& message : phase.sends) {
        received[message.peer][phase.slice] += message.elements;
      }
    }
    for (const auto& [rank, slices] : received) {
      for (const auto& [slice, elements] : slices) {
        EXPECT_LE(elements, rank == 1 ? 100U : 2 * (800 / ranks / kSlices + 1)) << rank;
      }
    }
  }
}

TEST(Slicings, DimensionMostlyOfNarrowPiecesIsNotCut) {
  std::vector<std::pair<int, uint64_t>> ends = {{1, 20}};
  for (uint64_t end = 21; end <= 64; ++end) ends.emplace_back(1 + static_cast<int>(end % 2), end);
  const MovePlan plan = plan_direct(rows_up_to({{0, 64}}, 1000), rows_up_to(ends, 1000)).value();
  const std::vector<uint64_t> columns(10, 64 * 100);
  EXPECT_EQ(sent_by(plan, 0, 10), columns);
}

// A dimension of few elements, such as that of experts, is cut no further.
TEST(Slicings, FirstDimensionWithEnoughElementsIsCut) {
  const struct {
    std::vector<uint64_t> shape;
    uint64_t rows;  // of a message
  } cases[] = {{{64, 1000}, 1}, {{16, 1000}, 1}, {{8, 1000, 7}, 4}, {{2, 3, 1000}, 3}};
  for (const auto& each : cases) {
    const Layout source = layout_of(each.shape, {{2}, {0, 1}}, {shard(0)}).value();
    const Layout destination = layout_of(each.shape, {{2}, {2, 3}}, {shard(0)}).value();
    const Slicing slicing = slicing_of(plan_direct(source, destination).value(), 0, 8);
    EXPECT_EQ(slicing.phases.size(), 8U);
    for (const Phase& phase : slicing.phases) {
      ASSERT_EQ(phase.sends.size(), 1U);
      ASSERT_EQ(phase.sends[0].boxes.size(), 1U);
      const StridedBox& box = phase.sends[0].boxes[0];
      const uint64_t rows = box.dimensions == 2 ? box.extents[0] : 1;
      EXPECT_EQ(rows, each.rows) << each.shape[0];
      EXPECT_EQ(box.strides[box.dimensions - 1], 1U);
    }
  }
}

TEST(Slicings, TensorsOfManyPartsHaveFewerSlices) {
  std::vector<std::pair<int, uint64_t>> ends;
  for (uint64_t end = 1000; end <= 4'000'000; end += 1000) ends.emplace_back(0, end);
  const MovePlan plan = plan_direct(rows_up_to(ends), rows_up_to({{1, 4'000'000}})).value();
  EXPECT_EQ(slicing_of(plan, 0, 200).phases.size(), 200U);
  EXPECT_EQ(slicing_of(plan, 0, 1000).phases.size(), 262U);
}

TEST(Slicings, LargestTensorIsCutIntoAllSlices) {
  const uint64_t extent = kMaxElements;
  const MovePlan plan = plan_direct(rows_up_to({{0, extent}}), rows_up_to({{1, extent}})).value();
  const std::vector<uint64_t> sent = sent_by(plan, 0, 65'536);
  EXPECT_EQ(sent, std::vector<uint64_t>(65'536, extent / 65'536));
}

TEST(Slicings, DimensionWithTheMostSlicesIsCutIfNoneHasEnough) {
  const Layout source = layout_of({3, 5, 4}, {{1}, {0}}, {replicate()}).value();
  const Layout destination = layout_of({3, 5, 4}, {{1}, {1}}, {replicate()}).value();
  const Slicing slicing = slicing_of(plan_direct(source, destination).value(), 0, 8);
  EXPECT_EQ(slicing.phases.size(), 5U);
}

TEST(Slicings, MessagesFollowTheMemoryOrderOfTheirSides) {
  const Layout source = layout_of({64, 48}, {{2}, {0, 1}}, {shard(1)}).value();
  const Layout destination = layout_of({64, 48}, {{3}, {2, 3, 4}}, {shard(1)}).value();
  const std::vector<size_t> transposed = {1, 0};
  const MovePlan alike =
      plan_direct(held_in(source, transposed), held_in(destination, transposed)).value();
  const MovePlan different = plan_direct(source, held_in(destination, transposed)).value();
  for (const uint32_t slices : {1u, 8u}) {
    for (const Phase& phase : slicing_of(alike, 0, slices).phases) {
      for (const Message& message : phase.sends) {
        ASSERT_EQ(message.boxes.size(), 1U);
        EXPECT_EQ(message.boxes[0].dimensions, 1U);
        EXPECT_EQ(message.boxes[0].strides[0], 1U);
      }
    }
    for (const Phase& phase : slicing_of(different, 0, slices).phases) {
      for (const Message& message : phase.sends) {
        for (const StridedBox& box : message.boxes) {
          EXPECT_EQ(box.strides[box.dimensions - 1], 1U) << "the order of the source";
        }
      }
    }
  }
}

TEST(MemoryOrder, SingleRowsAndElementsFitAnyOrder) {
  const MemoryOrder plain = {0, 1, 2, 3, 4, 5, 6, 7};
  const MemoryOrder transposed = {1, 0, 2, 3, 4, 5, 6, 7};
  const Layout rows = layout_of({6, 4}, {{6}, ranks_from(0, 6)}, {shard(0)}).value();
  const Layout whole = layout_of({6, 4}, {{1}, {6}}, {replicate()}).value();
  const Layout other = held_in(whole, {1, 0});
  EXPECT_EQ(memory_order(rows, whole), plain);
  EXPECT_EQ(memory_order(rows, other), transposed) << "single rows fit both orders";
  EXPECT_EQ(memory_order(other, rows), transposed);
  EXPECT_EQ(memory_order(other, other), transposed);
  EXPECT_EQ(memory_order(whole, other), plain);
  EXPECT_EQ(memory_order(other, whole), plain);
  // The stride of a dimension with one element says nothing.
  const Layout slabs = layout_of({6, 2, 4}, {{2}, {0, 1}}, {shard(1)}).value();
  Layout with_gap = held_in(slabs, {2, 1, 0});
  for (Part& part : with_gap.parts.edit()) part.strides = {1, 6, 12};
  const Layout dense = held_in(slabs, {2, 1, 0});
  EXPECT_EQ(memory_order(dense, dense), memory_order(with_gap, with_gap));
  EXPECT_EQ(memory_order(dense, with_gap), memory_order(with_gap, held_in(slabs, {1, 2, 0})));
  // A later part says where a dimension is.
  const Layout uneven =
      layout_of({6, 4, 4}, {{2}, {0, 1}}, {shard(1, {1, 3})}, Uneven::kCeil).value();
  EXPECT_EQ(memory_order(held_in(uneven, {2, 1, 0}), held_in(uneven, {2, 1, 0})),
            (MemoryOrder{2, 1, 0, 3, 4, 5, 6, 7}));
  const Layout cube = layout_of({3, 4, 5}, {{1}, {0}}, {replicate()}).value();
  EXPECT_EQ(memory_order(held_in(cube, {2, 0, 1}), held_in(cube, {2, 0, 1})),
            (MemoryOrder{2, 0, 1, 3, 4, 5, 6, 7}));
  EXPECT_EQ(memory_order(held_in(cube, {2, 0, 1}), held_in(cube, {2, 1, 0})), plain);
}

TEST(Slicings, ConsecutiveBoxesAreMerged) {
  const Layout source = layout_of({4, 6, 8}, {{2}, {0, 1}}, {shard(0)}).value();
  const Layout destination = layout_of({4, 6, 8}, {{1}, {2}}, {replicate()}).value();
  const Slicing slicing = slicing_of(plan_direct(source, destination).value(), 1, 1);
  ASSERT_EQ(slicing.phases.size(), 1u);
  const StridedBox& sent = slicing.phases[0].sends[0].boxes[0];
  EXPECT_EQ(sent.dimensions, 1u);
  EXPECT_EQ(sent.extents[0], 96u);
  EXPECT_EQ(sent.strides[0], 1u);
  EXPECT_EQ(slicing.scratch_elements, 0u);
  // Columns have a stride.
  const Layout columns = layout_of({4, 6}, {{2}, {0, 1}}, {shard(1)}).value();
  const Layout rows = layout_of({4, 6}, {{1}, {2}}, {replicate()}).value();
  const Slicing received = slicing_of(plan_direct(columns, rows).value(), 2, 1);
  ASSERT_EQ(received.phases[0].arrivals.size(), 2u);
  const StridedBox& to = received.phases[0].arrivals[1].to;
  EXPECT_EQ(to.dimensions, 2u);
  EXPECT_EQ(to.offset, 3u);
  EXPECT_EQ(to.strides[0], 6u);
}

}  // namespace
}  // namespace hetcomm::reshard
