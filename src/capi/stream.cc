// Streams of users.
#include "src/capi/guard.h"

namespace {

using hetcomm::Code;
using hetcomm::Result;
using hetcomm::Status;
namespace capi = hetcomm::capi;

// Jobs make now what they cannot make while streams of device |index| are held back.
void prepare(hetcomm::Context& context, size_t index) {
  if (context.devices().has_user_streams(index)) return;
  context.devices().note_user_streams(index);
  for (const std::shared_ptr<hetcomm::Job>& job : context.jobs()) {
    const hetcomm::Engine::Baton baton(context.engine());
    job->prepare_for_holds();
  }
}

}  // namespace

hetcomm_status_t hetcomm_stream_wrap(hetcomm_context_t* context, int32_t device, void* native,
                                     hetcomm_stream_t** out_stream) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(native);
    HETCOMM_REQUIRE(out_stream);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    HETCOMM_RETURN_IF_ERROR(capi::check_device(*context->impl, device));
    if (!context->impl->engine().threaded()) {
      return Status(Code::kUnsupported,
                    "operations in the order of a stream need a thread that carries them out: "
                    "create the context with HETCOMM_PROGRESS_THREAD, or set "
                    "HETCOMM_PROGRESS=thread");
    }
    const auto index = static_cast<size_t>(device);
    Result<void*> opened = hetcomm::UserStream::open(context->impl->devices(), index, native);
    if (!opened.ok()) return opened.status();
    try {
      prepare(*context->impl, index);
      *out_stream = new hetcomm_stream(*context->impl, index, opened.value());
    } catch (...) {
      const hetcomm::Device& owner = context->impl->devices().device(index);
      owner.table->user_stream_close(owner.instance, opened.value());
      throw;
    }
    return {};
  });
}

hetcomm_status_t hetcomm_stream_release(hetcomm_stream_t* stream) noexcept {
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
