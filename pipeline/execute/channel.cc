#include "pipeline/execute/channel.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "pipeline/plan/check_plan.h"

namespace hetcomm::pipeline {
namespace {

// Buffers are aligned to this many bytes, which suits vector units and the copy engines of devices.
constexpr uint64_t kAlignment = 256;
// The maximum total size of the buffers of one tensor.
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
  const PlanBoundary& boundary = pipeline_.boundaries[ends_.boundary];
  const PlanStage& own =
      pipeline_.stages[ends_.role == ChannelRole::kReceive ? ends_.taker : ends_.maker];
  std::vector<const PlanTensor*> tensors;
  for (const PlanTensor& each : boundary.tensors) {
    if (!ends_.is_backward || each.has_gradient) tensors.push_back(&each);
  }
  if (pipeline_.lengths.empty()) add_length(own, tensors, 0);
  for (const uint64_t each : pipeline_.lengths) add_length(own, tensors, each);
  buffer_of_.resize(pipeline_.micro_batches);
  stream_ = place.stream;
  if (ends_.role != ChannelRole::kLocal) {
    for (Length& each : lengths_) HETCOMM_RETURN_IF_ERROR(make_reshard(place, each));
  }
  return allocate(place);
}

void Channel::add_length(const PlanStage& own, const std::vector<const PlanTensor*>& tensors,
                         uint64_t length) {
  Length& added = lengths_.emplace_back();
  for (const PlanTensor* each : tensors) {
    added.tensors.push_back(at_length(*each, length));
    added.shapes.push_back(local_shape(added.tensors.back(), own));
  }
}

Status Channel::make_reshard(const ChannelPlace& place, Length& length) {
  const PlanBoundary& boundary = pipeline_.boundaries[ends_.boundary];
  std::vector<OwnedLayout> layouts;
  std::vector<hetcomm_reshard_tensor_t> moved;
  for (const PlanTensor& tensor : length.tensors) {
    for (const uint32_t stage : {ends_.maker, ends_.taker}) {
      Result<OwnedLayout> layout = make_layout(tensor, pipeline_.stages[stage]);
      if (!layout.ok()) return layout.status();
      layouts.push_back(std::move(layout).value());
    }
    moved.push_back({.source = layouts[layouts.size() - 2].get(),
                     .destination = layouts.back().get(),
                     .source_type = tensor.type,
                     .destination_type = tensor.type});
  }
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.strategy = boundary.strategy;
  options.in_flight = ends_.in_flight;
  // The reshard plans of all lengths can share a tag, since all ranks create them in the same
  // order.
  options.tag = place.generation << 32 | 2 * uint64_t{ends_.boundary} | (ends_.is_backward ? 1 : 0);
  options.slice_bytes = boundary.slice_bytes;
  hetcomm_reshard_t* reshard = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_call(
      hetcomm_reshard_create(place.communicator, moved.data(), moved.size(), &options, &reshard)));
  length.reshard.reset(reshard);
  return {};
}

Status Channel::allocate(const ChannelPlace& place) {
  uint32_t count = 0;
  for (const ProgramChannel* each : programs_) count = std::max(count, each->buffers);
  buffers_.resize(count);
  for (Buffer& each : buffers_) each.shares.resize(lengths_.size());
  for (size_t i = 0; i < lengths_.back().tensors.size(); ++i) {
    HETCOMM_RETURN_IF_ERROR(allocate_tensor(place, i));
  }
  return {};
}

// Allocates the buffers of one tensor for the last length, which is the greatest.
Status Channel::allocate_tensor(const ChannelPlace& place, size_t index) {
  const uint64_t most =
      bytes_of(lengths_.back().tensors[index].type, lengths_.back().shapes[index]);
  const uint64_t distance = (most + kAlignment - 1) / kAlignment * kAlignment;
  // The comparison divides, because the product could overflow.
  if (distance > kMaxBytes / buffers_.size()) {
    return {Code::kOutOfRange,
            fmt::format("tensor '{}' needs {} buffers of {} bytes",
                        lengths_.back().tensors[index].name, buffers_.size(), distance)};
  }
  const uint64_t bytes = distance * buffers_.size();
  hetcomm_memory_t* memory = nullptr;
  HETCOMM_RETURN_IF_ERROR(
      of_call(hetcomm_memory_allocate(place.context, place.device, bytes, &memory)));
  memories_.emplace_back(memory);
  buffer_bytes_ += bytes;
  void* address = nullptr;
  if (place.is_host_accessible) {
    HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_memory_address(memory, &address)));
  }
  for (size_t at = 0; at < buffers_.size(); ++at) {
    for (size_t l = 0; l < lengths_.size(); ++l) {
      const PlanTensor& tensor = lengths_[l].tensors[index];
      const std::vector<uint64_t>& shape = lengths_[l].shapes[index];
      const hetcomm_buffer_t data =
          hetcomm_buffer_memory(memory, distance * at, bytes_of(tensor.type, shape));
      Share& share = buffers_[at].shares[l];
      share.data.push_back(data);
      share.tensors.push_back(
          {.name = tensor.name.c_str(),
           .buffer = data,
           .address = address == nullptr ? nullptr : static_cast<char*>(address) + data.offset,
           .type = tensor.type,
           .dimensions = static_cast<uint32_t>(shape.size()),
           .shape = shape.data()});
    }
  }
  return {};
}

Status Channel::begin(RunKind kind, const RunLimits& limits, const std::vector<uint8_t>& lengths) {
  items_ = programs_[static_cast<size_t>(kind)];
  limits_ = limits;
  lengths_of_run_ = &lengths;
  posted_ = 0;
  free_.clear();
  // pop_free() takes buffers from the end of the list.
  for (size_t at = buffers_.size(); at > 0; --at) free_.push_back(static_cast<uint32_t>(at - 1));
  if (ends_.role != ChannelRole::kReceive) return {};
  for (uint32_t i = 0; i < ends_.in_flight; ++i) HETCOMM_RETURN_IF_ERROR(post());
  return {};
}

uint32_t Channel::pop_free() {
  const uint32_t at = free_.back();
  free_.pop_back();
  return at;
}

Status Channel::post() {
  if (posted_ == items_->order.size()) return {};
  const uint32_t micro_batch = items_->order[posted_++];
  buffer_of_[micro_batch] = pop_free();
  return start(micro_batch, buffers_[buffer_of_[micro_batch]]);
}

Status Channel::start(uint32_t micro_batch, Buffer& buffer) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = stream_;
  options.step = limits_.step;
  options.micro_batch = micro_batch;
  // The timeout is the time left in the run. A receive that is posted ahead must not time out
  // before a step waits for it, and that wait has its own limit.
  const Result<uint64_t> left_ns = limits_.left_ns();
  if (!left_ns.ok()) return left_ns.status();
  options.timeout_ns = left_ns.value();
  const bool sends = ends_.role == ChannelRole::kSend;
  const size_t length = length_of(micro_batch);
  const hetcomm_buffer_t* const data = buffer.shares[length].data.data();
  return of_call(hetcomm_reshard_start(lengths_[length].reshard.get(), sends ? data : nullptr,
                                       sends ? nullptr : data, &options, &buffer.request));
}

Status Channel::acquire(uint32_t micro_batch) {
  if (ends_.role == ChannelRole::kLocal) {
    buffer_of_[micro_batch] = pop_free();
    return {};
  }
  buffer_of_[micro_batch] = items_->item[micro_batch] % static_cast<uint32_t>(buffers_.size());
  return await(micro_batch);
}

Result<bool> Channel::look(uint32_t micro_batch) {
  hetcomm_request_t*& request = buffers_[buffer_of_[micro_batch]].request;
  return request == nullptr ? Result<bool>(true) : test_and_clear(request);
}

Status Channel::send(uint32_t micro_batch) {
  if (ends_.role == ChannelRole::kLocal) return {};
  return start(micro_batch, buffers_[buffer_of_[micro_batch]]);
}

Status Channel::take() { return ends_.role == ChannelRole::kReceive ? post() : Status(); }

void Channel::release(uint32_t micro_batch) { free_.push_back(buffer_of_[micro_batch]); }

Status Channel::settle() {
  for (Buffer& each : buffers_) {
    HETCOMM_RETURN_IF_ERROR(limits_.terms->wait_for(each.request, limits_.patience));
  }
  return {};
}

void Channel::drain() {
  for (Buffer& each : buffers_) pipeline::drain(each.request);
}

}  // namespace hetcomm::pipeline
