// Implements the C ABI of layouts and resharding (hetcomm/reshard.h).
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <hetcomm/compat.h>

#include "reshard/layout_json.h"
#include "reshard/mesh.h"
#include "reshard/survivors.h"
#include "src/base/room.h"
#include "src/capi/guard.h"
#include "src/capi/output.h"
#include "src/capi/post.h"
#include "topology/links/link_model_json.h"

namespace {

using hetcomm::Code;
using hetcomm::Operation;
using hetcomm::Result;
using hetcomm::Status;
using hetcomm::reshard::Box;
using hetcomm::reshard::Layout;
using hetcomm::reshard::Mesh;
using hetcomm::reshard::Order;
using hetcomm::reshard::Part;
using hetcomm::reshard::Placement;
namespace capi = hetcomm::capi;
namespace reshard = hetcomm::reshard;

static_assert(HETCOMM_MAX_DIMENSIONS == reshard::kMaxDimensions);
static_assert(HETCOMM_PLACEMENT_REPLICATE == static_cast<int>(Placement::Kind::kReplicate) &&
              HETCOMM_PLACEMENT_SHARD == static_cast<int>(Placement::Kind::kShard) &&
              HETCOMM_PLACEMENT_ZIGZAG == static_cast<int>(Placement::Kind::kZigzag) &&
              HETCOMM_PLACEMENT_STRIDED_SHARD == static_cast<int>(Placement::Kind::kStrided) &&
              HETCOMM_PLACEMENT_PARTIAL == static_cast<int>(Placement::Kind::kPartial) &&
              HETCOMM_PLACEMENT_AVERAGE == static_cast<int>(Placement::Kind::kAverage));
static_assert(HETCOMM_OVERFLOW_NAN == static_cast<int>(reshard::Overflow::kIsNan));
static_assert(HETCOMM_STRATEGY_BSR == static_cast<int>(reshard::Strategy::kBsr));

constexpr size_t kMaxTensors = size_t{1} << 24;
constexpr uint32_t kMaxInFlight = 1024;

Status check_shape(size_t dimensions, const uint64_t* shape) {
  if (dimensions > reshard::kMaxDimensions) {
    return Status(Code::kInvalidArgument, fmt::format("{} dimensions are more than {}", dimensions,
                                                      reshard::kMaxDimensions));
  }
  return dimensions > 0 && shape == nullptr ? capi::null_argument("shape") : Status();
}

std::vector<uint64_t> copy_of(size_t count, const uint64_t* numbers) {
  return {numbers, numbers + count};
}

// Returns a copy of |shape|. A scalar becomes a tensor with one dimension of one element.
std::vector<uint64_t> shape_of(size_t dimensions, const uint64_t* shape) {
  return dimensions == 0 ? std::vector<uint64_t>{1} : copy_of(dimensions, shape);
}

Status check_ranks(const int32_t* ranks, size_t rank_count) {
  if (rank_count > reshard::kMaxParts) {
    return Status(Code::kOutOfRange, fmt::format("{} ranks are too many", rank_count));
  }
  return rank_count > 0 && ranks == nullptr ? capi::null_argument("ranks") : Status();
}

Status give(Layout layout, hetcomm_layout_t** out_layout) {
  *out_layout = new hetcomm_layout{.impl = std::make_shared<const Layout>(std::move(layout))};
  return {};
}
Status give(Result<Layout> layout, hetcomm_layout_t** out_layout) {
  if (!layout.ok()) return layout.status();
  return give(std::move(layout).value(), out_layout);
}

Part part_of(size_t dimensions, const hetcomm_part_t& given) {
  Part part;
  part.rank = given.rank;
  part.copy = given.copy;
  part.term = given.term;
  part.offset = given.offset;
  part.box.dimensions = std::max<size_t>(dimensions, 1);
  if (dimensions == 0) part.box.end[0] = 1;
  bool dense = true;
  for (size_t d = 0; d < dimensions; ++d) {
    part.box.begin[d] = given.begin[d];
    part.box.end[d] = given.end[d];
    part.strides[d] = given.strides[d];
    dense = dense && given.strides[d] == 0;
  }
  if (dense) part.strides = reshard::dense_strides(part.box);
  return part;
}

hetcomm_part_t given_of(const Part& part) {
  hetcomm_part_t given{};
  given.rank = part.rank;
  given.copy = part.copy;
  given.term = part.term;
  given.offset = part.offset;
  for (size_t d = 0; d < part.box.dimensions; ++d) {
    given.begin[d] = part.box.begin[d];
    given.end[d] = part.box.end[d];
    given.strides[d] = part.strides[d];
  }
  return given;
}

// Converts the placement on mesh axis |axis|, which has |ranks| ranks.
Result<Placement> placement_of(const hetcomm_placement_t& given, uint64_t ranks, size_t axis) {
  if (given.kind < HETCOMM_PLACEMENT_REPLICATE || given.kind > HETCOMM_PLACEMENT_AVERAGE) {
    return Status(Code::kInvalidArgument,
                  fmt::format("axis {}: the placement is not one of HETCOMM_PLACEMENT_*", axis));
  }
  Placement placement;
  placement.kind = static_cast<Placement::Kind>(given.kind);
  placement.dimension = given.dimension;
  placement.split = given.split;
  if (given.sizes != nullptr && given.kind == HETCOMM_PLACEMENT_SHARD) {
    placement.sizes = copy_of(ranks, given.sizes);
  }
  return placement;
}

Status check_options(const hetcomm_reshard_options_t& options) {
  if (options.strategy < 0 || options.strategy >= reshard::kStrategies) {
    return Status(Code::kInvalidArgument, "strategy is not one of HETCOMM_STRATEGY_*");
  }
  if (options.in_flight > kMaxInFlight) {
    return Status(Code::kOutOfRange,
                  fmt::format("in_flight of {} is more than {}", options.in_flight, kMaxInFlight));
  }
  if (options.prove != 0 && options.prove != 1) {
    return Status(Code::kInvalidArgument, "prove is neither 0 nor 1");
  }
  if (options.overflow != HETCOMM_OVERFLOW_SATURATE && options.overflow != HETCOMM_OVERFLOW_NAN) {
    return Status(Code::kInvalidArgument, "overflow is not one of HETCOMM_OVERFLOW_*");
  }
  if (options.weight > HETCOMM_QUEUE_MAX_WEIGHT) {
    return Status(Code::kOutOfRange, fmt::format("a weight of {} is more than {}", options.weight,
                                                 HETCOMM_QUEUE_MAX_WEIGHT));
  }
  return {};
}

reshard::DraftOptions draft_options(const hetcomm_reshard_options_t& known) {
  return {.strategy = static_cast<reshard::Strategy>(known.strategy),
          .outer = known.outer,
          .slice_bytes = known.slice_bytes,
          .prove = known.prove == 1};
}

reshard::OrderOptions order_options(const hetcomm_reshard_options_t& known) {
  return {.plans = draft_options(known),
          .tag = known.tag,
          .in_flight = std::max(known.in_flight, 1u),
          .overflow = static_cast<reshard::Overflow>(known.overflow),
          .landing_bytes = known.landing_bytes,
          // A plan with a rate limit shares network interfaces by weight, so its weight is at least
          // 1.
          .weight = known.max_bytes_per_second > 0 ? std::max(known.weight, 1u) : known.weight,
          .bytes_per_second = known.max_bytes_per_second};
}

Result<reshard::TensorOrder> order_of(const hetcomm_reshard_tensor_t& tensor, size_t index) {
  for (const hetcomm_layout_t* layout : {tensor.source, tensor.destination}) {
    if (layout != nullptr && capi::is_good(layout)) continue;
    return Status(
        Code::kInvalidArgument,
        fmt::format("tensor {}: a layout {}", index,
                    layout == nullptr ? "is null" : "was destroyed, or is no such handle"));
  }
  for (const hetcomm_datatype_t type : {tensor.source_type, tensor.destination_type}) {
    if (type >= HETCOMM_BOOL && type <= HETCOMM_COMPLEX128) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("tensor {}: data type {} is unknown", index, type));
  }
  return reshard::TensorOrder{
      .source = tensor.source->impl,
      .destination = tensor.destination->impl,
      .types = {static_cast<hetcomm::ElementType>(tensor.source_type),
                static_cast<hetcomm::ElementType>(tensor.destination_type)}};
}

Result<std::vector<reshard::TensorOrder>> orders_of(const hetcomm_reshard_tensor_t* tensors,
                                                    size_t count) {
  if (count == 0) return Status(Code::kInvalidArgument, "there are no tensors");
  if (count > kMaxTensors) {
    return Status(Code::kOutOfRange, fmt::format("{} tensors are too many", count));
  }
  if (tensors == nullptr) return capi::null_argument("tensors");
  std::vector<reshard::TensorOrder> orders;
  orders.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Result<reshard::TensorOrder> order = order_of(tensors[i], i);
    if (!order.ok()) return order.status();
    orders.push_back(std::move(order).value());
  }
  return orders;
}

Status check_format(int32_t format) {
  if (format >= HETCOMM_RESHARD_TEXT && format <= HETCOMM_RESHARD_SVG) return {};
  return Status(Code::kInvalidArgument, "format is not one of HETCOMM_RESHARD_*");
}
reshard::PlanFormat format_of(int32_t format) {
  if (format == HETCOMM_RESHARD_TEXT) return reshard::PlanFormat::kText;
  return format == HETCOMM_RESHARD_JSON ? reshard::PlanFormat::kJson : reshard::PlanFormat::kSvg;
}

Result<reshard::Links> links_of(const hetcomm_reshard_links_t& given) {
  if (given.model == nullptr) return capi::null_argument("links: model");
  if (given.hosts == nullptr && given.rank_count > 0) return capi::null_argument("links: hosts");
  if (given.rank_count > reshard::kMaxParts) {
    return Status(Code::kOutOfRange, fmt::format("{} ranks are too many", given.rank_count));
  }
  Result<hetcomm::topology::LinkModel> model = hetcomm::topology::parse_link_model(given.model);
  if (!model.ok()) return model.status();
  std::vector<reshard::RankEnd> ends;
  for (size_t i = 0; i < given.rank_count; ++i) {
    if (given.hosts[i] == nullptr) {
      return Status(Code::kInvalidArgument, fmt::format("links: rank {} has no host", i));
    }
    const char* const nic = given.nics != nullptr ? given.nics[i] : nullptr;
    ends.push_back({given.hosts[i], nic != nullptr ? nic : ""});
  }
  return reshard::Links::create(std::move(model).value(), ends);
}

Status make_reshard(hetcomm::Communicator& communicator, std::vector<reshard::TensorOrder> orders,
                    const reshard::OrderOptions& options, hetcomm_reshard_t** out_reshard) {
  Result<std::unique_ptr<Order>> order = Order::create(communicator, std::move(orders), options);
  if (!order.ok()) return order.status();
  auto made = std::make_unique<hetcomm_reshard>();
  made->order = std::move(order).value();
  made->impl = made->order->prepare();
  *out_reshard = made.release();
  return {};
}

// Checks those |buffers| in which this rank has data.
Status check_buffers(const hetcomm::DeviceSet& devices, const hetcomm_buffer_t* buffers,
                     const std::vector<reshard::ProgramSide>& sides) {
  if (buffers == nullptr) return {};
  for (size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].bytes == 0) continue;
    const capi::Refusal refusal = capi::check_buffers(devices, buffers + i, 1);
    if (refusal.code != Code::kOk) {
      return Status(refusal.code, fmt::format("tensor {}: {}", i, refusal.text));
    }
  }
  return {};
}

}  // namespace

hetcomm_status_t hetcomm_layout_from_parts(size_t dimensions, const uint64_t* shape,
                                           const hetcomm_part_t* parts, size_t part_count,
                                           const hetcomm_layout_options_t* options,
                                           hetcomm_layout_t** out_layout) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(out_layout);
    HETCOMM_RETURN_IF_ERROR(check_shape(dimensions, shape));
    if (part_count > 0) HETCOMM_REQUIRE(parts);
    if (part_count > reshard::kMaxParts) {
      return Status(Code::kOutOfRange, fmt::format("{} parts are too many", part_count));
    }
    hetcomm_layout_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    Layout layout;
    layout.shape = shape_of(dimensions, shape);
    if (known.padded_shape != nullptr && dimensions > 0)
      layout.padded_shape = copy_of(dimensions, known.padded_shape);
    layout.terms = std::max(known.terms, 1u);
    if (known.reserved != 0) return Status(Code::kInvalidArgument, "reserved is not 0");
    layout.divisor = std::max(known.divisor, 1u);
    layout.parts.reserve(part_count);
    for (size_t i = 0; i < part_count; ++i) {
      if (parts[i].reserved != 0) return Status(Code::kInvalidArgument, "reserved is not 0");
      layout.parts.push_back(part_of(dimensions, parts[i]));
    }
    HETCOMM_RETURN_IF_ERROR(reshard::check(layout));
    return give(std::move(layout), out_layout);
  });
}

hetcomm_status_t hetcomm_layout_from_mesh(size_t dimensions, const uint64_t* shape,
                                          size_t axis_count, const uint64_t* axes,
                                          const int32_t* ranks,
                                          const hetcomm_placement_t* placements,
                                          const hetcomm_layout_options_t* options,
                                          hetcomm_layout_t** out_layout) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(out_layout);
    HETCOMM_RETURN_IF_ERROR(check_shape(dimensions, shape));
    HETCOMM_REQUIRE(ranks);
    if (axis_count > 0) {
      HETCOMM_REQUIRE(axes);
      HETCOMM_REQUIRE(placements);
    }
    constexpr size_t kMaxAxes = 16;
    if (axis_count > kMaxAxes) {
      return Status(Code::kOutOfRange, fmt::format("a mesh has at most {} axes", kMaxAxes));
    }
    hetcomm_layout_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    if (known.uneven != HETCOMM_UNEVEN_REFUSE && known.uneven != HETCOMM_UNEVEN_CEIL) {
      return Status(Code::kInvalidArgument, "uneven is not one of HETCOMM_UNEVEN_*");
    }
    Mesh mesh;
    mesh.axes = copy_of(axis_count, axes);
    uint64_t count = 1;
    for (size_t i = 0; i < axis_count; ++i) {
      if (axes[i] == 0 || axes[i] > reshard::kMaxParts || count > reshard::kMaxParts / axes[i]) {
        return Status(Code::kInvalidArgument,
                      fmt::format("axis {} of the mesh has {} ranks", i, axes[i]));
      }
      count *= axes[i];
    }
    mesh.ranks.assign(ranks, ranks + count);
    std::vector<Placement> own;
    for (size_t i = 0; i < axis_count; ++i) {
      Result<Placement> placement = placement_of(placements[i], axes[i], i);
      if (!placement.ok()) return placement.status();
      own.push_back(std::move(placement).value());
    }
    reshard::View view;
    view.offset = known.view_offset;
    if (known.view_strides != nullptr && dimensions > 0) {
      view.strides = copy_of(dimensions, known.view_strides);
    }
    return give(reshard::layout_of(shape_of(dimensions, shape), mesh, own,
                                   known.uneven == HETCOMM_UNEVEN_CEIL ? reshard::Uneven::kCeil
                                                                       : reshard::Uneven::kRefuse,
                                   view),
                out_layout);
  });
}

hetcomm_status_t hetcomm_layout_from_degrees(uint64_t batch, uint64_t sequence, uint64_t hidden,
                                             const hetcomm_degrees_t* degrees, const int32_t* ranks,
                                             size_t rank_count,
                                             hetcomm_layout_t** out_layout) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(out_layout);
    HETCOMM_REQUIRE(degrees);
    HETCOMM_REQUIRE(ranks);
    if (rank_count > reshard::kMaxParts) {
      return Status(Code::kOutOfRange, fmt::format("{} ranks are too many", rank_count));
    }
    hetcomm_degrees_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(degrees, &known));
    if (known.reserved != 0) return Status(Code::kInvalidArgument, "reserved is not 0");
    if (known.zigzag != 0 && known.zigzag != 1) {
      return Status(Code::kInvalidArgument, "zigzag is neither 0 nor 1");
    }
    reshard::Degrees own{.data = std::max<uint64_t>(known.data, 1),
                         .context = std::max<uint64_t>(known.context, 1),
                         .tensor = std::max<uint64_t>(known.tensor, 1),
                         .zigzag = known.zigzag == 1};
    if (known.order != nullptr) own.order = known.order;
    return give(reshard::activations(batch, sequence, hidden, own, {ranks, ranks + rank_count}),
                out_layout);
  });
}

hetcomm_status_t hetcomm_layout_after_loss(const hetcomm_layout_t* layout, const int32_t* ranks,
                                           size_t rank_count,
                                           hetcomm_layout_t** out_layout) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    HETCOMM_REQUIRE(out_layout);
    HETCOMM_RETURN_IF_ERROR(check_ranks(ranks, rank_count));
    return give(reshard::layout_of_survivors(*layout->impl, {ranks, ranks + rank_count}),
                out_layout);
  });
}

hetcomm_status_t hetcomm_layout_elements(const hetcomm_layout_t* layout, int32_t rank,
                                         uint64_t* out_elements) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    HETCOMM_REQUIRE(out_elements);
    *out_elements = reshard::elements_needed(*layout->impl, rank);
    return {};
  });
}

hetcomm_status_t hetcomm_layout_facts(const hetcomm_layout_t* layout,
                                      hetcomm_layout_facts_t* out_facts) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    HETCOMM_REQUIRE(out_facts);
    const reshard::Layout& own = *layout->impl;
    hetcomm_layout_facts_t facts{};
    facts.dimensions = own.shape.size();
    std::copy(own.shape.begin(), own.shape.end(), facts.shape);
    facts.terms = own.terms;
    facts.divisor = own.divisor;
    return capi::write_output(facts, out_facts);
  });
}

hetcomm_status_t hetcomm_layout_parts(const hetcomm_layout_t* layout, int32_t rank, size_t capacity,
                                      hetcomm_part_t* out_parts, size_t* out_count) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    HETCOMM_REQUIRE(out_count);
    if (capacity > 0) HETCOMM_REQUIRE(out_parts);
    size_t count = 0;
    for (const Part& part : layout->impl->parts) {
      if (rank != -1 && part.rank != rank) continue;
      if (count++ < capacity) out_parts[count - 1] = given_of(part);
    }
    *out_count = count;
    return {};
  });
}

hetcomm_status_t hetcomm_layout_describe(const hetcomm_layout_t* layout, size_t capacity,
                                         char* out_text, size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    return capi::write_text(reshard::to_table(*layout->impl), capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_layout_json(const hetcomm_layout_t* layout, size_t capacity,
                                     char* out_text, size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    return capi::write_text(reshard::to_json(*layout->impl), capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_layout_destroy(hetcomm_layout_t* layout) noexcept {
  if (layout == nullptr) return HETCOMM_OK;
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(layout);
    capi::destroy(layout);
    return {};
  });
}

hetcomm_status_t hetcomm_reshard_create(hetcomm_communicator_t* communicator,
                                        const hetcomm_reshard_tensor_t* tensors,
                                        size_t tensor_count,
                                        const hetcomm_reshard_options_t* options,
                                        hetcomm_reshard_t** out_reshard) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_REQUIRE(out_reshard);
    hetcomm::Communicator& own = *communicator->impl;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(own.context()));
    hetcomm_reshard_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    HETCOMM_RETURN_IF_ERROR(check_options(known));
    Result<std::vector<reshard::TensorOrder>> orders = orders_of(tensors, tensor_count);
    if (!orders.ok()) return orders.status();
    return make_reshard(own, std::move(orders).value(), order_options(known), out_reshard);
  });
}

hetcomm_status_t hetcomm_reshard_rebuild(const hetcomm_reshard_t* reshard,
                                         hetcomm_communicator_t* communicator, const int32_t* ranks,
                                         size_t rank_count,
                                         hetcomm_reshard_t** out_reshard) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_REQUIRE(out_reshard);
    HETCOMM_RETURN_IF_ERROR(check_ranks(ranks, rank_count));
    hetcomm::Communicator& own = *communicator->impl;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(own.context()));
    Result<std::vector<reshard::TensorOrder>> orders =
        reshard::orders_of_survivors(reshard->order->tensors(), {ranks, ranks + rank_count});
    if (!orders.ok()) return orders.status();
    return make_reshard(own, std::move(orders).value(), reshard->order->options(), out_reshard);
  });
}

hetcomm_status_t hetcomm_reshard_start(hetcomm_reshard_t* reshard, const hetcomm_buffer_t* sources,
                                       const hetcomm_buffer_t* destinations,
                                       const hetcomm_operation_options_t* options,
                                       hetcomm_request_t** out_request) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_REQUIRE(out_request);
    hetcomm::reshard::Redistribution& own = *reshard->impl;
    hetcomm::Context& context = own.communicator().context();
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(context));
    hetcomm_operation_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    if (known.flags != 0) {
      return Status(Code::kInvalidArgument, "a redistribution has no flags");
    }
    if (known.priority != HETCOMM_PRIORITY_NORMAL && known.priority != HETCOMM_PRIORITY_HIGH) {
      return Status(Code::kInvalidArgument, "priority is not one of HETCOMM_PRIORITY_*");
    }
    for (const capi::Refusal& refusal : {capi::check_group(known.group, &own.communicator()),
                                         capi::check_stream(known.stream, &own.communicator())}) {
      if (refusal.code != Code::kOk) return Status(refusal.code, std::string(refusal.text));
    }
    HETCOMM_RETURN_IF_ERROR(check_buffers(context.devices(), sources, own.program().sources));
    HETCOMM_RETURN_IF_ERROR(
        check_buffers(context.devices(), destinations, own.program().destinations));
    if (known.group != nullptr) hetcomm::make_room(known.group->entries);
    Operation* operation = nullptr;
    std::string text;
    const Code code = own.start(sources, destinations,
                                {.timeout_ns = known.timeout_ns,
                                 .high_priority = known.priority == HETCOMM_PRIORITY_HIGH,
                                 .stream = hetcomm::stream_of(known.stream),
                                 .in_group = known.group != nullptr,
                                 .label = {known.step, known.micro_batch}},
                                &operation, &text);
    if (code != Code::kOk) return text.empty() ? Status(code) : Status(code, std::move(text));
    if (known.group != nullptr) {
      known.group->entries.push_back({operation, operation->generation()});
    }
    *out_request = hetcomm::encode_handle(operation);
    return {};
  });
}

hetcomm_status_t hetcomm_reshard_refuse(hetcomm_reshard_t* reshard, const char* reason) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(reshard->impl->communicator().context()));
    reshard->impl->refuse(reason != nullptr ? reason : "no reason given");
    return {};
  });
}

hetcomm_status_t hetcomm_reshard_pending(hetcomm_reshard_t* reshard, uint32_t* out_count) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_REQUIRE(out_count);
    *out_count = reshard->impl->pending();
    return {};
  });
}

hetcomm_status_t hetcomm_reshard_drain(hetcomm_reshard_t* reshard, uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(reshard->impl->communicator().context()));
    if (reshard->impl->drain(timeout_ns)) return {};
    return Status(Code::kTimedOut,
                  fmt::format("{} executions are still under way", reshard->impl->pending()));
  });
}

hetcomm_status_t hetcomm_reshard_cancel(hetcomm_reshard_t* reshard) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(reshard->impl->communicator().context()));
    reshard->impl->cancel();
    return {};
  });
}

hetcomm_status_t hetcomm_reshard_facts(hetcomm_reshard_t* reshard,
                                       hetcomm_reshard_facts_t* out_facts) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_REQUIRE(out_facts);
    HETCOMM_RETURN_IF_ERROR(capi::check_output(*out_facts));
    Result<reshard::Facts> facts = reshard->order->facts();
    if (!facts.ok()) return facts.status();
    const reshard::Program& program = reshard->impl->program();
    hetcomm_reshard_facts_t own{};
    own.strategy = static_cast<int32_t>(facts->strategy);
    own.is_strategy_of_all = facts->is_of_all ? 1 : 0;
    own.forecast_ns = facts->forecast_ns;
    own.bytes_sent = program.sent_bytes;
    own.bytes_received = program.received_bytes;
    for (const reshard::ProgramTrack& track : program.tracks) {
      (track.sends ? own.messages_sent : own.messages_received) += track.messages;
    }
    own.scratch_bytes = program.scratch_bytes;
    return capi::write_output(own, out_facts);
  });
}

hetcomm_status_t hetcomm_reshard_describe(hetcomm_reshard_t* reshard, int32_t format,
                                          size_t capacity, char* out_text,
                                          size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_RETURN_IF_ERROR(check_format(format));
    Result<std::string> text = reshard->order->describe(format_of(format));
    if (!text.ok()) return text.status();
    return capi::write_text(text.value(), capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_reshard_draft(const hetcomm_reshard_tensor_t* tensors, size_t tensor_count,
                                       const hetcomm_reshard_options_t* options,
                                       const hetcomm_reshard_links_t* links, int32_t format,
                                       size_t capacity, char* out_text, size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    hetcomm_reshard_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    HETCOMM_RETURN_IF_ERROR(check_options(known));
    HETCOMM_RETURN_IF_ERROR(check_format(format));
    Result<std::vector<reshard::TensorOrder>> orders = orders_of(tensors, tensor_count);
    if (!orders.ok()) return orders.status();
    std::optional<reshard::Links> model;
    if (links != nullptr) {
      hetcomm_reshard_links_t given;
      HETCOMM_RETURN_IF_ERROR(capi::read_options(links, &given));
      Result<reshard::Links> made = links_of(given);
      if (!made.ok()) return made.status();
      model = std::move(made).value();
    }
    Result<std::string> text = reshard::draft(orders.value(), draft_options(known),
                                              model ? &*model : nullptr, format_of(format));
    if (!text.ok()) return text.status();
    return capi::write_text(text.value(), capacity, out_text, out_size);
  });
}

hetcomm_status_t hetcomm_reshard_destroy(hetcomm_reshard_t* reshard) noexcept {
  if (reshard == nullptr) return HETCOMM_OK;
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(reshard);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(reshard->impl->communicator().context()));
    HETCOMM_RETURN_IF_ERROR(reshard->impl->close());
    capi::destroy(reshard);
    return {};
  });
}
