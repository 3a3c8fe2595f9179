// Implements the data path of the C ABI: point-to-point operations, groups and requests.
#include <algorithm>
#include <span>
#include <utility>

#include "src/base/baton_role.h"
#include "src/capi/guard.h"
#include "src/capi/post.h"
#include "src/core/peer/matching/completer.h"
#include "src/system/variables.h"

namespace {

using hetcomm::Code;
using hetcomm::Communicator;
using hetcomm::Engine;
using hetcomm::Operation;
using hetcomm::OperationKind;
using hetcomm::OperationRef;
using hetcomm::OperationState;
using hetcomm::PostArguments;
using hetcomm::Status;
namespace capi = hetcomm::capi;
using capi::post;

// Fast path for the common call, with one buffer in host memory, no options and valid arguments.
// Returns null for all other calls, and if the operation cannot be started immediately. The caller
// then calls post().
template <OperationKind kKind>
[[gnu::always_inline]] inline Operation* post_plain(hetcomm_communicator_t* communicator,
                                                    int32_t peer, uint64_t tag, uint64_t ignore,
                                                    const hetcomm_buffer_t& buffer,
                                                    const hetcomm_operation_options_t* options,
                                                    hetcomm_request_t** out_request) {
  if (communicator == nullptr || !capi::is_good(communicator) || out_request == nullptr ||
      options != nullptr || buffer.memory != nullptr || buffer.offset == 0 ||
      buffer.length > UINT64_MAX - buffer.offset) [[unlikely]] {
    return nullptr;
  }
  Communicator& own = *communicator->impl;
  if (static_cast<uint32_t>(peer) >= static_cast<uint32_t>(own.size()) || !own.context().alive() ||
      own.context().devices().check_plain(buffer.offset) != Code::kOk) [[unlikely]] {
    return nullptr;
  }
  return own.poster().post_plain<kKind>(peer, tag, ignore, buffer);
}

// Returns the operation of |request|. If the handle is invalid, or belongs to the parent process,
// returns null and sets |*status|.
OperationRef find(hetcomm_request_t* request, hetcomm_status_t* status) {
  OperationRef found = hetcomm::decode_handle(request);
  if (found.operation == nullptr) [[unlikely]] {
    *status = capi::fail(Code::kInvalidArgument, "request is null");
    return {};
  }
  if (found.stale()) [[unlikely]] {
    *status = capi::fail(Code::kStaleHandle, hetcomm::code_text(Code::kStaleHandle));
    return {};
  }
  if (!found.operation->slot.engine->alive()) [[unlikely]] {
    *status = capi::fail(Code::kForked, hetcomm::code_text(Code::kForked));
    return {};
  }
  return found;
}

[[gnu::noinline, gnu::cold]] void keep_text_of(const Operation& operation,
                                               hetcomm_completion_t* out) {
  out->text = capi::keep_text(*operation.outcome.text);
}

inline void fill_completion(const Operation& operation, hetcomm_completion_t* out) {
  out->status = static_cast<hetcomm_status_t>(operation.outcome.code);
  out->source = operation.outcome.source;
  out->tag = operation.outcome.matched_tag;
  out->bytes_sent = operation.outcome.bytes_sent;
  out->bytes_received = operation.outcome.bytes_received;
  out->text = "";
}

// Writes the outcome of |operation| to |out|, unless |out| is null. Returns true if the caller must
// release the operation's slot. A prepared operation keeps its slot.
[[gnu::always_inline]] inline bool report(Operation& operation, hetcomm_completion_t* out) {
  if (out != nullptr) {
    fill_completion(operation, out);
    if (operation.outcome.text) [[unlikely]]
      keep_text_of(operation, out);
  }
  if (!operation.prepared) [[likely]]
    return true;
  operation.set_state(OperationState::kPrepared);
  return false;
}

// Reports a completed operation and releases its slot, unless the operation is prepared. Returns
// false if another thread has already reported the operation.
[[gnu::always_inline]] inline bool consume(const OperationRef& ref, hetcomm_completion_t* out) {
  Operation& operation = *ref.operation;
  Engine& engine = *operation.slot.engine;
  if (engine.try_enter_as_user()) [[likely]] {
    const Engine::Visit visit(engine);
    if (!ref.is(OperationState::kComplete)) [[unlikely]]
      return false;
    if (report(operation, out)) engine.pool().recycle_locked(&operation);
    return true;
  }
  if (!operation.claim(ref.generation)) [[unlikely]]
    return false;
  if (report(operation, out)) engine.pool().recycle(&operation);
  return true;
}

hetcomm_status_t stale() {
  return capi::fail(Code::kStaleHandle, hetcomm::code_text(Code::kStaleHandle));
}

// Like find(), but also fails for a prepared request that was not started.
OperationRef find_started(hetcomm_request_t* request, hetcomm_status_t* status) {
  const OperationRef found = find(request, status);
  if (found.operation == nullptr || !found.is(OperationState::kPrepared)) return found;
  *status = capi::fail(Code::kInvalidArgument, "the prepared request was not started");
  return {};
}

// Returns the absolute time at which a wait with |timeout_ns| times out, or kForever if it does not
// time out.
uint64_t wait_deadline(uint64_t timeout_ns) {
  if (timeout_ns == HETCOMM_TIMEOUT_DEFAULT || timeout_ns == HETCOMM_TIMEOUT_INFINITE) {
    return hetcomm::kForever;
  }
  return hetcomm::deadline_after(hetcomm::now_ns(), timeout_ns);
}

// Slow path of hetcomm_request_wait(): waits for a request that is not complete yet, and reports
// invalid handles.
[[gnu::noinline]] hetcomm_status_t wait_slowly(hetcomm_request_t* request, uint64_t timeout_ns,
                                               hetcomm_completion_t* out_completion) noexcept {
  hetcomm_status_t status = HETCOMM_OK;
  const OperationRef ref = find_started(request, &status);
  if (ref.operation == nullptr) return status;
  if (!ref.is(OperationState::kComplete)) {
    bool done = false;
    status = capi::guard([&]() -> Status {
      done = ref.operation->slot.engine->wait(wait_deadline(timeout_ns),
                                              [&ref] { return !ref.is(OperationState::kPending); });
      return {};
    });
    if (status != HETCOMM_OK) return status;
    if (!done) return capi::fail(Code::kTimedOut, "the operation is still pending");
  }
  return consume(ref, out_completion) ? HETCOMM_OK : stale();
}

// --- waiting for any one of multiple requests ---

using Requests = std::span<hetcomm_request_t* const>;

struct Found {
  OperationRef ref;  // null: no request was found
  size_t index = 0;
};

// Finds a request in |all| that has completed recently, by the index that find_or_mark() stored in
// its operation in an earlier call. If it finds none, the caller must check all requests.
Found find_recent(Requests all) {
  // Narrow the range until an entry at one of its ends is not null. Callers set entries to null
  // after their requests have ended.
  size_t front = 0;
  size_t back = all.size();
  while (front < back && all[front] == nullptr && all[back - 1] == nullptr) ++front, --back;
  if (front >= back) return {};
  hetcomm_status_t status = HETCOMM_OK;
  const OperationRef any = find(all[front] != nullptr ? all[front] : all[back - 1], &status);
  if (any.operation == nullptr) return {};
  Found found;
  any.operation->slot.engine->completions().find([&](Operation& operation) {
    // If the caller removes ended requests and appends new ones, requests move toward the front. So
    // up to kNear entries are checked, from the stored index toward the front.
    constexpr size_t kNear = 16;
    size_t index = operation.wait_index.load(std::memory_order_relaxed);
    const size_t first_index = index > kNear ? index - kNear : 0;
    for (index = std::min(index, all.size()); index > first_index; --index) {
      const OperationRef ref = hetcomm::decode_handle(all[index - 1]);
      if (ref.operation != &operation || !ref.is(OperationState::kComplete)) continue;
      found = {ref, index - 1};
      return true;
    }
    return false;
  });
  return found;
}

// The index at which this thread's last call found a request. Searches start there, because the
// requests before it have usually ended.
thread_local size_t last_found = 0;

// Finds a request that has ended. Stores in each operation that has not ended, until it finds one
// that has, the operation's index in |all| plus 1, for find_recent(). Sets |*engine| to the engine
// of the requests. Fails if a request is invalid or was not started, if the requests belong to
// different contexts, or if all entries are null.
Status find_or_mark(Requests all, Engine** engine, Found* found) {
  if (all.size() >= UINT32_MAX) return Status(Code::kOutOfRange, "more than 2^32 - 2 requests");
  const size_t first = last_found < all.size() ? last_found : 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const size_t i = first + k < all.size() ? first + k : first + k - all.size();
    if (all[i] == nullptr) continue;
    hetcomm_status_t status = HETCOMM_OK;
    const OperationRef ref = find(all[i], &status);
    if (ref.operation == nullptr) {
      return Status(static_cast<Code>(status),
                    fmt::format("request {}: {}", i, hetcomm_status_text(status)));
    }
    if (ref.is(OperationState::kPrepared)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("request {} is prepared, but was not started", i));
    }
    if (*engine != nullptr && *engine != ref.operation->slot.engine) {
      return Status(Code::kInvalidArgument, "the requests belong to several contexts");
    }
    *engine = ref.operation->slot.engine;
    if (ref.is(OperationState::kComplete)) {
      *found = {ref, i};
      return {};
    }
    ref.operation->wait_index.store(static_cast<uint32_t>(i + 1), std::memory_order_relaxed);
  }
  return *engine != nullptr
             ? Status()
             : Status(Code::kInvalidArgument, "none of the requests can be waited for");
}

// Returns the first request that is no longer pending, or a null one if all are pending.
Found find_done(Requests all) {
  for (size_t i = 0; i < all.size(); ++i) {
    const OperationRef ref = hetcomm::decode_handle(all[i]);
    if (ref.operation != nullptr && !ref.is(OperationState::kPending)) return {ref, i};
  }
  return {};
}

}  // namespace

extern "C" {

hetcomm_status_t hetcomm_send(hetcomm_communicator_t* communicator, int32_t destination,
                              uint64_t tag, hetcomm_buffer_t buffer,
                              const hetcomm_operation_options_t* options,
                              hetcomm_request_t** out_request) noexcept {
  Operation* operation = post_plain<OperationKind::kSend>(communicator, destination, tag, 0, buffer,
                                                          options, out_request);
  if (operation != nullptr) [[likely]] {
    *out_request = hetcomm::encode_handle(operation);
    return HETCOMM_OK;
  }
  return post(communicator, {OperationKind::kSend, destination, tag, 0, &buffer, 1, options}, false,
              out_request);
}

hetcomm_status_t hetcomm_recv(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag,
                              uint64_t ignore, hetcomm_buffer_t buffer,
                              const hetcomm_operation_options_t* options,
                              hetcomm_request_t** out_request) noexcept {
  Operation* operation = post_plain<OperationKind::kReceive>(communicator, source, tag, ignore,
                                                             buffer, options, out_request);
  if (operation != nullptr) [[likely]] {
    *out_request = hetcomm::encode_handle(operation);
    return HETCOMM_OK;
  }
  return post(communicator, {OperationKind::kReceive, source, tag, ignore, &buffer, 1, options},
              false, out_request);
}

hetcomm_status_t hetcomm_sendv(hetcomm_communicator_t* communicator, int32_t destination,
                               uint64_t tag, const hetcomm_buffer_t* buffers, size_t count,
                               const hetcomm_operation_options_t* options,
                               hetcomm_request_t** out_request) noexcept {
  return post(communicator, {OperationKind::kSend, destination, tag, 0, buffers, count, options},
              false, out_request);
}

hetcomm_status_t hetcomm_recvv(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag,
                               uint64_t ignore, const hetcomm_buffer_t* buffers, size_t count,
                               const hetcomm_operation_options_t* options,
                               hetcomm_request_t** out_request) noexcept {
  return post(communicator, {OperationKind::kReceive, source, tag, ignore, buffers, count, options},
              false, out_request);
}

hetcomm_status_t hetcomm_send_prepare(hetcomm_communicator_t* communicator, int32_t destination,
                                      uint64_t tag, const hetcomm_buffer_t* buffers, size_t count,
                                      const hetcomm_operation_options_t* options,
                                      hetcomm_request_t** out_request) noexcept {
  return post(communicator, {OperationKind::kSend, destination, tag, 0, buffers, count, options},
              true, out_request);
}

hetcomm_status_t hetcomm_recv_prepare(hetcomm_communicator_t* communicator, int32_t source,
                                      uint64_t tag, uint64_t ignore,
                                      const hetcomm_buffer_t* buffers, size_t count,
                                      const hetcomm_operation_options_t* options,
                                      hetcomm_request_t** out_request) noexcept {
  return post(communicator, {OperationKind::kReceive, source, tag, ignore, buffers, count, options},
              true, out_request);
}

hetcomm_status_t hetcomm_probe(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag,
                               uint64_t ignore, uint64_t timeout_ns,
                               hetcomm_completion_t* out_message) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_REQUIRE(out_message);
    Communicator& own = *communicator->impl;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(own.context()));
    if (source != HETCOMM_ANY_SOURCE && (source < 0 || source >= own.size())) {
      return Status(Code::kOutOfRange,
                    fmt::format("there is no rank {}: the communicator has ranks 0 to {}", source,
                                own.size() - 1));
    }
    const uint64_t timeout =
        timeout_ns == 0 ? own.context().config().number(hetcomm::variable::kTimeout) : timeout_ns;
    const uint64_t deadline = hetcomm::deadline_after(hetcomm::now_ns(), timeout);
    Engine& engine = own.context().engine();
    engine.poke();
    while (true) {
      const uint64_t seen = engine.arrivals();
      if (own.probe(source, tag, ignore, out_message)) return {};
      HETCOMM_RETURN_IF_ERROR(own.check_source(source));
      if (hetcomm::now_ns() >= deadline)
        return Status(Code::kTimedOut, "no such message has arrived in time");
      engine.wait(deadline, [&] { return engine.arrivals() != seen; });
    }
  });
}

hetcomm_status_t hetcomm_group_create(hetcomm_communicator_t* communicator,
                                      hetcomm_group_t** out_group) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_REQUIRE(out_group);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(communicator->impl->context()));
    *out_group = new hetcomm_group{.communicator = communicator->impl.get(), .entries = {}};
    communicator->impl->count_groups(1);
    return {};
  });
}

hetcomm_status_t hetcomm_group_start(hetcomm_group_t* group) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(group);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(group->communicator->context()));
    group->communicator->poster().start_group(group->entries);
    group->entries.clear();
    return {};
  });
}

void hetcomm_group_destroy(hetcomm_group_t* group) noexcept {
  if (group == nullptr || !capi::is_good(group) || !group->communicator->context().alive()) return;
  const hetcomm_status_t status = capi::guard([&]() -> Status {
    group->communicator->poster().cancel_group(group->entries);
    return {};
  });
  static_cast<void>(status);
  group->communicator->count_groups(-1);
  capi::destroy(group);
}

hetcomm_status_t hetcomm_request_test(hetcomm_request_t* request,
                                      hetcomm_completion_t* out_completion) noexcept {
  hetcomm_status_t status = HETCOMM_OK;
  const OperationRef ref = find_started(request, &status);
  if (ref.operation == nullptr) return status;
  if (!ref.is(OperationState::kComplete)) {
    status = capi::guard([&]() -> Status {
      ref.operation->slot.engine->poke();
      return {};
    });
    if (status != HETCOMM_OK) return status;
    if (ref.is(OperationState::kPending)) return HETCOMM_PENDING;
  }
  return consume(ref, out_completion) ? HETCOMM_OK : stale();
}

hetcomm_status_t hetcomm_request_wait(hetcomm_request_t* request, uint64_t timeout_ns,
                                      hetcomm_completion_t* out_completion) noexcept {
  const OperationRef ref = hetcomm::decode_handle(request);
  if (ref.operation != nullptr && ref.is(OperationState::kComplete) &&
      ref.operation->slot.engine->alive()) [[likely]] {
    ref.operation->slot.engine->note_wait();
    return consume(ref, out_completion) ? HETCOMM_OK : stale();
  }
  return wait_slowly(request, timeout_ns, out_completion);
}

hetcomm_status_t hetcomm_request_wait_any(size_t count, hetcomm_request_t* const* requests,
                                          uint64_t timeout_ns, size_t* out_index,
                                          hetcomm_completion_t* out_completion) noexcept {
  return capi::guard([&]() -> Status {
    if (count > 0) HETCOMM_REQUIRE(requests);
    HETCOMM_REQUIRE(out_index);
    const Requests all(requests, count);
    Engine* engine = nullptr;
    Found found = find_recent(all);
    if (found.ref.operation == nullptr) {
      HETCOMM_RETURN_IF_ERROR(find_or_mark(all, &engine, &found));
    }
    if (found.ref.operation == nullptr) {
      uint64_t seen = 0;  // forces the first look() to check all requests
      const auto look = [&] {
        const uint64_t ends = engine->ends() + 1;
        if (ends != std::exchange(seen, ends)) found = find_done(all);
        return found.ref.operation != nullptr;
      };
      if (!engine->wait(wait_deadline(timeout_ns), look)) {
        return Status(Code::kTimedOut, "the operations are still pending; wait longer, or again");
      }
    }
    if (!consume(found.ref, out_completion)) return Status(Code::kStaleHandle);
    *out_index = last_found = found.index;
    return {};
  });
}

hetcomm_status_t hetcomm_request_cancel(hetcomm_request_t* request) noexcept {
  hetcomm_status_t status = HETCOMM_OK;
  const OperationRef ref = find(request, &status);
  if (ref.operation == nullptr) return status;
  if (!ref.is(OperationState::kPending)) return HETCOMM_OK;  // nothing left to cancel
  return capi::guard([&]() -> Status {
    const Engine::Baton baton(*ref.operation->slot.engine);
    ref.operation->slot.engine->drain();
    if (ref.stale()) return Status(Code::kStaleHandle);
    if (ref.is(OperationState::kPending)) Communicator::of(*ref.operation).cancel(*ref.operation);
    return {};
  });
}

hetcomm_status_t hetcomm_request_start(hetcomm_request_t* request) noexcept {
  hetcomm_status_t status = HETCOMM_OK;
  const OperationRef ref = find(request, &status);
  if (ref.operation == nullptr) return status;
  return capi::guard([&]() -> Status {
    Operation& operation = *ref.operation;
    if (!operation.prepared) {
      return Status(Code::kInvalidArgument,
                    "the request was not prepared; only prepared requests can be started again");
    }
    if (operation.communicator == nullptr) {
      return Status(Code::kInvalidArgument, "the request's communicator was destroyed");
    }
    std::string text;
    const Code code = Communicator::of(operation).poster().restart(ref, &text);
    return code == Code::kOk ? Status() : Status(code, std::move(text));
  });
}

hetcomm_status_t hetcomm_request_destroy(hetcomm_request_t* request) noexcept {
  if (request == nullptr) return HETCOMM_OK;
  hetcomm_status_t status = HETCOMM_OK;
  const OperationRef ref = find(request, &status);
  if (ref.operation == nullptr) return status;
  return capi::guard([&]() -> Status {
    Operation& operation = *ref.operation;
    const Engine::Baton baton(*operation.slot.engine);
    operation.slot.engine->drain();
    if (ref.is(OperationState::kPending)) {
      Communicator::of(operation).release(operation);
      return {};
    }
    // The request can be destroyed if it is complete, or prepared and idle. Otherwise another
    // thread is currently reporting it.
    const bool ours = operation.claim(ref.generation) ||
                      (ref.is(OperationState::kPrepared) && operation.prepared);
    if (!ours) return Status(Code::kStaleHandle);
    if (operation.prepared) hetcomm::Completer::drop_uses(operation);
    operation.slot.engine->pool().recycle_locked(&operation);
    return {};
  });
}

}  // extern "C"
