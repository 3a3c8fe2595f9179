// Declares the checks that data calls of the C ABI share, and post(), which checks and posts an
// operation and catches exceptions.
#pragma once

#include "src/capi/guard.h"

namespace hetcomm::capi {

// The reason why a call is refused. |code| is kOk if the call is not refused. |text| refers to a
// string literal, so the checks allocate no memory.
struct Refusal {
  Code code = Code::kOk;
  std::string_view text;
};
inline constexpr std::string_view kForbiddenText =
    "a plain pointer leads to memory of a device, which only its hetcomm_memory_t names: "
    "hetcomm_buffer_memory() makes a buffer of it, hetcomm_memory_wrap() a memory";
// Returns the error text for a plain pointer that DeviceSet::check_plain() has refused with |code|.
inline std::string_view text_of_plain(Code code) {
  return code == Code::kInvalidArgument
             ? kForbiddenText
             : "a device failed, and cannot tell whether a plain pointer leads to its memory";
}
// Checks the |buffers| of a call. |devices| are the devices of the call's context.
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
// Checks the |group| of a call on |communicator|. Null means no group.
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

// Checks the |stream| of a call on |communicator|. Null means no stream.
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

// Checks |arguments|, reads their options, and posts the operation, or only prepares it if
// |prepared| is set.
hetcomm_status_t post(Communicator* communicator, PostArguments arguments, bool prepared,
                      hetcomm_request_t** out_request) noexcept;
// Checks the handle |communicator|, and then calls the overload above.
inline hetcomm_status_t post(hetcomm_communicator_t* communicator, const PostArguments& arguments,
                             bool prepared, hetcomm_request_t** out_request) noexcept {
  if (communicator == nullptr) return fail(Code::kInvalidArgument, "communicator is null");
  if (!is_good(communicator)) [[unlikely]] {
    return fail(Code::kInvalidArgument, "communicator was destroyed, or is no such handle");
  }
  return post(communicator->impl.get(), arguments, prepared, out_request);
}

}  // namespace hetcomm::capi
