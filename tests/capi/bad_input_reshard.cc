// Bad input to layouts and plans.
#include <string>

#include <hetcomm/compat.h>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

// A tensor [4, 6] on rank 0, in two parts.
class BadReshard : public BadInput {
 protected:
  void SetUp() override {
    BadInput::SetUp();
    const uint64_t axes[] = {1};
    const int32_t ranks[] = {0};
    const hetcomm_placement_t whole{HETCOMM_PLACEMENT_REPLICATE, 0, 1, nullptr};
    ASSERT_EQ(hetcomm_layout_from_mesh(2, kShape, 1, axes, ranks, &whole, nullptr, &layout_),
              HETCOMM_OK);
    const hetcomm_reshard_tensor_t tensor = good();
    ASSERT_EQ(hetcomm_reshard_create(communicator(), &tensor, 1, nullptr, &plan_), HETCOMM_OK);
  }
  void TearDown() override {
    EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_layout_destroy(layout_), HETCOMM_OK);
    BadInput::TearDown();
  }

  hetcomm_reshard_tensor_t good() const {
    return {layout_, layout_, HETCOMM_FLOAT32, HETCOMM_FLOAT32};
  }
  static hetcomm_part_t part(uint64_t first, uint64_t last) {
    hetcomm_part_t made{};
    made.begin[0] = first;
    made.end[0] = last;
    made.end[1] = 6;
    made.offset = first * 6;
    return made;
  }
  // Expects a refusal whose error text contains |text|.
  void expect_parts_refused(const char* what, const char* text,
                            const std::vector<hetcomm_part_t>& parts) {
    expect_refused({{what, HETCOMM_INVALID_ARGUMENT, [&](Outputs& out) {
                       return hetcomm_layout_from_parts(2, kShape, parts.data(), parts.size(),
                                                        nullptr, out.first<hetcomm_layout_t*>());
                     }}});
    EXPECT_NE(std::string(hetcomm_last_error()).find(text), std::string::npos)
        << what << ": " << hetcomm_last_error();
  }
  void expect_mesh_refused(const char* what, hetcomm_status_t expected,
                           const std::vector<uint64_t>& axes, const std::vector<int32_t>& ranks,
                           const std::vector<hetcomm_placement_t>& placements) {
    expect_refused({{what, expected, [&](Outputs& out) {
                       return hetcomm_layout_from_mesh(2, kShape, axes.size(), axes.data(),
                                                       ranks.data(), placements.data(), nullptr,
                                                       out.first<hetcomm_layout_t*>());
                     }}});
  }
  void expect_plan_refused(const char* what, hetcomm_status_t expected,
                           const hetcomm_reshard_tensor_t& tensor,
                           const hetcomm_reshard_options_t* options = nullptr) {
    expect_refused({{what, expected, [&](Outputs& out) {
                       return hetcomm_reshard_create(communicator(), &tensor, 1, options,
                                                     out.first<hetcomm_reshard_t*>());
                     }}});
  }

  static void expect_ok(hetcomm_request_t* request) {
    hetcomm_completion_t completion{};
    EXPECT_EQ(hetcomm_request_wait(request, UINT64_C(10'000'000'000), &completion), HETCOMM_OK);
    EXPECT_EQ(completion.status, HETCOMM_OK);
  }

  static constexpr uint64_t kShape[] = {4, 6};
  hetcomm_layout_t* layout_ = nullptr;
  hetcomm_reshard_t* plan_ = nullptr;
  float values_[24] = {};
};

TEST_F(BadReshard, InvalidPartsAreRefused) {
  expect_parts_refused("a hole", "rank", {part(0, 1), part(2, 4)});
  expect_parts_refused("an overlap", "rank 0", {part(0, 3), part(2, 4)});
  expect_parts_refused("outside", "rank 0", {part(0, 5)});
  expect_parts_refused("nothing", "", {});
  hetcomm_part_t twice = part(0, 4);
  twice.copy = 1;
  expect_parts_refused("a rank that holds an element twice", "rank 0", {part(0, 4), twice});
  hetcomm_part_t crossed = part(0, 4);
  crossed.strides[0] = 3;
  crossed.strides[1] = 1;
  expect_parts_refused("strides that let elements overlap", "rank 0", {crossed});
  hetcomm_part_t negative = part(0, 4);
  negative.rank = -1;
  expect_parts_refused("a negative rank", "-1", {negative});
  hetcomm_part_t remote = part(0, 4);
  remote.rank = INT32_MAX;
  expect_parts_refused("a rank beyond all", "not so many", {remote});
  hetcomm_part_t reserved = part(0, 4);
  reserved.reserved = 1;
  expect_parts_refused("reserved", "reserved", {reserved});
  hetcomm_part_t turned = part(3, 1);
  expect_parts_refused("an end before the beginning", "rank 0", {turned});
}

TEST_F(BadReshard, InvalidMeshesAreRefused) {
  const hetcomm_placement_t rows{HETCOMM_PLACEMENT_SHARD, 0, 1, nullptr};
  const uint64_t sizes[] = {1, 2};
  expect_mesh_refused("a rank twice", HETCOMM_INVALID_ARGUMENT, {2}, {0, 0}, {rows});
  expect_mesh_refused("an axis without ranks", HETCOMM_INVALID_ARGUMENT, {0}, {0}, {rows});
  expect_mesh_refused("a huge axis", HETCOMM_INVALID_ARGUMENT, {UINT64_MAX}, {0}, {rows});
  expect_mesh_refused("no such dimension", HETCOMM_INVALID_ARGUMENT, {2}, {0, 1},
                      {{HETCOMM_PLACEMENT_SHARD, 2, 1, nullptr}});
  expect_mesh_refused("pieces that do not divide", HETCOMM_INVALID_ARGUMENT, {3}, {0, 1, 2},
                      {rows});
  expect_mesh_refused("sizes with another sum", HETCOMM_INVALID_ARGUMENT, {2}, {0, 1},
                      {{HETCOMM_PLACEMENT_SHARD, 0, 1, sizes}});
  expect_mesh_refused("no such placement", HETCOMM_INVALID_ARGUMENT, {2}, {0, 1},
                      {{6, 0, 1, nullptr}});
  expect_mesh_refused("a huge split", HETCOMM_INVALID_ARGUMENT, {2}, {0, 1},
                      {{HETCOMM_PLACEMENT_STRIDED_SHARD, 0, UINT64_C(1) << 40, nullptr}});
  expect_mesh_refused("a split of 0", HETCOMM_INVALID_ARGUMENT, {2}, {0, 1},
                      {{HETCOMM_PLACEMENT_STRIDED_SHARD, 0, 0, nullptr}});
  expect_refused({{"nine dimensions", HETCOMM_INVALID_ARGUMENT, [&](Outputs& out) {
                     const uint64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
                     const uint64_t axes[] = {1};
                     const int32_t ranks[] = {0};
                     return hetcomm_layout_from_mesh(9, shape, 1, axes, ranks, &rows, nullptr,
                                                     out.first<hetcomm_layout_t*>());
                   }}});
}

TEST_F(BadReshard, OversizedMeshesAreRefused) {
  const uint64_t huge[] = {uint64_t{1} << 63};
  const uint64_t long_one[] = {uint64_t{1} << 40};
  const int32_t ranks[] = {0, 1};
  const auto create = [&](const uint64_t* shape, uint64_t axis, uint64_t split) {
    return [=](Outputs& out) {
      const hetcomm_placement_t strided{HETCOMM_PLACEMENT_STRIDED_SHARD, 0, split, nullptr};
      return hetcomm_layout_from_mesh(1, shape, 1, &axis, ranks, &strided, nullptr,
                                      out.first<hetcomm_layout_t*>());
    };
  };
  expect_refused({
      {"2^63 elements", HETCOMM_INVALID_ARGUMENT, create(huge, 2, uint64_t{1} << 63)},
      {"2^63 pieces", HETCOMM_INVALID_ARGUMENT, create(long_one, 2, uint64_t{1} << 63)},
      {"2^40 pieces", HETCOMM_INVALID_ARGUMENT, create(long_one, 1, uint64_t{1} << 40)},
  });
}

TEST_F(BadReshard, InvalidDegreesAreRefused) {
  hetcomm_degrees_t degrees{};
  degrees.struct_size = sizeof(degrees);
  degrees.data = 2;
  degrees.context = degrees.tensor = 1;
  const int32_t ranks[] = {0, 1, 2};
  const auto refuse = [&](const char* what, uint64_t batch, size_t count) {
    expect_refused({{what, HETCOMM_INVALID_ARGUMENT, [&](Outputs& out) {
                       return hetcomm_layout_from_degrees(batch, 4, 2, &degrees, ranks, count,
                                                          out.first<hetcomm_layout_t*>());
                     }}});
  };
  refuse("another number of ranks", 4, 3);
  refuse("a degree that does not divide", 3, 2);
  degrees.data = UINT64_C(6148914691236517206);  // times the next one: 2^64 + 2
  degrees.context = 3;
  refuse("degrees that overflow", 4, 2);
  degrees.data = 2;
  degrees.context = 1;
  degrees.order = "dcc";
  refuse("no permutation", 4, 2);
  degrees.order = nullptr;
  degrees.zigzag = 2;
  refuse("zigzag", 4, 2);
}

TEST_F(BadReshard, InvalidRankListsAfterALossAreRefused) {
  const int32_t stays[] = {0};
  const int32_t lost[] = {-1};
  const int32_t below[] = {-2};
  const int32_t twice[] = {0, 0};
  const int32_t beyond[] = {7};
  const auto layout = [&](const hetcomm_layout_t* from, const int32_t* ranks, size_t count) {
    return [=](Outputs& out) {
      return hetcomm_layout_after_loss(from, ranks, count, out.first<hetcomm_layout_t*>());
    };
  };
  const auto plan = [&](const hetcomm_reshard_t* from, hetcomm_communicator_t* in,
                        const int32_t* ranks, size_t count) {
    return [=](Outputs& out) {
      return hetcomm_reshard_rebuild(from, in, ranks, count, out.first<hetcomm_reshard_t*>());
    };
  };
  expect_refused({
      {"no layout", HETCOMM_INVALID_ARGUMENT, layout(nullptr, stays, 1)},
      {"no numbers", HETCOMM_INVALID_ARGUMENT, layout(layout_, nullptr, 1)},
      {"too few numbers", HETCOMM_INVALID_ARGUMENT, layout(layout_, stays, 0)},
      {"a number below -1", HETCOMM_INVALID_ARGUMENT, layout(layout_, below, 1)},
      {"a number twice", HETCOMM_INVALID_ARGUMENT, layout(layout_, twice, 2)},
      {"too many numbers", HETCOMM_OUT_OF_RANGE, layout(layout_, stays, SIZE_MAX)},
      {"all is lost", HETCOMM_PEER_LOST, layout(layout_, lost, 1)},
      {"no place for a layout", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_layout_after_loss(layout_, stays, 1, nullptr); }},
      {"no plan", HETCOMM_INVALID_ARGUMENT, plan(nullptr, communicator(), stays, 1)},
      {"no communicator", HETCOMM_INVALID_ARGUMENT, plan(plan_, nullptr, stays, 1)},
      {"no numbers of a plan", HETCOMM_INVALID_ARGUMENT, plan(plan_, communicator(), nullptr, 1)},
      {"a rank that is not there", HETCOMM_OUT_OF_RANGE, plan(plan_, communicator(), beyond, 1)},
      {"all of a plan is lost", HETCOMM_PEER_LOST, plan(plan_, communicator(), lost, 1)},
      {"no place for a plan", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_reshard_rebuild(plan_, communicator(), stays, 1, nullptr); }},
  });
}

TEST_F(BadReshard, InvalidPlansAreRefused) {
  hetcomm_reshard_tensor_t tensor = good();
  tensor.source = nullptr;
  expect_plan_refused("no source", HETCOMM_INVALID_ARGUMENT, tensor);
  tensor = good();
  tensor.destination_type = 17;
  expect_plan_refused("no such type", HETCOMM_INVALID_ARGUMENT, tensor);
  tensor.destination_type = HETCOMM_INT32;
  expect_plan_refused("a type that is not converted", HETCOMM_INVALID_ARGUMENT, tensor);
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.strategy = 6;
  expect_plan_refused("no such strategy", HETCOMM_INVALID_ARGUMENT, good(), &options);
  options.strategy = 0;
  options.in_flight = 1025;
  expect_plan_refused("too many in flight", HETCOMM_OUT_OF_RANGE, good(), &options);
  options.in_flight = 0;
  options.prove = 2;
  expect_plan_refused("prove", HETCOMM_INVALID_ARGUMENT, good(), &options);
  options.prove = 0;
  for (const int32_t overflow : {-1, 2}) {
    options.overflow = overflow;
    expect_plan_refused("overflow", HETCOMM_INVALID_ARGUMENT, good(), &options);
  }
  options.overflow = HETCOMM_OVERFLOW_SATURATE;
  options.weight = HETCOMM_QUEUE_MAX_WEIGHT + 1;
  expect_plan_refused("too much weight", HETCOMM_OUT_OF_RANGE, good(), &options);

  const uint64_t axes[] = {2};
  const int32_t ranks[] = {0, 1};
  const hetcomm_placement_t rows{HETCOMM_PLACEMENT_SHARD, 0, 1, nullptr};
  const hetcomm_placement_t sum{HETCOMM_PLACEMENT_PARTIAL, 0, 1, nullptr};
  const uint64_t other[] = {4, 7};
  hetcomm_layout_t* far = nullptr;
  hetcomm_layout_t* wide = nullptr;
  hetcomm_layout_t* partial = nullptr;
  const int32_t own[] = {0};
  const uint64_t one[] = {1};
  const hetcomm_placement_t whole{HETCOMM_PLACEMENT_REPLICATE, 0, 1, nullptr};
  ASSERT_EQ(hetcomm_layout_from_mesh(2, kShape, 1, axes, ranks, &rows, nullptr, &far), HETCOMM_OK);
  ASSERT_EQ(hetcomm_layout_from_mesh(2, other, 1, one, own, &whole, nullptr, &wide), HETCOMM_OK);
  ASSERT_EQ(hetcomm_layout_from_mesh(2, kShape, 1, axes, ranks, &sum, nullptr, &partial),
            HETCOMM_OK);
  tensor = good();
  tensor.destination = far;
  expect_plan_refused("a rank that does not exist", HETCOMM_OUT_OF_RANGE, tensor);
  EXPECT_NE(std::string(hetcomm_last_error()).find("rank 1 holds"), std::string::npos)
      << hetcomm_last_error();
  tensor.destination = wide;
  expect_plan_refused("another shape", HETCOMM_INVALID_ARGUMENT, tensor);
  const auto draft = [&](const hetcomm_reshard_tensor_t& drafted, int32_t strategy) {
    hetcomm_reshard_options_t wishes{};
    wishes.struct_size = sizeof(wishes);
    wishes.strategy = strategy;
    size_t size = 0;
    return hetcomm_reshard_draft(&drafted, 1, &wishes, nullptr, HETCOMM_RESHARD_TEXT, 0, nullptr,
                                 &size);
  };
  tensor = {partial, layout_, HETCOMM_FLOAT32, HETCOMM_FLOAT32};
  EXPECT_EQ(draft(tensor, HETCOMM_STRATEGY_AUTO), HETCOMM_OK);
  EXPECT_EQ(draft(tensor, HETCOMM_STRATEGY_BSR), HETCOMM_UNSUPPORTED);
  tensor.destination_type = HETCOMM_BFLOAT16;
  EXPECT_EQ(draft(tensor, HETCOMM_STRATEGY_AUTO), HETCOMM_OK);
  for (hetcomm_layout_t* layout : {far, wide, partial}) {
    EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  }
}

TEST_F(BadReshard, StartWithInvalidBuffersIsRefused) {
  const hetcomm_buffer_t good_buffer = hetcomm_buffer_host(values_, sizeof(values_));
  const hetcomm_buffer_t short_buffer = hetcomm_buffer_host(values_, sizeof(values_) - 1);
  const hetcomm_buffer_t null_buffer = hetcomm_buffer_host(nullptr, sizeof(values_));
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.flags = HETCOMM_OPERATION_NOTIFY;
  const auto start = [&](const hetcomm_buffer_t* from, const hetcomm_buffer_t* to,
                         const hetcomm_operation_options_t* with) {
    return [=, this](Outputs& out) {
      return hetcomm_reshard_start(plan_, from, to, with, out.first<hetcomm_request_t*>());
    };
  };
  expect_refused({
      {"no plan", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_reshard_start(nullptr, &good_buffer, &good_buffer, nullptr,
                                      out.first<hetcomm_request_t*>());
       }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_reshard_start(plan_, &good_buffer, &good_buffer, nullptr, nullptr);
       }},
      {"no sources", HETCOMM_INVALID_ARGUMENT, start(nullptr, &good_buffer, nullptr)},
      {"no destinations", HETCOMM_INVALID_ARGUMENT, start(&good_buffer, nullptr, nullptr)},
      {"a short source", HETCOMM_OUT_OF_RANGE, start(&short_buffer, &good_buffer, nullptr)},
      {"a short destination", HETCOMM_OUT_OF_RANGE, start(&good_buffer, &short_buffer, nullptr)},
      {"a null pointer", HETCOMM_INVALID_ARGUMENT, start(&null_buffer, &good_buffer, nullptr)},
      {"flags", HETCOMM_INVALID_ARGUMENT, start(&good_buffer, &good_buffer, &options)},
  });
}

// Zero is valid where the header defines its meaning, or where the field is used by others only.
TEST_F(BadReshard, ZeroedOptionalFieldsAreAccepted) {
  const uint64_t axes[] = {2};
  const int32_t ranks[] = {0, 1};
  hetcomm_layout_t* layout = nullptr;
  for (int32_t kind = HETCOMM_PLACEMENT_REPLICATE; kind <= HETCOMM_PLACEMENT_AVERAGE; ++kind) {
    const bool has_split = kind == HETCOMM_PLACEMENT_STRIDED_SHARD;
    const hetcomm_placement_t placement{kind, 0, has_split ? 1u : 0u, nullptr};
    EXPECT_EQ(hetcomm_layout_from_mesh(2, kShape, 1, axes, ranks, &placement, nullptr, &layout),
              HETCOMM_OK)
        << kind << ": " << hetcomm_last_error();
    EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  }
  hetcomm_degrees_t degrees{};
  degrees.struct_size = sizeof(degrees);
  degrees.data = 2;
  EXPECT_EQ(hetcomm_layout_from_degrees(4, 4, 2, &degrees, ranks, 2, &layout), HETCOMM_OK)
      << hetcomm_last_error();
  uint64_t elements = 0;
  EXPECT_EQ(hetcomm_layout_elements(layout, 1, &elements), HETCOMM_OK);
  EXPECT_EQ(elements, 16u);
  EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  degrees.data = 0;
  EXPECT_EQ(hetcomm_layout_from_degrees(4, 4, 2, &degrees, ranks, 1, &layout), HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  // The same for options.
  hetcomm_layout_options_t options{};
  options.struct_size = sizeof(options);
  const std::vector<hetcomm_part_t> parts = {part(0, 4)};
  EXPECT_EQ(hetcomm_layout_from_parts(2, kShape, parts.data(), 1, &options, &layout), HETCOMM_OK);
  EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
}

// Tensors without elements may be in a list.
TEST_F(BadReshard, TensorsWithoutElementsAreAccepted) {
  const uint64_t shape[] = {4, 0};
  const uint64_t axes[] = {1};
  const int32_t ranks[] = {0};
  const hetcomm_placement_t rows{HETCOMM_PLACEMENT_SHARD, 0, 0, nullptr};
  hetcomm_layout_t* of_mesh = nullptr;
  hetcomm_layout_t* of_parts = nullptr;
  hetcomm_layout_t* of_box = nullptr;
  hetcomm_part_t empty = part(0, 4);
  empty.end[1] = 0;
  ASSERT_EQ(hetcomm_layout_from_mesh(2, shape, 1, axes, ranks, &rows, nullptr, &of_mesh),
            HETCOMM_OK)
      << hetcomm_last_error();
  ASSERT_EQ(hetcomm_layout_from_parts(2, shape, nullptr, 0, nullptr, &of_parts), HETCOMM_OK)
      << hetcomm_last_error();
  ASSERT_EQ(hetcomm_layout_from_parts(2, shape, &empty, 1, nullptr, &of_box), HETCOMM_OK)
      << hetcomm_last_error();
  float to[24] = {};
  values_[7] = 3;
  for (hetcomm_layout_t* layout : {of_mesh, of_parts, of_box}) {
    for (int32_t strategy = HETCOMM_STRATEGY_AUTO; strategy <= HETCOMM_STRATEGY_BSR; ++strategy) {
      const hetcomm_reshard_tensor_t tensors[] = {
          {layout, of_mesh, HETCOMM_INT8, HETCOMM_INT8},
          good(),
          {of_parts, layout, HETCOMM_FLOAT32, HETCOMM_BFLOAT16}};
      hetcomm_reshard_options_t options{};
      options.struct_size = sizeof(options);
      options.strategy = strategy;
      options.prove = 1;
      hetcomm_reshard_t* plan = nullptr;
      ASSERT_EQ(hetcomm_reshard_create(communicator(), tensors, 3, &options, &plan), HETCOMM_OK)
          << hetcomm_last_error();
      for (const int32_t format : {HETCOMM_RESHARD_TEXT, HETCOMM_RESHARD_JSON}) {
        size_t size = 0;
        EXPECT_EQ(hetcomm_reshard_describe(plan, format, 0, nullptr, &size), HETCOMM_OK);
      }
      const hetcomm_buffer_t none = hetcomm_buffer_host(nullptr, 0);
      const hetcomm_buffer_t sources[] = {none, hetcomm_buffer_host(values_, sizeof(values_)),
                                          none};
      const hetcomm_buffer_t destinations[] = {none, hetcomm_buffer_host(to, sizeof(to)), none};
      hetcomm_request_t* request = nullptr;
      to[7] = 0;
      ASSERT_EQ(hetcomm_reshard_start(plan, sources, destinations, nullptr, &request), HETCOMM_OK)
          << hetcomm_last_error();
      expect_ok(request);
      EXPECT_EQ(to[7], 3);
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    }
    size_t size = 0;
    const hetcomm_reshard_tensor_t alone{layout, layout, HETCOMM_INT8, HETCOMM_INT8};
    EXPECT_EQ(
        hetcomm_reshard_draft(&alone, 1, nullptr, nullptr, HETCOMM_RESHARD_SVG, 0, nullptr, &size),
        HETCOMM_OK);
  }
  for (hetcomm_layout_t* layout : {of_mesh, of_parts, of_box}) {
    EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  }
}

TEST_F(BadReshard, PartlyOverlappingBuffersAreRefused) {
  const hetcomm_buffer_t whole = hetcomm_buffer_host(values_, sizeof(values_));
  float room[30] = {};
  const hetcomm_buffer_t first = hetcomm_buffer_host(room, sizeof(values_));
  const hetcomm_buffer_t second = hetcomm_buffer_host(room + 5, sizeof(values_));
  const auto start = [&](const hetcomm_buffer_t& from, const hetcomm_buffer_t& to) {
    return [=, this](Outputs& out) {
      return hetcomm_reshard_start(plan_, &from, &to, nullptr, out.first<hetcomm_request_t*>());
    };
  };
  expect_refused({{"a destination over its source", HETCOMM_INVALID_ARGUMENT, start(first, second)},
                  {"the other way round", HETCOMM_INVALID_ARGUMENT, start(second, first)}});
  // All objects remain usable.
  hetcomm_request_t* request = nullptr;
  ASSERT_EQ(hetcomm_reshard_start(plan_, &whole, &whole, nullptr, &request), HETCOMM_OK)
      << hetcomm_last_error();
  expect_ok(request);
}

TEST_F(BadReshard, NullPlansAndOutputsAreRefused) {
  uint32_t count = 0;
  EXPECT_EQ(hetcomm_reshard_refuse(nullptr, "reason"), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_pending(nullptr, &count), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_pending(plan_, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_drain(nullptr, 1), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_cancel(nullptr), HETCOMM_INVALID_ARGUMENT);
  hetcomm_reshard_facts_t facts{};
  EXPECT_EQ(hetcomm_reshard_facts(plan_, &facts), HETCOMM_INVALID_ARGUMENT);
  facts.struct_size = sizeof(facts);
  EXPECT_EQ(hetcomm_reshard_facts(nullptr, &facts), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_facts(plan_, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_facts(plan_, &facts), HETCOMM_OK);
}

TEST_F(BadReshard, InvalidDescribeCallsAreRefused) {
  size_t size = 0;
  EXPECT_EQ(hetcomm_reshard_describe(plan_, 3, 0, nullptr, &size), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_describe(plan_, HETCOMM_RESHARD_SVG, 10, nullptr, &size),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_describe(plan_, HETCOMM_RESHARD_SVG, 0, nullptr, nullptr),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_reshard_describe(plan_, HETCOMM_RESHARD_SVG, 0, nullptr, &size), HETCOMM_OK);
  EXPECT_GT(size, 100u);
  const hetcomm_reshard_tensor_t tensor = good();
  const char* const hosts[] = {"nowhere"};
  hetcomm_reshard_links_t links{};
  links.struct_size = sizeof(links);
  links.model = "{}";
  links.hosts = hosts;
  links.rank_count = 1;
  EXPECT_EQ(
      hetcomm_reshard_draft(&tensor, 1, nullptr, &links, HETCOMM_RESHARD_TEXT, 0, nullptr, &size),
      HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_elements(nullptr, 0, nullptr), HETCOMM_INVALID_ARGUMENT);
  hetcomm_layout_facts_t facts{};
  EXPECT_EQ(hetcomm_layout_facts(layout_, &facts), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_facts(layout_, nullptr), HETCOMM_INVALID_ARGUMENT);
  facts.struct_size = sizeof(facts);
  EXPECT_EQ(hetcomm_layout_facts(nullptr, &facts), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_facts(layout_, &facts), HETCOMM_OK);
  EXPECT_GE(facts.dimensions, 1u);
  EXPECT_GE(facts.shape[0], 1u);
  EXPECT_EQ(facts.terms, 1u);
  EXPECT_EQ(facts.divisor, 1u);
  EXPECT_EQ(hetcomm_layout_describe(nullptr, 0, nullptr, &size), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_describe(layout_, 10, nullptr, &size), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_json(nullptr, 0, nullptr, &size), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_json(layout_, 10, nullptr, &size), HETCOMM_INVALID_ARGUMENT);
  size_t count = 0;
  EXPECT_EQ(hetcomm_layout_parts(layout_, -1, 1, nullptr, &count), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_layout_parts(layout_, -1, 0, nullptr, &count), HETCOMM_OK);
  EXPECT_EQ(count, 1u);
}

TEST_F(BadReshard, NullHandlesCanBeDestroyed) {
  EXPECT_EQ(hetcomm_layout_destroy(nullptr), HETCOMM_OK);
  EXPECT_EQ(hetcomm_reshard_destroy(nullptr), HETCOMM_OK);
}

}  // namespace
}  // namespace hetcomm_test
