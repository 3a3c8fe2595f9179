// Posts operations through the C ABI. All data calls share these checks and this exception wall.
#pragma once

#include "src/capi/guard.h"

namespace hetcomm::capi {

// Says why a call is refused. |code| is kOk if the call is not refused. |text| is a literal, so
// that the checks allocate no memory.
struct Refusal {
  Code code = Code::kOk;
  std::string_view text;
};
inline constexpr std::string_view kForbiddenText =
    "a plain pointer leads to memory of a device, which only its hetcomm_memory_t names: "
    "hetcomm_buffer_memory() makes a buffer of it, hetcomm_memory_wrap() a memory";
// Returns the text for a plain pointer that DeviceSet::check_plain() has refused with |code|.
inline std::string_view text_of_plain(Code code) {
  return code == Code::kInvalidArgument
             ? kForbiddenText
             : "a device failed, and cannot tell whether a plain pointer leads to its memory";
}
// Checks |buffers|, which a call has passed. |devices| are those of the call's context.
inline Refusal check_buffers(const DeviceSet& devices, const hetcomm_buffer_t* buffers,
                             size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t& buffer = buffers[i];
    if (buffer.memory != nullptr && !is_good(buffer.memory)) {
      return {Code::kInvalidArgument, "a buffer's memory was freed, or is no such handle"};
    }
    if (buffer.memory != nullptr || buffer.length == 0) continue;
    if (buffer.offset == 0) return {Code::kInvalidArgument, "a host buffer's pointer is null"};
    if (buffer.length > UINT64_MAX - buffer.offset) {
      return {Code::kOutOfRange, "a host buffer ends past the address space"};
    }
    if (const Code code = devices.check_plain(buffer.offset); code != Code::kOk) [[unlikely]] {
      return {code, text_of_plain(code)};
    }
  }
  return {};
}
// Checks |group|. Null means no group.
inline Refusal check_group(const hetcomm_group_t* group, const Communicator* communicator) {
  if (group == nullptr) return {};
  if (!is_good(group)) {
    return {Code::kInvalidArgument, "the group was destroyed, or is no such handle"};
  }
  if (group->communicator != communicator) {
    return {Code::kInvalidArgument, "the group belongs to another communicator"};
  }
  return {};
}

// Checks |stream|. Null means no stream.
inline Refusal check_stream(const hetcomm_stream_t* stream, Communicator* communicator) {
  if (stream == nullptr) return {};
  if (!is_good(stream)) {
    return {Code::kInvalidArgument, "the stream was released, or is no such handle"};
  }
  if (&stream->context != &communicator->context()) {
    return {Code::kInvalidArgument, "the stream belongs to another context"};
  }
  return {};
}

// Checks |arguments|, reads their options, and posts (or only prepares) the operation.
hetcomm_status_t post(Communicator* communicator, PostArguments arguments, bool prepared,
                      hetcomm_request_t** out_request) noexcept;
// Checks the handle |communicator|, and posts the operation.
inline hetcomm_status_t post(hetcomm_communicator_t* communicator, const PostArguments& arguments,
                             bool prepared, hetcomm_request_t** out_request) noexcept {
  if (communicator == nullptr) return fail(Code::kInvalidArgument, "communicator is null");
  if (!is_good(communicator)) [[unlikely]] {
    return fail(Code::kInvalidArgument, "communicator was destroyed, or is no such handle");
  }
  return post(communicator->impl.get(), arguments, prepared, out_request);
}

}  // namespace hetcomm::capi
