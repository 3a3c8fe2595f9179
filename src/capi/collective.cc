// Implements the C ABI of collective operations and data types.
#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include <hetcomm/collective.h>

#include "src/base/room.h"
#include "src/capi/post.h"
#include "src/core/collectives/task.h"
#include "src/core/communicator/collective_calls.h"

namespace {

using hetcomm::Code;
using hetcomm::Communicator;
using hetcomm::Operation;
using hetcomm::Status;
using hetcomm::collectives::Arguments;
using hetcomm::collectives::Kind;
namespace capi = hetcomm::capi;

Status as_status(const capi::Refusal& refusal) {
  return refusal.code == Code::kOk ? Status() : Status(refusal.code, std::string(refusal.text));
}

Status check_options(const hetcomm_collective_options_t& options, Communicator& own) {
  if (options.reserved != 0) return Status(Code::kInvalidArgument, "options: reserved has to be 0");
  if (options.ranks == nullptr && options.rank_count != 0) return capi::null_argument("ranks");
  HETCOMM_RETURN_IF_ERROR(as_status(capi::check_group(options.group, &own)));
  return as_status(capi::check_stream(options.stream, &own));
}

// The buffers of a call that this rank uses.
struct Used {
  uint64_t index = 0;  // this rank's index among the participants
  bool sends = true;
  bool receives = true;
};

Used used_buffers(const Arguments& arguments, const Communicator& own,
                  const hetcomm_collective_options_t* options) {
  int32_t index = own.rank();
  if (options != nullptr && options->ranks != nullptr) {
    for (size_t i = 0; i < options->rank_count; ++i) {
      if (options->ranks[i] == own.rank()) index = static_cast<int32_t>(i);
    }
  }
  const bool at_root = index == arguments.root;
  const Kind kind = arguments.kind;
  return {.index = static_cast<uint64_t>(index),
          .sends = at_root || !(kind == Kind::kScatter || kind == Kind::kScatterv),
          .receives = at_root ||
                      !(kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kGatherv)};
}

// A range of host memory, or of a memory that the host cannot access.
struct Range {
  const hetcomm_memory_t* memory;  // null: host memory
  uint64_t begin;
  uint64_t length;

  bool before(const Range& other) const {
    return std::tie(memory, begin) < std::tie(other.memory, other.begin);
  }
  bool overlaps(const Range& other) const {
    return memory == other.memory &&
           (begin - other.begin < other.length || other.begin - begin < length);
  }
};

Range range_of(const hetcomm_buffer_t& buffer) {
  if (buffer.memory == nullptr || !buffer.memory->host_accessible()) {
    return {buffer.memory, buffer.offset, buffer.length};
  }
  const auto base = reinterpret_cast<uintptr_t>(buffer.memory->address());
  return {nullptr, base + buffer.offset, buffer.length};
}

// Checks that the send buffers of an all-to-all do not overlap its receive buffers. Parts arrive in
// any order, and would overwrite data that has not been sent yet.
Status check_apart(const Arguments& arguments) {
  const Status refusal(Code::kInvalidArgument,
                       "send buffers overlap receive buffers; use separate memory");
  const std::span sends(arguments.sends, arguments.send_count);
  const std::span receives(arguments.receives, arguments.receive_count);
  if (sends.size() == 1 && receives.size() == 1) {
    const bool any = sends[0].length > 0 && receives[0].length > 0;
    return any && range_of(sends[0]).overlaps(range_of(receives[0])) ? refusal : Status();
  }
  struct Use {
    Range range;
    bool is_receive;
  };
  std::vector<Use> uses;
  uses.reserve(sends.size() + receives.size());
  const auto add = [&uses](std::span<const hetcomm_buffer_t> buffers, bool is_receive) {
    for (const hetcomm_buffer_t& buffer : buffers) {
      if (buffer.length > 0) uses.push_back({range_of(buffer), is_receive});
    }
  };
  add(sends, false);
  add(receives, true);
  std::sort(uses.begin(), uses.end(),
            [](const Use& one, const Use& other) { return one.range.before(other.range); });
  // last[0] and last[1] are the send buffer and the receive buffer with the highest end so far in
  // the current memory.
  const Use* last[2] = {nullptr, nullptr};
  for (const Use& use : uses) {
    const Use* const other = last[use.is_receive ? 0 : 1];
    if (other != nullptr && other->range.overlaps(use.range)) return refusal;
    const Use*& own = last[use.is_receive ? 1 : 0];
    const bool further = own == nullptr || own->range.memory != use.range.memory ||
                         own->range.begin + own->range.length < use.range.begin + use.range.length;
    if (further) own = &use;
  }
  return {};
}

// Checks that send and receive buffers overlap only where the operation can work in place. A buffer
// that is used in place must coincide with its counterpart: the whole other buffer, this rank's
// part of it, or this rank's buffer in an array. Other checks refuse mismatched lengths.
Status check_in_place(const Arguments& arguments, uint64_t index, size_t ranks) {
  const bool sends_whole = arguments.send_count == 1 && arguments.kind != Kind::kReduceScatter &&
                           arguments.kind != Kind::kScatter;
  const Range whole = range_of(sends_whole ? *arguments.sends : *arguments.receives);
  const std::span others = sends_whole ? std::span(arguments.receives, arguments.receive_count)
                                       : std::span(arguments.sends, arguments.send_count);
  for (size_t i = 0; i < others.size(); ++i) {
    const Range other = range_of(others[i]);
    if (whole.length == 0 || other.length == 0 || !whole.overlaps(other)) continue;
    const bool is_array = others.size() > 1;
    const bool has_parts = !is_array && other.length == ranks * whole.length;
    if (!is_array && !has_parts && other.length != whole.length) continue;
    const bool is_counterpart = !is_array || i == index;
    const uint64_t own_part = has_parts ? index * whole.length : 0;
    if (is_counterpart && other.begin + own_part == whole.begin) continue;
    return Status(Code::kInvalidArgument,
                  "send buffers overlap receive buffers, and not as in place; use separate memory");
  }
  return {};
}

// Checks a call and posts the collective operation. The kind of operation determines the number of
// buffers.
Status try_post(hetcomm_communicator_t* communicator, Arguments& arguments,
                const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) {
  HETCOMM_REQUIRE_HANDLE(communicator);
  HETCOMM_REQUIRE(out_request);
  Communicator& own = *communicator->impl;
  HETCOMM_RETURN_IF_ERROR(capi::check_alive(own.context()));
  hetcomm_collective_options_t known;
  size_t ranks = static_cast<size_t>(own.size());
  if (options != nullptr) {
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    HETCOMM_RETURN_IF_ERROR(check_options(known, own));
    arguments.options = &known;
    if (known.ranks != nullptr) ranks = known.rank_count;
    if (known.group != nullptr) hetcomm::make_room(known.group->entries);
  }
  const Used used = used_buffers(arguments, own, arguments.options);
  if (!hetcomm::collectives::sends_many(arguments.kind)) {
    arguments.send_count = arguments.sends == nullptr ? 0 : 1;
  } else if (used.sends) {
    if (arguments.sends == nullptr) return capi::null_argument("sends");
    arguments.send_count = ranks;
  }
  if (!hetcomm::collectives::receives_many(arguments.kind)) {
    arguments.receive_count = arguments.receives == nullptr ? 0 : 1;
  } else if (used.receives) {
    if (arguments.receives == nullptr) return capi::null_argument("recvs");
    arguments.receive_count = ranks;
  }
  const hetcomm::DeviceSet& devices = own.context().devices();
  // The arrays of buffers have as many entries as the list of ranks, so the length of the list is
  // checked before the buffers are read.
  if (ranks > static_cast<size_t>(own.size())) {
    return Status(Code::kInvalidArgument,
                  fmt::format("options: ranks lists {} ranks, but the communicator has {}", ranks,
                              own.size()));
  }
  if (used.sends) {
    HETCOMM_RETURN_IF_ERROR(
        as_status(capi::check_buffers(devices, arguments.sends, arguments.send_count)));
  }
  if (used.receives) {
    HETCOMM_RETURN_IF_ERROR(
        as_status(capi::check_buffers(devices, arguments.receives, arguments.receive_count)));
  }
  if (arguments.kind == Kind::kAlltoall || arguments.kind == Kind::kAlltoallv) {
    HETCOMM_RETURN_IF_ERROR(check_apart(arguments));
  } else if (used.sends && used.receives && arguments.send_count != 0 &&
             arguments.receive_count != 0) {
    HETCOMM_RETURN_IF_ERROR(check_in_place(arguments, used.index, ranks));
  }
  Operation* operation = nullptr;
  std::string text;
  const Code code = post_collective(own, arguments, &operation, &text);
  if (code != Code::kOk) {
    return text.empty() ? Status(code) : Status(code, std::move(text));
  }
  if (options != nullptr && known.group != nullptr) {
    known.group->entries.push_back({operation, operation->generation()});
  }
  *out_request = hetcomm::encode_handle(operation);
  return {};
}

hetcomm_status_t post(hetcomm_communicator_t* communicator, Arguments arguments,
                      const hetcomm_collective_options_t* options,
                      hetcomm_request_t** out_request) noexcept {
  return capi::guard([&] { return try_post(communicator, arguments, options, out_request); });
}

}  // namespace

extern "C" {

hetcomm_status_t hetcomm_datatype_size(hetcomm_datatype_t datatype,
                                       size_t* out_size_bytes) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(out_size_bytes);
    switch (datatype) {
#define HETCOMM_CASE(name, value, bytes) \
  case value:                            \
    *out_size_bytes = (bytes);           \
    return {};
      HETCOMM_DATATYPE_MAP(HETCOMM_CASE)
#undef HETCOMM_CASE
      default:
        return Status(
            Code::kInvalidArgument,
            fmt::format("data type {} is unknown; hetcomm/datatype.h lists the types", datatype));
    }
  });
}

hetcomm_status_t hetcomm_barrier(hetcomm_communicator_t* communicator,
                                 const hetcomm_collective_options_t* options,
                                 hetcomm_request_t** out_request) noexcept {
  return post(communicator, {.kind = Kind::kBarrier}, options, out_request);
}

hetcomm_status_t hetcomm_broadcast(hetcomm_communicator_t* communicator, int32_t root,
                                   hetcomm_buffer_t buffer, hetcomm_datatype_t datatype,
                                   const hetcomm_collective_options_t* options,
                                   hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kBroadcast, .root = root, .datatype = datatype, .receives = &buffer},
              options, out_request);
}

hetcomm_status_t hetcomm_reduce(hetcomm_communicator_t* communicator, int32_t root,
                                hetcomm_buffer_t send, hetcomm_buffer_t recv,
                                hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
                                const hetcomm_collective_options_t* options,
                                hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kReduce,
               .root = root,
               .datatype = datatype,
               .reduction = reduction,
               .sends = &send,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_allreduce(hetcomm_communicator_t* communicator, hetcomm_buffer_t send,
                                   hetcomm_buffer_t recv, hetcomm_datatype_t datatype,
                                   hetcomm_reduction_t reduction,
                                   const hetcomm_collective_options_t* options,
                                   hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kAllreduce,
               .datatype = datatype,
               .reduction = reduction,
               .sends = &send,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_allgather(hetcomm_communicator_t* communicator, hetcomm_buffer_t send,
                                   hetcomm_buffer_t recv, hetcomm_datatype_t datatype,
                                   const hetcomm_collective_options_t* options,
                                   hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kAllgather, .datatype = datatype, .sends = &send, .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_allgatherv(hetcomm_communicator_t* communicator, hetcomm_buffer_t send,
                                    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
                                    const hetcomm_collective_options_t* options,
                                    hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kAllgatherv, .datatype = datatype, .sends = &send, .receives = recvs},
              options, out_request);
}

hetcomm_status_t hetcomm_reduce_scatter(hetcomm_communicator_t* communicator, hetcomm_buffer_t send,
                                        hetcomm_buffer_t recv, hetcomm_datatype_t datatype,
                                        hetcomm_reduction_t reduction,
                                        const hetcomm_collective_options_t* options,
                                        hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kReduceScatter,
               .datatype = datatype,
               .reduction = reduction,
               .sends = &send,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_reduce_scatterv(hetcomm_communicator_t* communicator,
                                         const hetcomm_buffer_t* sends, hetcomm_buffer_t recv,
                                         hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
                                         const hetcomm_collective_options_t* options,
                                         hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kReduceScatterv,
               .datatype = datatype,
               .reduction = reduction,
               .sends = sends,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_collective_refuse(hetcomm_communicator_t* communicator,
                                           const char* reason) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(communicator->impl->context()));
    refuse_collective(*communicator->impl, reason != nullptr ? reason : "no reason given");
    return {};
  });
}

hetcomm_status_t hetcomm_alltoall(hetcomm_communicator_t* communicator, hetcomm_buffer_t send,
                                  hetcomm_buffer_t recv, hetcomm_datatype_t datatype,
                                  const hetcomm_collective_options_t* options,
                                  hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kAlltoall, .datatype = datatype, .sends = &send, .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_alltoallv(hetcomm_communicator_t* communicator,
                                   const hetcomm_buffer_t* sends, const hetcomm_buffer_t* recvs,
                                   hetcomm_datatype_t datatype,
                                   const hetcomm_collective_options_t* options,
                                   hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kAlltoallv, .datatype = datatype, .sends = sends, .receives = recvs},
              options, out_request);
}

hetcomm_status_t hetcomm_gather(hetcomm_communicator_t* communicator, int32_t root,
                                hetcomm_buffer_t send, hetcomm_buffer_t recv,
                                hetcomm_datatype_t datatype,
                                const hetcomm_collective_options_t* options,
                                hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kGather,
               .root = root,
               .datatype = datatype,
               .sends = &send,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_gatherv(hetcomm_communicator_t* communicator, int32_t root,
                                 hetcomm_buffer_t send, const hetcomm_buffer_t* recvs,
                                 hetcomm_datatype_t datatype,
                                 const hetcomm_collective_options_t* options,
                                 hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kGatherv,
               .root = root,
               .datatype = datatype,
               .sends = &send,
               .receives = recvs},
              options, out_request);
}

hetcomm_status_t hetcomm_scatter(hetcomm_communicator_t* communicator, int32_t root,
                                 hetcomm_buffer_t send, hetcomm_buffer_t recv,
                                 hetcomm_datatype_t datatype,
                                 const hetcomm_collective_options_t* options,
                                 hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kScatter,
               .root = root,
               .datatype = datatype,
               .sends = &send,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_scatterv(hetcomm_communicator_t* communicator, int32_t root,
                                  const hetcomm_buffer_t* sends, hetcomm_buffer_t recv,
                                  hetcomm_datatype_t datatype,
                                  const hetcomm_collective_options_t* options,
                                  hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kScatterv,
               .root = root,
               .datatype = datatype,
               .sends = sends,
               .receives = &recv},
              options, out_request);
}

hetcomm_status_t hetcomm_scan(hetcomm_communicator_t* communicator, hetcomm_buffer_t send,
                              hetcomm_buffer_t recv, hetcomm_datatype_t datatype,
                              hetcomm_reduction_t reduction,
                              const hetcomm_collective_options_t* options,
                              hetcomm_request_t** out_request) noexcept {
  return post(communicator,
              {.kind = Kind::kScan,
               .datatype = datatype,
               .reduction = reduction,
               .sends = &send,
               .receives = &recv},
              options, out_request);
}

}  // extern "C"
