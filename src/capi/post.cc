#include "src/capi/post.h"

#include "src/base/room.h"

namespace hetcomm::capi {
namespace {

constexpr size_t kMaxBuffers = 1u << 20;

Code reject(Code code, std::string_view text) {
  const hetcomm_status_t status = fail(code, text);
  return static_cast<Code>(status);
}
Code reject_if(const Refusal& refusal) {
  if (refusal.code == Code::kOk) [[likely]]
    return Code::kOk;
  return reject(refusal.code, refusal.text);
}

// Checks |arguments|, except their options. On failure it also stores the error text of the call.
Code check_post(Communicator& communicator, const PostArguments& arguments,
                hetcomm_request_t** out_request) {
  if (out_request == nullptr) return reject(Code::kInvalidArgument, "out_request is null");
  if (!communicator.context().alive()) [[unlikely]] {
    return reject(Code::kForked, hetcomm::code_text(Code::kForked));
  }
  const bool any =
      arguments.kind == OperationKind::kReceive && arguments.peer == HETCOMM_ANY_SOURCE;
  if (!any && static_cast<uint32_t>(arguments.peer) >= static_cast<uint32_t>(communicator.size())) {
    return reject(Code::kOutOfRange,
                  fmt::format("there is no rank {} among {}", arguments.peer, communicator.size()));
  }
  if (arguments.count > kMaxBuffers)
    return reject(Code::kInvalidArgument, "more than 2^20 buffers");
  if (arguments.count > 0 && arguments.buffers == nullptr) {
    return reject(Code::kInvalidArgument, "buffers is null");
  }
  const DeviceSet& devices = communicator.context().devices();
  if (arguments.access != nullptr && arguments.access->result != nullptr) {
    const Code code = devices.check_plain(reinterpret_cast<uintptr_t>(arguments.access->result));
    if (code != Code::kOk) return reject(code, text_of_plain(code));
  }
  return reject_if(check_buffers(devices, arguments.buffers, arguments.count));
}

Code check_options(const hetcomm_operation_options_t& options, OperationKind kind,
                   Communicator* communicator) {
  if (options.priority != HETCOMM_PRIORITY_NORMAL && options.priority != HETCOMM_PRIORITY_HIGH) {
    return reject(Code::kInvalidArgument, "priority is not one of HETCOMM_PRIORITY_*");
  }
  constexpr uint32_t kKnown = HETCOMM_OPERATION_FAIL_ON_ANY_LOSS | HETCOMM_OPERATION_NOTIFY;
  if ((options.flags & ~kKnown) != 0) {
    return reject(Code::kInvalidArgument, "flags has bits that are not known");
  }
  if ((options.flags & HETCOMM_OPERATION_NOTIFY) != 0 && kind != OperationKind::kPut) {
    return reject(Code::kInvalidArgument, "only a put can notify");
  }
  const Code code = reject_if(check_group(options.group, communicator));
  return code != Code::kOk ? code : reject_if(check_stream(options.stream, communicator));
}

}  // namespace

hetcomm_status_t post(Communicator* communicator, PostArguments arguments, bool prepared,
                      hetcomm_request_t** out_request) noexcept {
  try {
    Code code = check_post(*communicator, arguments, out_request);
    if (code != Code::kOk) [[unlikely]]
      return static_cast<hetcomm_status_t>(code);
    hetcomm_operation_options_t known;
    if (arguments.options != nullptr) {
      const Status status = read_options(arguments.options, &known);
      if (!status.ok()) return fail(status);
      code = check_options(known, arguments.kind, communicator);
      if (code != Code::kOk) return static_cast<hetcomm_status_t>(code);
      if (prepared && known.group != nullptr) {
        return fail(Code::kInvalidArgument, "a prepared operation cannot be in a group");
      }
      arguments.options = &known;
      if (known.group != nullptr) make_room(known.group->entries);
    }
    Operation* operation = nullptr;
    std::string text;
    code = prepared ? communicator->poster().prepare(arguments, &operation, &text)
                    : communicator->poster().post(arguments, &operation, &text);
    if (code != Code::kOk) [[unlikely]]
      return fail(code, text.empty() ? hetcomm::code_text(code) : text);
    if (arguments.options != nullptr && known.group != nullptr) {
      known.group->entries.push_back({operation, operation->generation()});
    }
    *out_request = hetcomm::encode_handle(operation);
    return HETCOMM_OK;
  } catch (const std::exception& exception) {
    return report_exception(&exception);
  } catch (...) {
    return report_exception(nullptr);
  }
}

}  // namespace hetcomm::capi
