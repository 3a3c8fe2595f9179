#include "pipeline/execute/channel.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "src/base/element_type.h"

namespace hetcomm::pipeline {
namespace {

// Buffers begin at multiples of this, which suits vector units and pages of devices.
constexpr uint64_t kAlignment = 256;
// The most bytes of the buffers of a tensor.
constexpr uint64_t kMaxBytes = uint64_t{1} << 48;

Result<OwnedLayout> make_layout(const PlanTensor& tensor, const PlanStage& stage) {
  Result<TensorMesh> held = mesh_of(tensor, stage);
  if (!held.ok()) return held.status();
  std::vector<hetcomm_placement_t> placements;
  for (const reshard::Placement& each : held->placements) {
    const int32_t kind = each.kind == reshard::Placement::Kind::kShard ? HETCOMM_PLACEMENT_SHARD
                         : each.kind == reshard::Placement::Kind::kZigzag
                             ? HETCOMM_PLACEMENT_ZIGZAG
                             : HETCOMM_PLACEMENT_REPLICATE;
    placements.push_back({.kind = kind,
                          .dimension = static_cast<uint32_t>(each.dimension),
                          .split = 1,
                          .sizes = nullptr});
  }
  const std::vector<int32_t> ranks(held->mesh.ranks.begin(), held->mesh.ranks.end());
  hetcomm_layout_t* layout = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_layout_from_mesh(
      tensor.shape.size(), tensor.shape.data(), held->mesh.axes.size(), held->mesh.axes.data(),
      ranks.data(), placements.data(), nullptr, &layout)));
  return OwnedLayout(layout);
}

}  // namespace

uint64_t clock_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

Result<uint64_t> RunLimits::left_ns() const {
  const uint64_t now = clock_ns();
  if (now >= deadline_ns) return Status(Code::kTimedOut, "the time limit of the run has passed");
  return deadline_ns == UINT64_MAX ? UINT64_MAX : deadline_ns - now;
}

Status Channel::open(const ChannelPlace& place) {
  const PlanBoundary& boundary = pipeline_.boundaries[program_.boundary];
  const PlanStage& own =
      pipeline_.stages[program_.role == ChannelRole::kReceive ? program_.taker : program_.maker];
  for (const PlanTensor& each : boundary.tensors) {
    if (program_.is_backward && !each.has_gradient) continue;
    tensors_.push_back(&each);
    shapes_.push_back(local_shape(each, own));
  }
  buffer_of_.resize(program_.order.size());
  stream_ = place.stream;
  if (program_.role != ChannelRole::kLocal) HETCOMM_RETURN_IF_ERROR(make_reshard(place));
  return allocate(place);
}

Status Channel::make_reshard(const ChannelPlace& place) {
  const PlanBoundary& boundary = pipeline_.boundaries[program_.boundary];
  std::vector<OwnedLayout> layouts;
  std::vector<hetcomm_reshard_tensor_t> moved;
  for (const PlanTensor* tensor : tensors_) {
    for (const uint32_t stage : {program_.maker, program_.taker}) {
      Result<OwnedLayout> layout = make_layout(*tensor, pipeline_.stages[stage]);
      if (!layout.ok()) return layout.status();
      layouts.push_back(std::move(layout).value());
    }
    moved.push_back({.source = layouts[layouts.size() - 2].get(),
                     .destination = layouts.back().get(),
                     .source_type = tensor->type,
                     .destination_type = tensor->type});
  }
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.strategy = boundary.strategy;
  options.in_flight = program_.in_flight;
  options.tag = 2 * uint64_t{program_.boundary} + (program_.is_backward ? 1 : 0);
  options.slice_bytes = boundary.slice_bytes;
  hetcomm_reshard_t* reshard = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_call(
      hetcomm_reshard_create(place.communicator, moved.data(), moved.size(), &options, &reshard)));
  reshard_.reset(reshard);
  return {};
}

Status Channel::allocate(const ChannelPlace& place) {
  buffers_.resize(program_.buffers);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    uint64_t bytes = size_of(static_cast<ElementType>(tensors_[i]->type));
    for (const uint64_t length : shapes_[i]) bytes *= length;
    const uint64_t distance = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    // A layout has at most 2^48 elements, so that the product stays in range.
    if (distance > kMaxBytes / program_.buffers) {
      return {Code::kOutOfRange, fmt::format("tensor '{}' needs {} buffers of {} bytes",
                                             tensors_[i]->name, program_.buffers, distance)};
    }
    hetcomm_memory_t* memory = nullptr;
    HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_memory_allocate(place.context, place.device,
                                                            distance * program_.buffers, &memory)));
    memories_.emplace_back(memory);
    buffer_bytes_ += distance * program_.buffers;
    void* address = nullptr;
    if (place.is_host_accessible) {
      HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_memory_address(memory, &address)));
    }
    for (uint32_t at = 0; at < program_.buffers; ++at) {
      const hetcomm_buffer_t data = hetcomm_buffer_memory(memory, distance * at, bytes);
      buffers_[at].data.push_back(data);
      buffers_[at].tensors.push_back(
          {.name = tensors_[i]->name.c_str(),
           .buffer = data,
           .address = address == nullptr ? nullptr : static_cast<char*>(address) + data.offset,
           .type = tensors_[i]->type,
           .dimensions = static_cast<uint32_t>(shapes_[i].size()),
           .shape = shapes_[i].data()});
    }
  }
  return {};
}

Status Channel::begin(const RunLimits& limits) {
  limits_ = limits;
  posted_ = 0;
  free_.clear();
  // Buffers are taken from the end.
  for (uint32_t at = program_.buffers; at > 0; --at) free_.push_back(at - 1);
  if (program_.role != ChannelRole::kReceive) return {};
  for (uint32_t i = 0; i < program_.in_flight; ++i) HETCOMM_RETURN_IF_ERROR(post());
  return {};
}

uint32_t Channel::pop_free() {
  const uint32_t at = free_.back();
  free_.pop_back();
  return at;
}

Status Channel::post() {
  if (posted_ == program_.order.size()) return {};
  const uint32_t micro_batch = program_.order[posted_++];
  buffer_of_[micro_batch] = pop_free();
  return start(micro_batch, buffers_[buffer_of_[micro_batch]]);
}

Status Channel::start(uint32_t micro_batch, Buffer& buffer) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = stream_;
  options.step = limits_.step;
  options.micro_batch = micro_batch;
  // A receive that is posted ahead is late only when a step has waited for it for too long.
  const Result<uint64_t> left_ns = limits_.left_ns();
  if (!left_ns.ok()) return left_ns.status();
  options.timeout_ns = left_ns.value();
  const bool sends = program_.role == ChannelRole::kSend;
  return of_call(hetcomm_reshard_start(reshard_.get(), sends ? buffer.data.data() : nullptr,
                                       sends ? nullptr : buffer.data.data(), &options,
                                       &buffer.request));
}

Status Channel::acquire(uint32_t micro_batch) {
  if (program_.role == ChannelRole::kLocal) {
    buffer_of_[micro_batch] = pop_free();
    return {};
  }
  buffer_of_[micro_batch] = program_.item[micro_batch] % program_.buffers;
  return await(micro_batch);
}

Status Channel::wait_for(Buffer& buffer) {
  if (buffer.request == nullptr) return {};
  hetcomm_request_t* const request = std::exchange(buffer.request, nullptr);
  Status ended = wait(request, limits_.wait_ns);
  // Past the limit of the wait the operation is still there: drain() takes it back.
  if (ended.code() == Code::kTimedOut &&
      hetcomm_request_test(request, nullptr) == HETCOMM_PENDING) {
    buffer.request = request;
  }
  return ended;
}

Status Channel::send(uint32_t micro_batch) {
  if (program_.role == ChannelRole::kLocal) return {};
  return start(micro_batch, buffers_[buffer_of_[micro_batch]]);
}

Status Channel::take() { return program_.role == ChannelRole::kReceive ? post() : Status(); }

void Channel::release(uint32_t micro_batch) { free_.push_back(buffer_of_[micro_batch]); }

Status Channel::settle() {
  for (Buffer& each : buffers_) HETCOMM_RETURN_IF_ERROR(wait_for(each));
  return {};
}

void Channel::drain() {
  for (Buffer& each : buffers_) {
    if (each.request == nullptr) continue;
    static_cast<void>(wait(std::exchange(each.request, nullptr)));
  }
}

}  // namespace hetcomm::pipeline
