// Redistributions, over every transport:
//
//   * random layouts (cuts, copies, terms of a sum, gaps and order in memory), random ranks on both
//     sides, every strategy that supports them, short and long slices, little memory: each element
//     arrives and nothing else is written, repeatedly, with several executions in progress
//   * many tensors at once; type conversion; device memory
//   * ranks with different plans, and ranks that are late, cancelled or dead, end with a reason
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "src/system/clock.h"
#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"
#include "tests/conformance/capi/reshard/layouts.h"
#include "tests/support/fastest.h"

namespace hetcomm_test {
namespace {

constexpr uint32_t kUntouched = 0x5a5a5a5a;

std::vector<CapiCase> cases() {
  std::vector<CapiCase> few;
  for (CapiCase& each : plain_cases()) {
    if (!each.alone()) few.push_back(std::move(each));
  }
  return few;
}

std::vector<CapiCase> device_cases() {
  std::vector<CapiCase> all = cases();
  for (CapiCase& each : all) each.settings += "DEVICES=sim-handle,sim-address;";
  return all;
}

class Resharding : public CapiTest {};
class ReshardingOnDevices : public CapiTest {};

// Splits [0, extent) into a few pieces.
std::vector<uint64_t> cut(Random& random, uint64_t extent) {
  std::vector<uint64_t> cuts = {0, extent};
  for (uint64_t i = random.below(3); i > 0; --i) cuts.push_back(random.below(extent));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

std::vector<size_t> c_order(const std::vector<uint64_t>& shape) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// Returns the dimensions of |shape| in a random order. Most tensors are in C order.
std::vector<size_t> random_order(Random& random, const std::vector<uint64_t>& shape) {
  std::vector<size_t> order = c_order(shape);
  if (random.chance(0.7)) return order;
  for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

// Each group of ranks holds one term once and has at least one rank. |order|: the dimensions in the
// memory of the ranks, outermost first.
Grid random_grid(Random& random, const std::vector<uint64_t>& shape,
                 const std::vector<std::vector<int32_t>>& groups, uint32_t terms,
                 const std::vector<size_t>& order) {
  Grid grid;
  grid.shape = shape;
  grid.terms = terms;
  std::map<int32_t, uint64_t> used;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::vector<uint64_t>> cuts;
    uint64_t cells = 1;
    for (const uint64_t extent : shape) {
      cuts.push_back(cut(random, extent));
      cells *= cuts.back().size() - 1;
    }
    for (uint64_t cell = 0; cell < cells; ++cell) {
      hetcomm_part_t part{};
      part.rank = groups[g][random.below(groups[g].size())];
      part.term = static_cast<uint32_t>(g) % terms;
      part.copy = static_cast<uint32_t>(g) / terms;
      uint64_t rest = cell;
      for (size_t d = 0; d < shape.size(); ++d) {
        const uint64_t pieces = cuts[d].size() - 1;
        part.begin[d] = cuts[d][rest % pieces];
        part.end[d] = cuts[d][rest % pieces + 1];
        rest /= pieces;
      }
      uint64_t stride = 1;
      for (size_t i = shape.size(); i-- > 0;) {
        const size_t d = order[i];
        part.strides[d] = stride;
        stride *= part.end[d] - part.begin[d] + (random.chance(0.3) ? random.below(3) : 0);
      }
      part.offset = used[part.rank] + random.below(3);
      used[part.rank] = part.offset + stride;
      grid.parts.push_back(part);
    }
  }
  return grid;
}

// Distributes |ranks| among |count| groups.
std::vector<std::vector<int32_t>> deal(Random& random, std::vector<int32_t> ranks, size_t count) {
  for (size_t i = ranks.size(); i-- > 1;) std::swap(ranks[i], ranks[random.below(i + 1)]);
  std::vector<std::vector<int32_t>> groups(count);
  for (size_t i = 0; i < ranks.size(); ++i) {
    groups[i < count ? i : random.below(count)].push_back(ranks[i]);
  }
  return groups;
}

std::vector<int32_t> some_ranks(Random& random, int32_t size, size_t least) {
  std::vector<int32_t> ranks;
  for (int32_t i = 0; i < size; ++i) ranks.push_back(i);
  while (ranks.size() > least && random.chance(0.4)) {
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(random.below(ranks.size())));
  }
  return ranks;
}

hetcomm_reshard_options_t wishes(int32_t strategy = HETCOMM_STRATEGY_AUTO) {
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.strategy = strategy;
  return options;
}

// Tensors that move from one layout to another, and the options of their plan.
struct Task {
  std::vector<Grid> sources;
  std::vector<Grid> destinations;
  hetcomm_reshard_options_t options = wishes();
};

// Makes the plan for |task|. Returns null if the strategy does not support it.
hetcomm_reshard_t* create(Member& me, const Task& task) {
  std::vector<std::unique_ptr<Made>> layouts;
  std::vector<hetcomm_reshard_tensor_t> tensors;
  for (size_t i = 0; i < task.sources.size(); ++i) {
    layouts.push_back(std::make_unique<Made>(task.sources[i]));
    layouts.push_back(std::make_unique<Made>(task.destinations[i]));
    tensors.push_back(
        {layouts[2 * i]->get(), layouts[2 * i + 1]->get(), HETCOMM_UINT32, HETCOMM_UINT32});
  }
  hetcomm_reshard_t* made = nullptr;
  const hetcomm_status_t status = hetcomm_reshard_create(me.communicator(), tensors.data(),
                                                         tensors.size(), &task.options, &made);
  EXPECT_TRUE(status == HETCOMM_OK || status == HETCOMM_UNSUPPORTED) << hetcomm_last_error();
  return made;
}

// One rank's values for all tensors of a task in one execution.
class Values {
 public:
  Values(const Task& task, int32_t rank, uint32_t salt) : task_(task), rank_(rank), salt_(salt) {
    for (size_t i = 0; i < task.sources.size(); ++i) {
      sources_.emplace_back(task.sources[i].extent_of(rank), kUntouched);
      destinations_.emplace_back(task.destinations[i].extent_of(rank) + 1, kUntouched);
      task.sources[i].for_each(rank, [&](uint64_t place, uint64_t number, uint32_t term) {
        sources_[i][place] = value(i, number, term);
      });
      from.push_back(hetcomm_buffer_host(sources_[i].data(), sources_[i].size() * 4));
      to.push_back(hetcomm_buffer_host(destinations_[i].data(), destinations_[i].size() * 4));
    }
  }

  void check() const {
    for (size_t i = 0; i < destinations_.size(); ++i) {
      std::vector<uint32_t> expected(destinations_[i].size(), kUntouched);
      const bool sums = task_.destinations[i].terms == 1;
      task_.destinations[i].for_each(rank_, [&](uint64_t place, uint64_t number, uint32_t term) {
        expected[place] = 0;
        for (uint32_t t = 0; t < task_.sources[i].terms; ++t) {
          if (sums || t == term) expected[place] += value(i, number, t);
        }
      });
      ASSERT_EQ(destinations_[i], expected) << "tensor " << i << " on rank " << rank_;
    }
  }

  // Expects that nothing writes to the destinations any longer.
  void expect_quiet() {
    for (auto& each : destinations_) std::fill(each.begin(), each.end(), kQuiet);
    usleep(3000);
    for (const auto& each : destinations_) {
      EXPECT_TRUE(std::all_of(each.begin(), each.end(), [](uint32_t value) {
        return value == kQuiet;
      })) << "a buffer was written after the end";
    }
  }

  std::vector<hetcomm_buffer_t> from;
  std::vector<hetcomm_buffer_t> to;

 private:
  static constexpr uint32_t kQuiet = 0xa5a5a5a5;
  uint32_t value(size_t tensor, uint64_t number, uint32_t term) const {
    return static_cast<uint32_t>(number * 7 + tensor * 1'000'003 + term * 77'777'777 + salt_);
  }

  const Task& task_;
  const int32_t rank_;
  const uint32_t salt_;
  std::vector<std::vector<uint32_t>> sources_;
  std::vector<std::vector<uint32_t>> destinations_;
};

// |row_factor|: factor by which rows are longer.
Task random_task(Random& random, int32_t size, uint64_t row_factor = 1) {
  Task task;
  for (uint64_t i = random.chance(0.3) ? random.between(2, 9) : 1; i > 0; --i) {
    std::vector<uint64_t> shape;
    const bool large = random.chance(0.1);
    for (uint64_t d = random.between(1, 3); d > 0; --d) {
      shape.push_back(random.between(1, large ? 90 : 12));
    }
    shape.back() *= row_factor;
    const auto terms = random.chance(0.25) ? 2u : 1u;
    const std::vector<int32_t> from = some_ranks(random, size, terms);
    const std::vector<int32_t> to = some_ranks(random, size, terms);
    const auto copies = [&](size_t ranks) { return 1 + random.below(ranks / terms); };
    // Devices copy each short row of a long tensor by itself, which takes long.
    const bool in_c_order = row_factor > 1;
    const std::vector<size_t> order = in_c_order ? c_order(shape) : random_order(random, shape);
    task.sources.push_back(
        random_grid(random, shape, deal(random, from, terms * copies(from.size())), terms, order));
    const uint32_t kept = random.chance(0.3) ? terms : 1;
    const size_t most = to.size() / kept;
    task.destinations.push_back(
        random_grid(random, shape, deal(random, to, kept * (1 + random.below(most))), kept,
                    in_c_order || random.chance(0.5) ? order : random_order(random, shape)));
  }
  task.options.strategy = static_cast<int32_t>(random.below(6));
  task.options.in_flight = static_cast<uint32_t>(random.between(1, 3));
  task.options.slice_bytes = random.chance(0.5) ? random.between(4, 2000) : 0;
  task.options.landing_bytes = random.chance(0.5) ? 1 : 0;
  task.options.prove = random.chance(0.5) ? 1 : 0;
  return task;
}

// Each rank makes plans for task_of(random), for |rounds| rounds, and executes each twice, with
// values from make(task, salt). Returns the number of plans.
template <typename MakeTask, typename MakeValues>
uint64_t move_in_rounds(Member& me, uint64_t rounds, MakeTask task_of, MakeValues make) {
  uint64_t moved = 0;
  for (uint64_t round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round << ", rank " << me.rank());
    Random random(round);
    const Task task = task_of(round, random);
    hetcomm_reshard_t* plan = create(me, task);
    if (plan == nullptr) continue;
    ++moved;
    const auto carry_out = [&](uint32_t again) {
      std::vector<decltype(make(task, 0u))> values;
      std::vector<hetcomm_request_t*> requests;
      for (uint32_t i = 0; i < task.options.in_flight; ++i) {
        values.push_back(make(task, static_cast<uint32_t>(round * 100 + again * 10 + i)));
        requests.emplace_back();
        ASSERT_EQ(hetcomm_reshard_start(plan, values[i]->from.data(), values[i]->to.data(), nullptr,
                                        &requests[i]),
                  HETCOMM_OK)
            << hetcomm_last_error();
      }
      for (hetcomm_request_t* request : requests) {
        const Outcome outcome = finish(request);
        ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      }
      for (const auto& each : values) ASSERT_NO_FATAL_FAILURE(each->check());
      if (again == 0) return;
      ASSERT_TRUE(me.meet());
      ASSERT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
    };
    carry_out(0);
    if (!testing::Test::HasFatalFailure()) carry_out(1);
  }
  return moved;
}

TEST_P(Resharding, RandomLayoutsArriveWithoutStrayWrites) {
  run_job(GetParam(), 4, [](Member& me) {
    const uint64_t moved = move_in_rounds(
        me, 60, [&](uint64_t, Random& random) { return random_task(random, me.size()); },
        [&](const Task& task, uint32_t salt) {
          return std::make_unique<Values>(task, me.rank(), salt);
        });
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_GT(moved, 30u);
    me.meet();
  });
}

// Only the order of the dimensions is compared. A rank may say anything of the gaps in the memory
// of others.
TEST_P(Resharding, DifferingMemoryOrdersAreAMismatch) {
  run_job(GetParam(), 2, [](Member& me) {
    const auto grid = [](int32_t rank, uint64_t row, uint64_t column) {
      Grid made{.shape = {30, 40}, .parts = {}, .terms = 1};
      hetcomm_part_t part{};
      part.rank = rank;
      part.end[0] = 30;
      part.end[1] = 40;
      part.strides[0] = row;
      part.strides[1] = column;
      made.parts.push_back(part);
      return made;
    };
    const auto outcome_of = [&](const Grid& source, const Grid& destination) {
      Task task;
      task.sources = {source};
      task.destinations = {destination};
      hetcomm_reshard_t* const plan = create(me, task);
      Values values(task, me.rank(), 1);
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(
          hetcomm_reshard_start(plan, values.from.data(), values.to.data(), nullptr, &request),
          HETCOMM_OK);
      const Outcome outcome = finish(request);
      if (outcome.status == HETCOMM_OK) values.check();
      me.meet();
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
      return outcome;
    };
    // Each rank knows the gaps of its own memory only.
    const uint64_t gap = me.rank() == 0 ? 3 : 0;
    for (const bool transposed : {false, true}) {
      const auto held = [&](int32_t rank, uint64_t extra) {
        return transposed ? grid(rank, 1, 30 + extra) : grid(rank, 40 + extra, 1);
      };
      const Outcome outcome = outcome_of(held(0, gap), held(1, 3 - gap));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    }
    const bool is_first = me.rank() == 0;
    const Outcome outcome = outcome_of(is_first ? grid(0, 1, 30) : grid(0, 40, 1),
                                       is_first ? grid(1, 1, 30) : grid(1, 40, 1));
    EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
  });
}

// Rows of this length are sent in place, without packing.
TEST_P(Resharding, LongRowsAreSentWithoutPacking) {
  run_job(GetParam(), 4, [](Member& me) {
    Task task;
    Random random(7);
    // Ranks 0 and 1 have halves of the columns, ranks 2 and 3 have halves of the rows.
    Grid columns{.shape = {64, 40'000}, .parts = {}, .terms = 1};
    Grid rows = columns;
    for (int32_t i = 0; i < 2; ++i) {
      const auto half = static_cast<uint64_t>(i);
      hetcomm_part_t part{};
      part.rank = i;
      part.begin[1] = half * 20'000;
      part.end[0] = 64;
      part.end[1] = part.begin[1] + 20'000;
      part.strides[0] = 20'000;
      part.strides[1] = 1;
      columns.parts.push_back(part);
      part = {};
      part.rank = 2 + i;
      part.begin[0] = half * 32;
      part.end[0] = part.begin[0] + 32;
      part.end[1] = 40'000;
      part.strides[0] = 40'003;  // a gap after each row
      part.strides[1] = 1;
      rows.parts.push_back(part);
    }
    task.sources = {columns, rows};
    task.destinations = {rows, columns};
    hetcomm_reshard_t* plan = create(me, task);
    ASSERT_NE(plan, nullptr);
    for (uint32_t i = 0; i < 4; ++i) {
      Values values(task, me.rank(), i);
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(
          hetcomm_reshard_start(plan, values.from.data(), values.to.data(), nullptr, &request),
          HETCOMM_OK);
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      ASSERT_NO_FATAL_FAILURE(values.check());
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// Rank |rank| holds all |elements|.
Grid on_one(int32_t rank, uint64_t elements) {
  hetcomm_part_t part{};
  part.rank = rank;
  part.end[0] = elements;
  part.strides[0] = 1;
  return {.shape = {elements}, .parts = {part}, .terms = 1};
}
Task from_one_to_other(uint64_t elements, int32_t from = 0, int32_t to = 1) {
  Task task;
  task.sources = {on_one(from, elements)};
  task.destinations = {on_one(to, elements)};
  return task;
}

TEST_P(Resharding, SenderConvertsTypes) {
  run_job(GetParam(), 2, [](Member& me) {
    constexpr uint64_t kElements = 50'000;
    const Made source(on_one(0, kElements));
    const Made destination(on_one(1, kElements));
    // The numbers 1 to 128 are exact in all these types.
    std::vector<float> wide(kElements);
    for (uint64_t i = 0; i < kElements; ++i) wide[i] = static_cast<float>(1 + i % 128);
    const hetcomm_reshard_tensor_t down{source.get(), destination.get(), HETCOMM_FLOAT32,
                                        HETCOMM_BFLOAT16};
    const hetcomm_reshard_tensor_t up{source.get(), destination.get(), HETCOMM_FLOAT32,
                                      HETCOMM_FLOAT64};
    const hetcomm_reshard_tensor_t tensors[] = {down, up};
    hetcomm_reshard_t* plan = nullptr;
    ASSERT_EQ(hetcomm_reshard_create(me.communicator(), tensors, 2, nullptr, &plan), HETCOMM_OK)
        << hetcomm_last_error();
    std::vector<uint16_t> narrow(kElements);
    std::vector<double> wider(kElements);
    const hetcomm_buffer_t from[] = {hetcomm_buffer_host(wide.data(), kElements * 4),
                                     hetcomm_buffer_host(wide.data(), kElements * 4)};
    const hetcomm_buffer_t to[] = {hetcomm_buffer_host(narrow.data(), kElements * 2),
                                   hetcomm_buffer_host(wider.data(), kElements * 8)};
    hetcomm_request_t* request = nullptr;
    ASSERT_EQ(hetcomm_reshard_start(plan, me.rank() == 0 ? from : nullptr,
                                    me.rank() == 1 ? to : nullptr, nullptr, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    ASSERT_EQ(finish(request).status, HETCOMM_OK);
    for (uint64_t i = 0; i < kElements && me.rank() == 1; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &wide[i], 4);
      ASSERT_EQ(narrow[i], bits >> 16) << i;
      ASSERT_EQ(wider[i], static_cast<double>(wide[i])) << i;
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// A task's values in host memory or memory of random devices. A few bytes precede each tensor.
class PlacedValues {
 public:
  PlacedValues(Member& me, const Task& task, uint32_t salt, Random& random)
      : values_(task, me.rank(), salt) {
    place(me, values_.from, random, &sources_);
    place(me, values_.to, random, &destinations_);
    for (const Placed& each : sources_) from.push_back(each.buffer);
    for (const Placed& each : destinations_) to.push_back(each.buffer);
  }

  void check() {
    for (size_t i = 0; i < destinations_.size(); ++i) {
      const std::vector<std::byte> contents = destinations_[i].memory->contents();
      const hetcomm_buffer_t& held = values_.to[i];
      const auto before = static_cast<size_t>(destinations_[i].buffer.offset);
      EXPECT_TRUE(all_bytes(hetcomm::ConstByteSpan(contents).first(before), kAround));
      EXPECT_TRUE(
          all_bytes(hetcomm::ConstByteSpan(contents).subspan(before + held.length), kAround));
      std::memcpy(reinterpret_cast<void*>(held.offset), contents.data() + before, held.length);
    }
    values_.check();
  }

  void expect_quiet() {
    std::vector<std::vector<std::byte>> kept;
    for (const Placed& each : destinations_) {
      std::vector<std::byte> bytes = each.memory->contents();
      std::fill(bytes.begin(), bytes.end(), std::byte{0xa5});
      each.memory->fill(bytes);
      kept.push_back(std::move(bytes));
    }
    usleep(3000);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(destinations_[i].memory->contents() == kept[i])
          << "a memory was written after the end";
    }
  }

  std::vector<hetcomm_buffer_t> from;
  std::vector<hetcomm_buffer_t> to;

 private:
  static constexpr std::byte kAround{0x5a};
  struct Placed {
    std::unique_ptr<DeviceMemory> memory;
    hetcomm_buffer_t buffer{};
  };

  static void place(Member& me, const std::vector<hetcomm_buffer_t>& held, Random& random,
                    std::vector<Placed>* out) {
    for (const hetcomm_buffer_t& each : held) {
      const uint64_t before = random.below(3) * 8;
      const uint64_t size = before + each.length + random.below(3) * 8;
      const auto device = static_cast<int32_t>(random.below(3));
      Placed placed{std::make_unique<DeviceMemory>(me, device, std::max<uint64_t>(size, 1)), {}};
      std::vector<std::byte> bytes(size, kAround);
      if (each.length > 0) {
        std::memcpy(bytes.data() + before, reinterpret_cast<const void*>(each.offset), each.length);
      }
      placed.memory->fill(bytes);
      placed.buffer = placed.memory->part(before, each.length);
      out->push_back(std::move(placed));
    }
  }

  Values values_;
  std::vector<Placed> sources_;
  std::vector<Placed> destinations_;
};

// A few rows, so long that devices copy them one by one, in slices.
Task long_rows(Random& random) {
  Task task;
  const std::vector<uint64_t> shape = {random.between(2, 6), random.between(40'000, 60'000)};
  task.sources = {random_grid(random, shape, {{0, 1}}, 1, c_order(shape))};
  task.destinations = {random_grid(random, shape, {{0}, {1, 2}}, 1, c_order(shape))};
  task.options.in_flight = 2;
  task.options.slice_bytes = random.chance(0.5) ? 200'000 : 0;
  task.options.landing_bytes = random.chance(0.5) ? 1 : 0;
  return task;
}

TEST_P(ReshardingOnDevices, RandomLayoutsArriveWithoutStrayWrites) {
  run_job(GetParam(), 4, [](Member& me) {
    Random own(static_cast<uint64_t>(me.rank()) + 1);
    const uint64_t moved = move_in_rounds(
        me, 40,
        [&](uint64_t round, Random& random) {
          return round % 4 == 3 ? long_rows(random)
                                : random_task(random, me.size(), round % 4 == 0 ? 1 : 50);
        },
        [&](const Task& task, uint32_t salt) {
          return std::make_unique<PlacedValues>(me, task, salt, own);
        });
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_GT(moved, 20u);
    me.meet();
  });
}

// Rows of four dimensions need more than one copy of a device.
TEST_P(ReshardingOnDevices, RowsOfFourDimensionsArriveIntact) {
  run_job(GetParam(), 2, [](Member& me) {
    for (const int32_t device : {1, 2}) {
      const std::vector<uint64_t> shape = {3, 4, 5, 6, 40};
      Task task;
      // Each dimension is followed by a gap, so that none joins the next.
      const auto with_gaps = [&](int32_t rank) {
        Grid grid{.shape = shape, .parts = {}, .terms = 1};
        hetcomm_part_t part{};
        part.rank = rank;
        uint64_t stride = 1;
        for (size_t d = shape.size(); d-- > 0;) {
          part.end[d] = shape[d];
          part.strides[d] = stride;
          stride *= shape[d] + 1;
        }
        grid.parts.push_back(part);
        return grid;
      };
      task.sources = {with_gaps(0)};
      task.destinations = {with_gaps(1)};
      hetcomm_reshard_t* plan = create(me, task);
      ASSERT_NE(plan, nullptr);
      const Values values(task, me.rank(), 1);
      DeviceMemory from(me, device, values.from[0].length + 4);
      DeviceMemory to(me, device, values.to[0].length + 4);
      const auto bytes_of = [](const hetcomm_buffer_t& buffer) {
        const auto* first = reinterpret_cast<const std::byte*>(buffer.offset);
        return std::vector<std::byte>(first, first + buffer.length);
      };
      from.fill(bytes_of(values.from[0]));
      to.fill(bytes_of(values.to[0]));
      const hetcomm_buffer_t source = from.part(0, values.from[0].length);
      const hetcomm_buffer_t target = to.part(0, values.to[0].length);
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_reshard_start(plan, &source, &target, nullptr, &request), HETCOMM_OK)
          << hetcomm_last_error();
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      std::memcpy(reinterpret_cast<void*>(values.to[0].offset), to.contents().data(),
                  values.to[0].length);
      ASSERT_NO_FATAL_FAILURE(values.check());
      me.meet();
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
      me.meet();
    }
  });
}

TEST_P(ReshardingOnDevices, TypesAreConvertedOnDevices) {
  run_job(GetParam(), 2, [](Member& me) {
    constexpr uint64_t kRows = 70;
    constexpr uint64_t kColumns = 1000;
    // Rank 0 has everything. It keeps the left columns, and rank 1 receives the right ones.
    const auto columns = [](int32_t rank, uint64_t begin, uint64_t end) {
      hetcomm_part_t part{};
      part.rank = rank;
      part.begin[1] = begin;
      part.end[0] = kRows;
      part.end[1] = end;
      part.strides[0] = end - begin;
      part.strides[1] = 1;
      return part;
    };
    const Grid whole{{kRows, kColumns}, {columns(0, 0, kColumns)}, 1};
    const Grid halves{{kRows, kColumns}, {columns(0, 0, 400), columns(1, 400, kColumns)}, 1};
    const Made source(whole);
    const Made destination(halves);
    const hetcomm_reshard_tensor_t tensor{source.get(), destination.get(), HETCOMM_FLOAT32,
                                          HETCOMM_BFLOAT16};
    for (uint64_t slice_bytes : {0u, 20'000u}) {
      hetcomm_reshard_options_t options = wishes();
      options.slice_bytes = slice_bytes;
      options.landing_bytes = slice_bytes > 0 ? 1 : 0;
      hetcomm_reshard_t* plan = nullptr;
      ASSERT_EQ(hetcomm_reshard_create(me.communicator(), &tensor, 1, &options, &plan), HETCOMM_OK)
          << hetcomm_last_error();
      const uint64_t first = me.rank() == 0 ? 0 : 400;
      const uint64_t width = me.rank() == 0 ? 400 : 600;
      for (const int32_t devices : {11, 12, 21, 22, 1, 2, 10, 20}) {
        std::vector<float> wide(kRows * kColumns);
        for (uint64_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i) * 0.5f;
        DeviceMemory from(me, devices / 10, wide.size() * 4);
        DeviceMemory to(me, devices % 10, kRows * width * 2);
        std::vector<std::byte> bytes(wide.size() * 4);
        std::memcpy(bytes.data(), wide.data(), bytes.size());
        from.fill(bytes);
        const hetcomm_buffer_t out = from.part(0, wide.size() * 4);
        const hetcomm_buffer_t in = to.part(0, kRows * width * 2);
        hetcomm_request_t* request = nullptr;
        ASSERT_EQ(hetcomm_reshard_start(plan, &out, &in, nullptr, &request), HETCOMM_OK)
            << hetcomm_last_error();
        const Outcome outcome = finish(request);
        ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        const std::vector<std::byte> contents = to.contents();
        for (uint64_t i = 0; i < kRows * width; ++i) {
          uint16_t narrow = 0;
          std::memcpy(&narrow, contents.data() + 2 * i, 2);
          const uint32_t bits = uint32_t{narrow} << 16;
          float value = 0;
          std::memcpy(&value, &bits, 4);
          const float right = wide[i / width * kColumns + first + i % width];
          ASSERT_NEAR(value, right, right / 128) << i << " on devices " << devices;
        }
      }
      me.meet();
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
      me.meet();
    }
  });
}

// Bytes that grow in conversion stay on their rank, and also go to another rank.
TEST_P(ReshardingOnDevices, WideningConversionsWorkOnDevices) {
  run_job(GetParam(), 2, [](Member& me) {
    constexpr uint64_t kElements = 30'000;
    const Grid whole = on_one(0, kElements);
    const Made source(whole);
    const Made kept(whole);
    const Made sent(on_one(1, kElements));
    const hetcomm_reshard_tensor_t tensors[] = {
        {source.get(), kept.get(), HETCOMM_FLOAT32, HETCOMM_FLOAT64},
        {source.get(), sent.get(), HETCOMM_FLOAT32, HETCOMM_FLOAT64}};
    hetcomm_reshard_t* plan = nullptr;
    ASSERT_EQ(hetcomm_reshard_create(me.communicator(), tensors, 2, nullptr, &plan), HETCOMM_OK)
        << hetcomm_last_error();
    std::vector<float> values(kElements);
    for (uint64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i) * 0.25f;
    std::vector<std::byte> bytes(kElements * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    for (const int32_t devices : {11, 12, 21, 22, 1, 2, 10, 20}) {
      DeviceMemory from(me, devices / 10, kElements * 4);
      DeviceMemory to(me, devices % 10, kElements * 8);
      from.fill(bytes);
      const hetcomm_buffer_t out[] = {from.part(0, kElements * 4), from.part(0, kElements * 4)};
      const hetcomm_buffer_t in[] = {to.part(0, kElements * 8), to.part(0, kElements * 8)};
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_reshard_start(plan, out, in, nullptr, &request), HETCOMM_OK)
          << hetcomm_last_error();
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      const std::vector<std::byte> contents = to.contents();
      for (uint64_t i = 0; i < kElements; ++i) {
        double value = 0;
        std::memcpy(&value, contents.data() + 8 * i, 8);
        ASSERT_EQ(value, static_cast<double>(values[i])) << i << " on devices " << devices;
      }
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// Elements that stay in place on a rank are not copied. A copy would take longer.
TEST_P(ReshardingOnDevices, ElementsThatStayInPlaceAreNotCopied) {
  CapiCase slow = GetParam();
  slow.settings += "DEVICES=sim-handle:latency=250ms,sim-address:latency=250ms;";
  run_job(slow, 2, [](Member& me) {
    constexpr uint64_t kElements = 10'000;
    Task task = from_one_to_other(kElements);
    task.destinations = {on_one(0, kElements)};
    hetcomm_reshard_t* plan = create(me, task);
    ASSERT_NE(plan, nullptr);
    const uint64_t size = me.rank() == 0 ? kElements * 4 : 4;
    for (const int32_t device : {1, 2}) {
      DeviceMemory memory(me, device, size);
      std::vector<std::byte> bytes(size);
      Random random(1);
      for (std::byte& each : bytes) each = static_cast<std::byte>(random.below(256));
      memory.fill(bytes);
      const hetcomm_buffer_t buffer = memory.part(0, size);
      const uint64_t fastest = hetcomm::test::fastest_ns(5, [&] {
        hetcomm_request_t* request = nullptr;
        ASSERT_EQ(hetcomm_reshard_start(plan, &buffer, &buffer, nullptr, &request), HETCOMM_OK)
            << hetcomm_last_error();
        ASSERT_EQ(finish(request).status, HETCOMM_OK);
      });
      EXPECT_LT(fastest, 240 * kMs) << "a copy takes 250 ms at least";
      EXPECT_EQ(memory.contents(), bytes);
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// A device that can copy elements to another place on the same rank does so, however fast its link
// to the host is.
TEST(ReshardingOnADevice, ElementsThatStayOnADeviceDoNotPassThroughTheHost) {
  CapiCase slow = cases().front();
  slow.settings += "DEVICES=sim-address:bandwidth=1M,sim-address:bandwidth=1M;";
  run_job(slow, 2, [](Member& me) {
    constexpr uint64_t kRows = 2000;
    constexpr uint64_t kColumns = 100;
    constexpr uint64_t kPitch = 130;  // pitch of the destination
    Grid dense = on_one(0, kRows);
    dense.shape = {kRows, kColumns};
    dense.parts[0].end[1] = kColumns;
    dense.parts[0].strides[0] = kColumns;
    dense.parts[0].strides[1] = 1;
    Grid wide = dense;
    wide.parts[0].strides[0] = kPitch;
    Task task;
    task.sources = {dense};
    task.destinations = {wide};
    hetcomm_reshard_t* plan = create(me, task);
    ASSERT_NE(plan, nullptr);
    constexpr uint64_t kFromSize = kRows * kColumns * 4;
    constexpr uint64_t kToSize = kRows * kPitch * 4;
    const std::vector<std::byte> sent = pattern(kFromSize, 4);
    for (const int32_t other : {1, 2}) {
      constexpr int kTries = 4;
      hetcomm_request_t* request = nullptr;
      if (me.rank() != 0) {
        for (int i = 0; i < kTries; ++i) {
          EXPECT_EQ(hetcomm_reshard_start(plan, nullptr, nullptr, nullptr, &request), HETCOMM_OK);
          EXPECT_EQ(finish(request).status, HETCOMM_OK);
        }
        continue;
      }
      DeviceMemory from(me, 1, kFromSize);
      DeviceMemory to(me, other, kToSize);
      from.fill(sent);
      to.fill(std::vector<std::byte>(kToSize, std::byte{0x77}));
      const hetcomm_buffer_t out = from.part(0, kFromSize);
      const hetcomm_buffer_t in = to.part(0, kToSize);
      const uint64_t fastest = hetcomm::test::fastest_ns(kTries, [&] {
        ASSERT_EQ(hetcomm_reshard_start(plan, &out, &in, nullptr, &request), HETCOMM_OK)
            << hetcomm_last_error();
        ASSERT_EQ(finish(request).status, HETCOMM_OK);
      });
      EXPECT_LT(fastest, 1200 * kMs) << "through the host it takes 1600 ms";
      const std::vector<std::byte> got = to.contents();
      for (uint64_t i = 0; i < kRows; ++i) {
        const std::byte* const row = got.data() + i * kPitch * 4;
        ASSERT_TRUE(std::equal(row, row + kColumns * 4, sent.data() + i * kColumns * 4)) << i;
        if (i + 1 == kRows) break;
        ASSERT_TRUE(std::all_of(row + kColumns * 4, row + kPitch * 4, [](std::byte byte) {
          return byte == std::byte{0x77};
        })) << i;
      }
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// Starts |task| and returns its outcome.
template <typename Held>
Outcome execute(hetcomm_reshard_t* plan, Held& values, uint64_t timeout_ns = 0) {
  const hetcomm_operation_options_t options = with_timeout(timeout_ns);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_reshard_start(plan, values.from.data(), values.to.data(), &options, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return finish(request);
}

TEST_P(Resharding, DifferentPlansAreAMismatch) {
  run_job(GetParam(), 2, [](Member& me) {
    Task task = from_one_to_other(5000);
    // Rank 1 uses another slice size.
    if (me.rank() == 1) task.options.slice_bytes = 4000;
    hetcomm_reshard_t* plan = create(me, task);
    Values values(task, me.rank(), 0);
    const Outcome outcome = execute(plan, values);
    EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
    EXPECT_NE(outcome.text.find("has made another plan than rank"), std::string::npos)
        << outcome.text;
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
    me.meet();
  });
}

// Waits until this rank has received all earlier messages from the other of two ranks, as messages
// keep their order.
void hear(Member& me) {
  uint64_t word = 0;
  uint64_t other = 0;
  std::vector<hetcomm_request_t*> requests{me.send(me.partner(), 99, &word, sizeof(word)),
                                           me.recv(me.partner(), 99, &other, sizeof(other))};
  finish_all(requests);
}

TEST_P(Resharding, TimeoutNamesTheAwaitedRank) {
  run_job(GetParam(), 2, [](Member& me) {
    const Task task = from_one_to_other(50'000);
    hetcomm_reshard_t* plan = create(me, task);
    Values values(task, me.rank(), 0);
    if (me.rank() == 1) {
      const Outcome outcome = execute(plan, values, 200 * kMs);
      EXPECT_EQ(outcome.status, HETCOMM_TIMED_OUT);
      EXPECT_NE(outcome.text.find("waits for rank 0"), std::string::npos) << outcome.text;
      hear(me);
    } else {
      hear(me);
      EXPECT_EQ(execute(plan, values).status, HETCOMM_ABORTED);
    }
    // The execution ended on its own, because none of its data had moved.
    EXPECT_EQ(execute(plan, values).status, HETCOMM_OK);
    values.check();
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

TEST_P(Resharding, PlanIsBusyDuringAnExecution) {
  run_job(GetParam(), 2, [](Member& me) {
    Task task = from_one_to_other(300'000);
    task.options.in_flight = 3;
    task.options.slice_bytes = 100'000;
    hetcomm_reshard_t* plan = create(me, task);
    Values values(task, me.rank(), 0);
    if (me.rank() == 0) {
      std::vector<hetcomm_request_t*> requests(3);
      for (hetcomm_request_t*& request : requests) {
        ASSERT_EQ(hetcomm_reshard_start(plan, values.from.data(), nullptr, nullptr, &request),
                  HETCOMM_OK);
      }
      hetcomm_request_t* more = nullptr;
      EXPECT_EQ(hetcomm_reshard_start(plan, values.from.data(), nullptr, nullptr, &more),
                HETCOMM_BUSY);
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_BUSY);
      for (hetcomm_request_t* request : requests) {
        EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
        EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
      }
      me.meet();
    } else {
      me.meet();
      EXPECT_EQ(execute(plan, values).status, HETCOMM_ABORTED);
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// Leftovers of a plan that the ranks did not agree on do not affect a later plan.
TEST_P(Resharding, CorrectPlanWorksAfterAMismatch) {
  run_job(GetParam(), 2, [](Member& me) {
    const Task task = from_one_to_other(50'000);
    for (const int32_t strategy : {HETCOMM_STRATEGY_LEADER, HETCOMM_STRATEGY_DIRECT}) {
      Task wrong = task;
      wrong.sources[0] = on_one(0, 50'000);
      wrong.options.strategy = me.rank() == 0 ? strategy : HETCOMM_STRATEGY_BSR;
      wrong.options.slice_bytes = me.rank() == 0 ? 0 : 3000;
      hetcomm_reshard_t* plan = create(me, wrong);
      Values values(task, me.rank(), 0);
      EXPECT_NE(execute(plan, values, 500 * kMs).status, HETCOMM_OK);
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
      me.meet();
      plan = create(me, task);
      const Outcome outcome = execute(plan, values);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      values.check();
      me.meet();
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
      me.meet();
    }
  });
}

// Ranks describe the same layouts with different handles: one for two tensors, or one for each.
TEST_P(Resharding, EqualLayoutsWithDifferentHandlesMakeEqualPlans) {
  run_job(GetParam(), 2, [](Member& me) {
    const Grid from = on_one(0, 700);
    const Grid to = on_one(1, 700);
    const Made source(from);
    const Made destination(to);
    const Made other(from);
    std::vector<hetcomm_reshard_tensor_t> tensors(
        2, {source.get(), destination.get(), HETCOMM_UINT32, HETCOMM_UINT32});
    if (me.rank() == 1) tensors[1].source = other.get();
    hetcomm_reshard_t* plan = nullptr;
    ASSERT_EQ(hetcomm_reshard_create(me.communicator(), tensors.data(), 2, nullptr, &plan),
              HETCOMM_OK);
    const Task task{.sources = {from, from}, .destinations = {to, to}};
    Values values(task, me.rank(), 0);
    const Outcome outcome = execute(plan, values);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    values.check();
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// Host memory with a handle is also in use.
TEST_P(Resharding, MemoryIsBusyDuringAnExecution) {
  run_job(GetParam(), 2, [](Member& me) {
    const Task task = from_one_to_other(1000);
    hetcomm_reshard_t* plan = create(me, task);
    Values values(task, me.rank(), 0);
    if (me.rank() == 1) {
      hetcomm_memory_t* memory = nullptr;
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 4000, &memory), HETCOMM_OK);
      const hetcomm_buffer_t buffer = hetcomm_buffer_memory(memory, 0, 4000);
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_reshard_start(plan, nullptr, &buffer, nullptr, &request), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY);
      me.meet();
      EXPECT_EQ(finish(request).status, HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
    } else {
      me.meet();
      EXPECT_EQ(execute(plan, values).status, HETCOMM_OK);
    }
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    me.meet();
  });
}

// The receiver has already started when it learns that the sender has abandoned the execution.
TEST_P(Resharding, ExecutionAbandonedByAPeerEndsWithAborted) {
  run_job(GetParam(), 2, [](Member& me) {
    const Task task = from_one_to_other(50'000);
    for (const int32_t gives_up : {0, 1}) {
      hetcomm_reshard_t* plan = create(me, task);
      Values values(task, me.rank(), 0);
      ASSERT_EQ(execute(plan, values).status, HETCOMM_OK);
      ASSERT_TRUE(me.meet());
      if (me.rank() == gives_up) {
        hetcomm_request_t* request = nullptr;
        ASSERT_EQ(
            hetcomm_reshard_start(plan, values.from.data(), values.to.data(), nullptr, &request),
            HETCOMM_OK);
        EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
        EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
        EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
        ASSERT_TRUE(me.meet_quietly());
      } else {
        ASSERT_TRUE(me.meet_quietly());
        EXPECT_EQ(execute(plan, values).status, HETCOMM_ABORTED);
        EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
      }
      me.meet();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Resharding, ::testing::ValuesIn(cases()), capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, ReshardingOnDevices, ::testing::ValuesIn(device_cases()),
                         capi_case_name);

class ReshardingPeerDeath : public CapiTest {};
class ReshardingPeerDeathOnDevices : public CapiTest {};

// Returns |elements| in two equal parts, on ranks 0 and 1.
Grid halves_of(uint64_t elements) {
  Grid halves{.shape = {elements}, .parts = {}, .terms = 1};
  for (int32_t i = 0; i < 2; ++i) {
    hetcomm_part_t part = on_one(i, elements / 2).parts[0];
    part.begin[0] = i == 0 ? 0 : elements / 2;
    part.end[0] = part.begin[0] + elements / 2;
    halves.parts.push_back(part);
  }
  return halves;
}

// A rank dies at a random moment. Every rank involved with it learns of its death.
TEST_P(ReshardingPeerDeath, DeathEndsTheExecutionAndIsReported) {
  for (uint64_t round = 0; round < 3; ++round) {
    run_job(GetParam(), 3, [round](Member& me) {
      Task task;
      const Grid halves = halves_of(2'000'000);
      task.sources = {halves, on_one(2, 2'000'000)};
      task.destinations = {on_one(2, 2'000'000), halves};
      task.options.slice_bytes = 200'000;
      hetcomm_reshard_t* plan = create(me, task);
      ASSERT_NE(plan, nullptr);
      Values values(task, me.rank(), 0);
      Outcome outcome = execute(plan, values);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      me.meet();
      if (me.rank() == 1) {
        hetcomm_request_t* request = nullptr;
        EXPECT_EQ(
            hetcomm_reshard_start(plan, values.from.data(), values.to.data(), nullptr, &request),
            HETCOMM_OK);
        usleep(static_cast<useconds_t>(round * 700));
        me.die();
      }
      outcome.status = HETCOMM_OK;
      for (int i = 0; i < 200 && outcome.status == HETCOMM_OK; ++i) outcome = execute(plan, values);
      // Rank 0 exchanges data only with rank 2, which reports the loss.
      EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST) << outcome.text;
      EXPECT_NE(outcome.text.find("rank 1"), std::string::npos) << outcome.text;
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
      me.expect_ruin();
    });
  }
}

// After one execution rank 1 dies. Rank 2 learns of it in the next one and leaves. Rank 0 calls
// that execution after all of this.
void end_with_the_dead(const CapiCase& over, const Task& task) {
  run_job(over, 3, [&task](Member& me) {
    hetcomm_reshard_t* plan = create(me, task);
    ASSERT_NE(plan, nullptr);
    Values values(task, me.rank(), 0);
    Outcome outcome = execute(plan, values);
    ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    me.meet();
    if (me.rank() == 1) me.die();
    me.expect_ruin();
    if (me.rank() == 0) {
      EXPECT_TRUE(me.until([&] {
        return hetcomm_communicator_peer_status(me.communicator(), 2) == HETCOMM_PEER_LOST;
      }));
    }
    outcome = execute(plan, values);
    EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST) << outcome.text;
    EXPECT_NE(outcome.text.find("rank 1"), std::string::npos) << outcome.text;
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(ReshardingPeerDeath, FirstReasonIsKeptAfterItsSenderLeaves) {
  Task task;
  const Grid halves = halves_of(20'000);
  task.sources = {halves, on_one(2, 20'000)};
  task.destinations = {on_one(2, 20'000), halves};
  task.options.strategy = HETCOMM_STRATEGY_DIRECT;  // rank 0 exchanges data only with rank 2
  end_with_the_dead(GetParam(), task);
}

// Rank 2's first steps are with rank 0, its last one is with rank 1.
TEST_P(ReshardingPeerDeath, LaterStepWithADeadRankIsNotAwaited) {
  Task task;
  task.sources = {on_one(0, 500'000), on_one(1, 1000)};
  task.destinations = {on_one(2, 500'000), on_one(2, 1000)};
  task.options.strategy = HETCOMM_STRATEGY_DIRECT;
  task.options.slice_bytes = 20'000;
  end_with_the_dead(GetParam(), task);
}

// At a random moment a rank dies, cancels an execution or reaches the deadline of one. All ranks
// learn of it, and the living ranks make another plan. make(member, task, salt) returns values in
// memory of some kind.
template <typename Make>
void end_at_any_step(const CapiCase& over, Make make) {
  const uint64_t rounds = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 500 : 4;
  for (uint64_t round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    run_job(over, 3, [round, make](Member& me) {
      enum { kDies, kCancels, kHasNoTime };
      Random random(1000 * round + 5);
      const auto what = random.below(3);
      const bool is_culprit = static_cast<uint64_t>(me.rank()) == random.below(3);
      const uint64_t after_us = random.chance(0.5) ? random.below(400) : random.below(4000);
      Task task;
      const Grid halves = halves_of(600'000);
      task.sources = {halves, on_one(2, 600'000)};
      task.destinations = {on_one(2, 600'000), halves};
      constexpr int32_t kStrategies[] = {HETCOMM_STRATEGY_DIRECT, HETCOMM_STRATEGY_LEADER,
                                         HETCOMM_STRATEGY_GATHER_P2P_SCATTER, HETCOMM_STRATEGY_BSR};
      task.options.strategy = kStrategies[random.below(4)];
      task.options.slice_bytes = random.between(20'000, 2'000'000);
      task.options.landing_bytes = random.chance(0.5) ? 1 : 0;
      hetcomm_reshard_t* plan = create(me, task);
      ASSERT_NE(plan, nullptr);
      const auto held = make(me, task, round);
      auto& values = *held;
      Outcome outcome = execute(plan, values);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      me.meet();
      // The time until it ends becomes shorter each time, so that the execution is not over before.
      for (uint64_t i = 0; i < 2000 && outcome.status == HETCOMM_OK; ++i) {
        if (!is_culprit) {
          outcome = execute(plan, values);
          continue;
        }
        const hetcomm_operation_options_t options =
            with_timeout(what == kHasNoTime ? after_us * 1000 / (i + 1) + 1 : 0);
        hetcomm_request_t* request = nullptr;
        if (hetcomm_reshard_start(plan, values.from.data(), values.to.data(), &options, &request) !=
            HETCOMM_OK) {
          outcome.status = HETCOMM_INTERNAL;
          break;
        }
        if (what != kHasNoTime) usleep(static_cast<useconds_t>(after_us / (i + 1)));
        if (what == kDies) me.die();
        if (what == kCancels) {
          EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
        }
        outcome = finish(request);
      }
      const std::set<hetcomm_status_t> wanted =
          what == kDies      ? std::set<hetcomm_status_t>{HETCOMM_PEER_LOST}
          : !is_culprit      ? std::set<hetcomm_status_t>{HETCOMM_ABORTED}
          : what == kCancels ? std::set<hetcomm_status_t>{HETCOMM_CANCELLED}
                             : std::set<hetcomm_status_t>{HETCOMM_TIMED_OUT};
      EXPECT_TRUE(wanted.contains(outcome.status))
          << "kind " << what << ", culprit " << is_culprit << ": " << outcome.status << ", "
          << outcome.text;
      EXPECT_FALSE(outcome.text.empty());
      if (!is_culprit && what != kDies) {
        // The text has one form after data has moved, and another before.
        const std::string status = what == kCancels ? "CANCELLED" : "TIMED_OUT";
        const bool names_it = outcome.text.find(": " + status + ": ") != std::string::npos ||
                              outcome.text.find(" (" + status + "): ") != std::string::npos;
        EXPECT_TRUE(names_it) << outcome.text;
      }
      values.expect_quiet();
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
      if (what == kDies) {
        me.expect_ruin();
        return;
      }
      me.meet();
      hetcomm_reshard_t* fresh = create(me, task);
      ASSERT_NE(fresh, nullptr);
      const auto more = make(me, task, round + 9);
      outcome = execute(fresh, *more);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      more->check();
      EXPECT_EQ(hetcomm_reshard_destroy(fresh), HETCOMM_OK) << hetcomm_last_error();
      me.meet();
    });
  }
}

TEST_P(ReshardingPeerDeath, DeathAtAnyStepEndsTheExecution) {
  end_at_any_step(GetParam(), [](Member& me, const Task& task, uint64_t salt) {
    return std::make_unique<Values>(task, me.rank(), static_cast<uint32_t>(salt));
  });
}

// The fault occurs while slow devices copy.
TEST_P(ReshardingPeerDeathOnDevices, DeathAtAnyStepEndsTheExecution) {
  end_at_any_step(GetParam(), [](Member& me, const Task& task, uint64_t salt) {
    Random random(salt * 3 + static_cast<uint64_t>(me.rank()));
    return std::make_unique<PlacedValues>(me, task, static_cast<uint32_t>(salt), random);
  });
}

std::vector<CapiCase> slow_device_cases() {
  std::vector<CapiCase> all = process_cases();
  for (CapiCase& each : all) {
    each.settings += "DEVICES=sim-handle:bandwidth=2G,sim-address:bandwidth=2G;";
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Over, ReshardingPeerDeath, ::testing::ValuesIn(process_cases()),
                         capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, ReshardingPeerDeathOnDevices,
                         ::testing::ValuesIn(slow_device_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
