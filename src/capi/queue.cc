// Implements the C ABI of queues (hetcomm/queue.h).
#include "src/queue/queue.h"

#include "src/capi/guard.h"
#include "src/capi/post.h"

namespace {

using hetcomm::Code;
using hetcomm::OperationKind;
using hetcomm::Queue;
using hetcomm::Result;
using hetcomm::Status;
using hetcomm::Track;
namespace capi = hetcomm::capi;

hetcomm_status_t post(hetcomm_queue_t* queue, bool pushes, const hetcomm_buffer_t& buffer,
                      const hetcomm_operation_options_t* options,
                      hetcomm_request_t** out_request) noexcept {
  if (queue == nullptr) return capi::fail(Code::kInvalidArgument, "queue is null");
  if (!capi::is_good(queue)) {
    return capi::fail(Code::kInvalidArgument, "queue was destroyed, or is no such handle");
  }
  Queue& own = *queue->impl;
  const hetcomm_status_t checked =
      capi::guard([&]() -> Status { return own.check(pushes, buffer.length); });
  if (checked != HETCOMM_OK) return checked;
  return capi::post(&own.communicator(),
                    {.kind = pushes ? OperationKind::kSend : OperationKind::kReceive,
                     .peer = own.peer(),
                     .tag = own.track().terms().tag,
                     .ignore = 0,
                     .buffers = &buffer,
                     .count = 1,
                     .options = options,
                     .track = &own.track()},
                    false, out_request);
}

}  // namespace

hetcomm_status_t hetcomm_queue_create(hetcomm_communicator_t* communicator, int32_t peer,
                                      int32_t end, const hetcomm_queue_options_t* options,
                                      hetcomm_queue_t** out_queue) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_REQUIRE(options);
    HETCOMM_REQUIRE(out_queue);
    hetcomm::Communicator& own = *communicator->impl;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(own.context()));
    hetcomm_queue_options_t known;
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    if (end != HETCOMM_QUEUE_PUSH && end != HETCOMM_QUEUE_PULL) {
      return Status(Code::kInvalidArgument, "end is not one of HETCOMM_QUEUE_*");
    }
    if (peer < 0 || peer >= own.size()) {
      return Status(Code::kOutOfRange,
                    fmt::format("there is no rank {} among {}", peer, own.size()));
    }
    Result<std::unique_ptr<Queue>> made = Queue::create(
        own, peer, end == HETCOMM_QUEUE_PUSH ? Track::End::kSending : Track::End::kReceiving,
        {.tag = known.tag,
         .most_bytes = known.max_item_bytes,
         .depth = known.depth == 0 ? Queue::kDefaultDepth : known.depth},
        {.weight = known.weight, .bytes_per_second = known.max_bytes_per_second});
    if (!made.ok()) return made.status();
    *out_queue = new hetcomm_queue{.impl = std::move(made).value()};
    return {};
  });
}

hetcomm_status_t hetcomm_queue_push(hetcomm_queue_t* queue, hetcomm_buffer_t buffer,
                                    const hetcomm_operation_options_t* options,
                                    hetcomm_request_t** out_request) noexcept {
  return post(queue, true, buffer, options, out_request);
}

hetcomm_status_t hetcomm_queue_pull(hetcomm_queue_t* queue, hetcomm_buffer_t buffer,
                                    const hetcomm_operation_options_t* options,
                                    hetcomm_request_t** out_request) noexcept {
  return post(queue, false, buffer, options, out_request);
}

hetcomm_status_t hetcomm_queue_drain(hetcomm_queue_t* queue, uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(queue);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(queue->impl->communicator().context()));
    if (queue->impl->drain(timeout_ns)) return {};
    return Status(Code::kTimedOut,
                  fmt::format("{} items are still under way", queue->impl->track().taken()));
  });
}

hetcomm_status_t hetcomm_queue_cancel(hetcomm_queue_t* queue) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(queue);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(queue->impl->communicator().context()));
    queue->impl->cancel();
    return {};
  });
}

hetcomm_status_t hetcomm_queue_pending(hetcomm_queue_t* queue, uint32_t* out_count) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(queue);
    HETCOMM_REQUIRE(out_count);
    *out_count = queue->impl->track().taken();
    return {};
  });
}

hetcomm_status_t hetcomm_queue_destroy(hetcomm_queue_t* queue) noexcept {
  if (queue == nullptr) return HETCOMM_OK;
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(queue);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(queue->impl->communicator().context()));
    HETCOMM_RETURN_IF_ERROR(queue->impl->close());
    capi::destroy(queue);
    return {};
  });
}
