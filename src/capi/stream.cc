// Implements the C ABI of users' streams (hetcomm/stream.h).
#include "src/capi/guard.h"

namespace {

using hetcomm::Code;
using hetcomm::Result;
using hetcomm::Status;
using hetcomm::UserStream;
namespace capi = hetcomm::capi;

// Makes all jobs create in advance the objects that they cannot create while a stream of device
// |index| is held. Does this only once for each device.
void prepare(hetcomm::Context& context, size_t index) {
  if (context.devices().has_user_streams(index)) return;
  context.devices().note_user_streams(index);
  for (const std::shared_ptr<hetcomm::Job>& job : context.jobs()) {
    const hetcomm::Engine::Baton baton(context.engine());
    job->prepare_for_holds();
  }
}

// Makes a stream for |device| of |context|. open(devices, index, held) opens or creates the native
// stream.
template <typename Open>
Status make(hetcomm_context_t* context, int32_t device, uint32_t flags,
            hetcomm_stream_t** out_stream, Open&& open) {
  HETCOMM_REQUIRE_HANDLE(context);
  HETCOMM_REQUIRE(out_stream);
  hetcomm::Context& own = *context->impl;
  HETCOMM_RETURN_IF_ERROR(capi::check_alive(own));
  HETCOMM_RETURN_IF_ERROR(capi::check_device(own, device));
  if (!own.engine().threaded()) {
    return Status(Code::kUnsupported,
                  "operations in the order of a stream need a thread that carries them out: create "
                  "the context with HETCOMM_PROGRESS_THREAD, or set HETCOMM_PROGRESS=thread");
  }
  if ((flags & ~static_cast<uint32_t>(HETCOMM_STREAM_NOT_HELD)) != 0) {
    return Status(Code::kInvalidArgument, "flags: 0 or HETCOMM_STREAM_NOT_HELD");
  }
  const auto index = static_cast<size_t>(device);
  HETCOMM_RETURN_IF_ERROR(own.devices().check(index));
  const bool held = (flags & HETCOMM_STREAM_NOT_HELD) == 0;
  const Result<UserStream::Opened> opened = open(own.devices(), index, held);
  if (!opened.ok()) return opened.status();
  try {
    if (held) prepare(own, index);
    *out_stream = new hetcomm_stream(own, index, opened.value());
  } catch (...) {
    UserStream::close(own.devices().device(index), opened.value());
    throw;
  }
  return {};
}

}  // namespace

hetcomm_status_t hetcomm_stream_wrap(hetcomm_context_t* context, int32_t device, void* native,
                                     uint32_t flags, hetcomm_stream_t** out_stream) noexcept {
  return capi::guard([&]() -> Status {
    return make(context, device, flags, out_stream,
                [&](const hetcomm::DeviceSet& devices, size_t index, bool held) {
                  return UserStream::open(devices, index, native, held);
                });
  });
}

hetcomm_status_t hetcomm_stream_create(hetcomm_context_t* context, int32_t device, uint32_t flags,
                                       hetcomm_stream_t** out_stream) noexcept {
  return capi::guard([&] { return make(context, device, flags, out_stream, UserStream::create); });
}

hetcomm_status_t hetcomm_stream_native(const hetcomm_stream_t* stream, void** out_native) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(stream);
    HETCOMM_REQUIRE(out_native);
    *out_native = stream->native();
    return {};
  });
}

hetcomm_status_t hetcomm_stream_info(const hetcomm_stream_t* stream, int32_t* out_device,
                                     uint32_t* out_flags) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(stream);
    HETCOMM_REQUIRE(out_device);
    HETCOMM_REQUIRE(out_flags);
    *out_device = static_cast<int32_t>(stream->device_index());
    *out_flags = stream->is_held() ? 0 : HETCOMM_STREAM_NOT_HELD;
    return {};
  });
}

hetcomm_status_t hetcomm_stream_destroy(hetcomm_stream_t* stream) noexcept {
  if (stream == nullptr) return HETCOMM_OK;
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(stream);
    hetcomm::Context& context = stream->context;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(context));
    if (stream->in_use()) {
      return Status(Code::kBusy,
                    "an operation, a prepared request or the vendor's stream still waits for it");
    }
    capi::destroy(stream);
    context.drop_object();
    return {};
  });
}
