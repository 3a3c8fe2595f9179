// Rules for the memory of redistributions, in host memory and on devices:
//
//   * boxes of one rank that overlap in its memory are refused as a destination when the plan is
//     made, on all ranks, and are allowed as a source
//   * at the start of an execution, a destination that overlaps a source, another destination, or
//     memory of an execution in progress is refused; nothing is written and the plan survives
//   * tensors that interleave in one buffer, and data that stays in place, are right
//   * sources may share memory
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"
#include "tests/conformance/capi/reshard/layouts.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kRows = 64;
constexpr uint64_t kColumns = 48;

class ReshardingMemory : public CapiTest {};

// Returns rows [begin, end) of a tensor of |rows|, |stride| elements apart.
hetcomm_part_t rows_at(int32_t rank, uint64_t begin, uint64_t end, uint64_t offset,
                       uint64_t stride = kColumns) {
  hetcomm_part_t part{};
  part.rank = rank;
  part.begin[0] = begin;
  part.end[0] = end;
  part.end[1] = kColumns;
  part.strides[0] = stride;
  part.strides[1] = 1;
  part.offset = offset;
  return part;
}
Grid grid_of(std::vector<hetcomm_part_t> parts, uint64_t rows = kRows) {
  return {.shape = {rows, kColumns}, .parts = std::move(parts), .terms = 1};
}
Grid halves_of_rows() {
  return grid_of({rows_at(0, 0, kRows / 2, 0), rows_at(1, kRows / 2, kRows, 0)});
}
Grid halves_of_columns() {
  Grid grid = grid_of({});
  for (int32_t rank = 0; rank < 2; ++rank) {
    hetcomm_part_t part{};
    part.rank = rank;
    part.begin[1] = static_cast<uint64_t>(rank) * kColumns / 2;
    part.end[0] = kRows;
    part.end[1] = part.begin[1] + kColumns / 2;
    part.strides[0] = kColumns / 2;
    part.strides[1] = 1;
    grid.parts.push_back(part);
  }
  return grid;
}

hetcomm_status_t create(Member& me, const std::vector<Grid>& sources,
                        const std::vector<Grid>& destinations, hetcomm_reshard_t** plan,
                        uint32_t in_flight = 1) {
  std::vector<std::unique_ptr<Made>> layouts;
  std::vector<hetcomm_reshard_tensor_t> tensors;
  for (size_t i = 0; i < sources.size(); ++i) {
    layouts.push_back(std::make_unique<Made>(sources[i]));
    layouts.push_back(std::make_unique<Made>(destinations[i]));
    tensors.push_back(
        {layouts[2 * i]->get(), layouts[2 * i + 1]->get(), HETCOMM_UINT32, HETCOMM_UINT32});
  }
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.in_flight = in_flight;
  options.prove = 1;
  return hetcomm_reshard_create(me.communicator(), tensors.data(), tensors.size(), &options, plan);
}

void destroy(Member& me, hetcomm_reshard_t* plan) {
  EXPECT_TRUE(me.meet());
  EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_TRUE(me.meet());
}

bool has_said(const std::string& text) {
  return std::string(hetcomm_last_error()).find(text) != std::string::npos;
}

// Returns element |number| of tensor |tensor|.
uint32_t value(uint64_t number, uint32_t tensor = 0) {
  return static_cast<uint32_t>(number + 1) + tensor * 1'000'000;
}

// This rank's memory, on the host or on a device.
class Store {
 public:
  Store(Member& me, int32_t device, uint64_t elements)
      : memory_(me, device, elements * 4), elements_(elements) {}
  std::vector<uint32_t> get() {
    const std::vector<std::byte> bytes = memory_.contents();
    std::vector<uint32_t> values(elements_);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  void set(const std::vector<uint32_t>& values) {
    std::vector<std::byte> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    memory_.fill(bytes);
  }
  // Writes |rank|'s elements of |grid|.
  void put(const Grid& grid, int32_t rank, uint64_t at = 0, uint32_t tensor = 0) {
    std::vector<uint32_t> values = get();
    grid.for_each(rank, [&](uint64_t place, uint64_t number, uint32_t) {
      values[at + place] = value(number, tensor);
    });
    set(values);
  }
  void expect(const Grid& grid, int32_t rank, uint64_t at = 0, uint32_t tensor = 0) {
    const std::vector<uint32_t> values = get();
    size_t wrong = 0;
    grid.for_each(rank, [&](uint64_t place, uint64_t number, uint32_t) {
      wrong += values[at + place] == value(number, tensor) ? 0u : 1u;
    });
    EXPECT_EQ(wrong, 0u) << "elements of tensor " << tensor << " on rank " << rank;
  }
  hetcomm_buffer_t from(uint64_t at) { return memory_.part(at * 4, (elements_ - at) * 4); }

 private:
  DeviceMemory memory_;
  uint64_t elements_;
};

Outcome carry_out(hetcomm_reshard_t* plan, const std::vector<hetcomm_buffer_t>& sources,
                  const std::vector<hetcomm_buffer_t>& destinations) {
  hetcomm_request_t* request = nullptr;
  const hetcomm_status_t status =
      hetcomm_reshard_start(plan, sources.data(), destinations.data(), nullptr, &request);
  if (status != HETCOMM_OK) {
    Outcome refused;
    refused.call = status;
    return refused;
  }
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  return outcome;
}

TEST_P(ReshardingMemory, OverlappingBoxesAreRefusedAsADestination) {
  run_job(GetParam(), 2, [](Member& me) {
    const Grid whole = grid_of({rows_at(1, 0, kRows, 0)});
    // The second offset is missing, so that the boxes overlap.
    const Grid over = grid_of({rows_at(0, 0, 32, 0), rows_at(0, 32, kRows, 0)});
    hetcomm_reshard_t* plan = nullptr;
    EXPECT_EQ(create(me, {whole}, {over}, &plan), HETCOMM_INVALID_ARGUMENT);
    EXPECT_TRUE(has_said("rank 0, box [32:64, 0:48]")) << hetcomm_last_error();
    EXPECT_EQ(create(me, {whole, whole}, {whole, over}, &plan), HETCOMM_INVALID_ARGUMENT);
    EXPECT_TRUE(has_said("tensor 1")) << hetcomm_last_error();
    // A source repeats its rows.
    ASSERT_EQ(create(me, {over}, {whole}, &plan), HETCOMM_OK) << hetcomm_last_error();
    Store own(me, 0, kRows * kColumns);
    Store got(me, 0, kRows * kColumns);
    own.put(grid_of({rows_at(0, 0, 32, 0)}), 0);
    carry_out(plan, {own.from(0)}, {got.from(0)});
    if (me.rank() == 1) {
      const std::vector<uint32_t> values = got.get();
      EXPECT_TRUE(std::equal(values.begin(), values.begin() + 32 * kColumns,
                             values.begin() + 32 * kColumns));
      EXPECT_EQ(values.front(), value(0));
    }
    destroy(me, plan);
  });
}

TEST_P(ReshardingMemory, DestinationThatOverlapsItsSourceIsRefused) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, 2, [](Member& me) {
    for (const int32_t device : {0, 1, 2}) {
      hetcomm_reshard_t* plan = nullptr;
      ASSERT_EQ(create(me, {halves_of_rows()}, {halves_of_columns()}, &plan), HETCOMM_OK);
      constexpr uint64_t kHalf = kRows * kColumns / 2;
      Store store(me, device, 2 * kHalf);
      store.put(halves_of_rows(), me.rank());
      const std::vector<uint32_t> before = store.get();
      for (const uint64_t distance : {uint64_t{0}, kHalf - 1}) {
        const Outcome outcome = carry_out(plan, {store.from(0)}, {store.from(distance)});
        EXPECT_EQ(outcome.call, HETCOMM_INVALID_ARGUMENT);
        EXPECT_TRUE(has_said("the destination of tensor 0 overlaps the source of tensor 0"))
            << hetcomm_last_error();
      }
      EXPECT_EQ(store.get(), before);
      // A refused start does not count, and the plan survives.
      for (int again = 0; again < 2; ++again) {
        carry_out(plan, {store.from(0)}, {store.from(kHalf)});
        store.expect(halves_of_columns(), me.rank(), kHalf);
      }
      destroy(me, plan);
    }
  });
}

// Each rank already has its rows in their final place, and receives the other ranks' rows.
TEST_P(ReshardingMemory, DataAlreadyInPlaceIsAccepted) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, 2, [](Member& me) {
    const Grid parts = grid_of({rows_at(0, 0, 40, 0), rows_at(1, 40, kRows, 40 * kColumns)});
    Grid all = grid_of({rows_at(0, 0, kRows, 0), rows_at(1, 0, kRows, 0)});
    all.parts[1].copy = 1;
    for (const int32_t device : {0, 1, 2}) {
      hetcomm_reshard_t* plan = nullptr;
      ASSERT_EQ(create(me, {parts}, {all}, &plan), HETCOMM_OK);
      for (int again = 0; again < 3; ++again) {
        Store store(me, device, kRows * kColumns);
        store.put(parts, me.rank());
        const Outcome outcome = carry_out(plan, {store.from(0)}, {store.from(0)});
        ASSERT_EQ(outcome.status, HETCOMM_OK) << hetcomm_last_error();
        store.expect(all, me.rank());
      }
      destroy(me, plan);
    }
  });
}

// Rows of three tensors take turns in one buffer.
TEST_P(ReshardingMemory, InterleavedTensorsArriveIntact) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, 2, [](Member& me) {
    const std::vector<Grid> sources(3, grid_of({rows_at(0, 0, kRows, 0)}));
    const Grid interleaved = grid_of({rows_at(1, 0, kRows, 0, 3 * kColumns)});
    const std::vector<Grid> destinations(3, interleaved);
    constexpr uint64_t kElements = kRows * kColumns;
    for (const int32_t device : {0, 1, 2}) {
      hetcomm_reshard_t* plan = nullptr;
      ASSERT_EQ(create(me, sources, destinations, &plan), HETCOMM_OK) << hetcomm_last_error();
      Store own(me, device, 3 * kElements);
      Store fused(me, device, 3 * kElements + 1);
      std::vector<hetcomm_buffer_t> from;
      std::vector<hetcomm_buffer_t> to;
      for (uint32_t i = 0; i < 3; ++i) {
        own.put(sources[i], 0, i * kElements, i);
        from.push_back(own.from(i * kElements));
        to.push_back(fused.from(i * kColumns));
      }
      carry_out(plan, from, to);
      for (uint32_t i = 0; i < 3 && me.rank() == 1; ++i) {
        fused.expect(interleaved, 1, i * kColumns, i);
      }
      EXPECT_TRUE(me.meet());
      // One element further, the rows would overlap the first row of another tensor.
      to[1] = fused.from(kColumns + 1);
      if (me.rank() == 1) {
        EXPECT_EQ(carry_out(plan, from, to).call, HETCOMM_INVALID_ARGUMENT);
        EXPECT_TRUE(has_said("the destination of tensor 2 overlaps the destination of tensor 1"))
            << hetcomm_last_error();
      }
      to[1] = fused.from(kColumns);
      // Sources may share memory.
      from.assign(3, own.from(0));
      carry_out(plan, from, to);
      for (uint32_t i = 0; i < 3 && me.rank() == 1; ++i) {
        fused.expect(interleaved, 1, i * kColumns, 0);
      }
      destroy(me, plan);
    }
  });
}

// Two wrapped memories and one allocated memory lie in one allocation.
TEST_P(ReshardingMemory, OverlapWithinAnAllocationIsRefused) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-address;";
  run_job(with_devices, 2, [](Member& me) {
    constexpr uint64_t kElements = kRows * kColumns;
    constexpr uint64_t kBytes = kElements * 4;
    const std::vector<Grid> sources(2, grid_of({rows_at(0, 0, kRows, 0)}));
    const std::vector<Grid> destinations(2, grid_of({rows_at(1, 0, kRows, 0)}));
    hetcomm_reshard_t* plan = nullptr;
    ASSERT_EQ(create(me, sources, destinations, &plan), HETCOMM_OK) << hetcomm_last_error();
    hetcomm_memory_t* whole = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 1, 4 * kBytes, &whole), HETCOMM_OK);
    void* address = nullptr;
    ASSERT_EQ(hetcomm_memory_address(whole, &address), HETCOMM_OK);
    const auto wrap = [&](uint64_t at) {
      hetcomm_memory_t* part = nullptr;
      EXPECT_EQ(
          hetcomm_memory_wrap(me.context(), 1, static_cast<char*>(address) + at, kBytes, &part),
          HETCOMM_OK)
          << hetcomm_last_error();
      return part;
    };
    hetcomm_memory_t* const first = wrap(0);
    hetcomm_memory_t* const middle = wrap(kBytes - 4);
    hetcomm_memory_t* const second = wrap(kBytes);
    const auto start = [&](const hetcomm_buffer_t& one, const hetcomm_buffer_t& other) {
      const std::vector<hetcomm_buffer_t> from(2, hetcomm_buffer_memory(whole, 2 * kBytes, kBytes));
      const std::vector<hetcomm_buffer_t> to = {one, other};
      hetcomm_request_t* request = nullptr;
      const hetcomm_status_t status =
          hetcomm_reshard_start(plan, from.data(), to.data(), nullptr, &request);
      if (status == HETCOMM_OK) {
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      }
      return status;
    };
    if (me.rank() == 1) {
      EXPECT_EQ(
          start(hetcomm_buffer_memory(first, 0, kBytes), hetcomm_buffer_memory(middle, 0, kBytes)),
          HETCOMM_INVALID_ARGUMENT);
      EXPECT_TRUE(has_said("overlaps the destination of tensor")) << hetcomm_last_error();
      EXPECT_EQ(
          start(hetcomm_buffer_memory(middle, 0, kBytes), hetcomm_buffer_memory(whole, 0, kBytes)),
          HETCOMM_INVALID_ARGUMENT);
    }
    EXPECT_EQ(
        start(hetcomm_buffer_memory(first, 0, kBytes), hetcomm_buffer_memory(second, 0, kBytes)),
        HETCOMM_OK)
        << hetcomm_last_error();
    destroy(me, plan);
    for (hetcomm_memory_t* each : {first, middle, second, whole}) {
      EXPECT_EQ(hetcomm_memory_destroy(each), HETCOMM_OK) << hetcomm_last_error();
    }
  });
}

// Executions in progress do not share their memory.
TEST_P(ReshardingMemory, OverlapWithARunningExecutionIsRefused) {
  run_job(GetParam(), 2, [](Member& me) {
    const Grid whole = grid_of({rows_at(0, 0, kRows, 0)});
    const Grid target = grid_of({rows_at(1, 0, kRows, 0)});
    hetcomm_reshard_t* plan = nullptr;
    ASSERT_EQ(create(me, {whole}, {target}, &plan, 3), HETCOMM_OK);
    constexpr uint64_t kElements = kRows * kColumns;
    Store own(me, 0, kElements);
    Store got(me, 0, 2 * kElements);
    own.put(whole, 0);
    const auto start = [&](uint64_t at, hetcomm_request_t** request) {
      const hetcomm_buffer_t from = own.from(0);
      const hetcomm_buffer_t to = got.from(at);
      return hetcomm_reshard_start(plan, &from, &to, nullptr, request);
    };
    for (int round = 0; round < 3; ++round) {
      std::vector<hetcomm_request_t*> requests(2);
      if (me.rank() == 1) {
        ASSERT_EQ(start(0, &requests[0]), HETCOMM_OK) << hetcomm_last_error();
        hetcomm_request_t* refused = nullptr;
        EXPECT_EQ(start(0, &refused), HETCOMM_INVALID_ARGUMENT);
        EXPECT_TRUE(has_said("of an execution that is under way")) << hetcomm_last_error();
        EXPECT_EQ(start(kElements - 1, &refused), HETCOMM_INVALID_ARGUMENT);
        ASSERT_EQ(start(kElements, &requests[1]), HETCOMM_OK) << hetcomm_last_error();
      }
      ASSERT_TRUE(me.meet());  // rank 0 sends nothing before this
      for (hetcomm_request_t*& request : requests) {
        // Both executions have one source.
        if (me.rank() == 0) {
          ASSERT_EQ(start(0, &request), HETCOMM_OK) << hetcomm_last_error();
        }
      }
      for (hetcomm_request_t* request : requests) {
        const Outcome outcome = finish(request);
        ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      }
      if (me.rank() == 1) {
        got.expect(target, 1, 0);
        got.expect(target, 1, kElements);
      }
      ASSERT_TRUE(me.meet());
    }
    destroy(me, plan);
  });
}

std::vector<CapiCase> several_ranks() {
  std::vector<CapiCase> few;
  for (CapiCase& each : plain_cases()) {
    if (!each.alone()) few.push_back(std::move(each));
  }
  return few;
}

INSTANTIATE_TEST_SUITE_P(Over, ReshardingMemory, ::testing::ValuesIn(several_ranks()),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
