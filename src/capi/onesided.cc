// Implements the C ABI of one-sided operations and registered memory.
#include <atomic>
#include <utility>

#include "src/capi/guard.h"
#include "src/capi/output.h"
#include "src/capi/post.h"
#include "src/system/variables.h"

namespace {

using hetcomm::AccessArguments;
using hetcomm::Code;
using hetcomm::Communicator;
using hetcomm::ConstByteSpan;
using hetcomm::OperationKind;
using hetcomm::PostArguments;
using hetcomm::RegisteredMemories;
using hetcomm::Result;
using hetcomm::Status;
namespace capi = hetcomm::capi;

hetcomm_status_t check_remote(const hetcomm_remote_memory_t* remote) {
  if (remote == nullptr) return capi::fail(Code::kInvalidArgument, "remote is null");
  if (!capi::is_good(remote)) {
    return capi::fail(Code::kInvalidArgument, "remote was released, or is no such handle");
  }
  return HETCOMM_OK;
}

// Fast path for calls without options. |buffer| is the host memory of a put or get, and null for an
// atomic operation. |plain| is the caller's address that the operation accesses. If the remote
// memory is mapped and the range is short, act(there) performs the operation, where |there| is the
// mapped address. Otherwise a put or get is started. Returns false for all other calls, and if
// the operation cannot be started immediately. The caller then calls post_access().
template <OperationKind kKind, typename Act>
[[gnu::always_inline]] inline bool post_plain(hetcomm_remote_memory_t* remote, uint64_t offset,
                                              uint64_t length, const hetcomm_buffer_t* buffer,
                                              uint64_t plain,
                                              const hetcomm_operation_options_t* options,
                                              hetcomm_request_t** out_request, Act&& act) {
  if (remote == nullptr || !capi::is_good(remote) || out_request == nullptr || options != nullptr)
      [[unlikely]] {
    return false;
  }
  auto& own = static_cast<Communicator&>(remote->communicator());
  if (!own.context().alive() || own.context().devices().check_plain(plain) != Code::kOk)
      [[unlikely]]
    return false;
  hetcomm::Operation* operation =
      own.poster().access_plain<kKind>(*remote, offset, length, buffer, std::forward<Act>(act));
  if (operation == nullptr) return false;
  hetcomm::Engine& engine = own.context().engine();
  if (engine.threaded() && operation->state() == hetcomm::OperationState::kPending) {
    engine.note_pending();
  }
  *out_request = hetcomm::encode_handle(operation);
  return true;
}

bool is_plain_host(const hetcomm_buffer_t& buffer) {
  return buffer.memory == nullptr && buffer.offset != 0;
}

// Fast path for atomic operations. Returns false for calls that post_access() must handle.
template <OperationKind kKind, typename Act>
[[gnu::always_inline]] inline bool post_plain_atomic(hetcomm_remote_memory_t* remote,
                                                     uint64_t offset, uint64_t* out_previous,
                                                     const hetcomm_operation_options_t* options,
                                                     hetcomm_request_t** out_request, Act&& act) {
  return post_plain<kKind>(
      remote, offset, sizeof(uint64_t), nullptr, reinterpret_cast<uintptr_t>(out_previous), options,
      out_request, [&](std::byte* there) {
        if (reinterpret_cast<uintptr_t>(there) % sizeof(uint64_t) != 0) return false;
        const uint64_t previous =
            act(std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(there)));
        if (out_previous != nullptr) *out_previous = previous;
        return true;
      });
}

hetcomm_status_t post_access(hetcomm_remote_memory_t* remote, OperationKind kind,
                             const AccessArguments& access, const hetcomm_buffer_t* buffer,
                             const hetcomm_operation_options_t* options,
                             hetcomm_request_t** out_request) {
  if (const hetcomm_status_t status = check_remote(remote); status != HETCOMM_OK) return status;
  auto& own = static_cast<Communicator&>(remote->communicator());
  AccessArguments all = access;
  all.remote = remote;
  const PostArguments arguments{.kind = kind,
                                .peer = own.rank_of(remote->rank()),
                                .tag = 0,
                                .ignore = 0,
                                .buffers = buffer,
                                .count = buffer != nullptr ? size_t{1} : 0,
                                .options = options,
                                .access = &all};
  return capi::post(&own, arguments, false, out_request);
}

}  // namespace

extern "C" {

hetcomm_status_t hetcomm_memory_register(hetcomm_memory_t* memory,
                                         hetcomm_communicator_t* communicator, uint32_t access,
                                         uint32_t flags) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(memory->context));
    if (&communicator->impl->context() != &memory->context) {
      return Status(Code::kInvalidArgument,
                    "the memory and the communicator belong to different contexts");
    }
    if (access == 0 || (access & ~uint32_t{HETCOMM_ACCESS_ALL}) != 0) {
      return Status(Code::kInvalidArgument, "access has to be a combination of HETCOMM_ACCESS_*");
    }
    if ((flags & ~uint32_t{HETCOMM_REGISTER_CALLER_PROGRESS}) != 0) {
      return Status(Code::kInvalidArgument, "flags has unknown bits");
    }
    return communicator->impl->memories().register_memory(
        *memory, access, (flags & HETCOMM_REGISTER_CALLER_PROGRESS) != 0);
  });
}

hetcomm_status_t hetcomm_memory_unregister(hetcomm_memory_t* memory, uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(memory->context));
    return RegisteredMemories::unregister_memory(*memory, timeout_ns);
  });
}

hetcomm_status_t hetcomm_memory_export(const hetcomm_memory_t* memory, size_t capacity,
                                       void* out_bytes, size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_REQUIRE(out_size);
    if (capacity > 0) HETCOMM_REQUIRE(out_bytes);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(memory->context));
    const auto bytes = RegisteredMemories::export_memory(*memory);
    if (!bytes.ok()) return bytes.status();
    if (bytes.value().size() > capacity) {
      return Status(Code::kOutOfRange, fmt::format("the buffer is too small: {} bytes are needed",
                                                   bytes.value().size()));
    }
    *out_size = bytes.value().size();
    std::memcpy(out_bytes, bytes.value().data(), bytes.value().size());
    return {};
  });
}

hetcomm_status_t hetcomm_memory_import(hetcomm_communicator_t* communicator, const void* bytes,
                                       size_t size, hetcomm_remote_memory_t** out_remote) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(communicator);
    HETCOMM_REQUIRE(bytes);
    HETCOMM_REQUIRE(out_remote);
    Communicator& own = *communicator->impl;
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(own.context()));
    hetcomm::ExportedMemory exported;
    std::vector<hetcomm::RemoteKey> keys;
    HETCOMM_RETURN_IF_ERROR(own.memories().import_memory(
        ConstByteSpan(static_cast<const std::byte*>(bytes), size), &exported, &keys));
    *out_remote = new hetcomm_remote_memory(own, exported, std::move(keys));
    return {};
  });
}

hetcomm_status_t hetcomm_remote_memory_info(const hetcomm_remote_memory_t* remote,
                                            hetcomm_remote_memory_info_t* out_info) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(remote);
    HETCOMM_REQUIRE(out_info);
    return capi::write_output({.struct_size = 0,
                               .rank = remote->communicator().rank_of(remote->rank()),
                               .access = remote->rights(),
                               .size_bytes = remote->length()},
                              out_info);
  });
}

hetcomm_status_t hetcomm_remote_memory_destroy(hetcomm_remote_memory_t* remote) noexcept {
  return capi::guard([&]() -> Status {
    if (remote == nullptr) return {};
    HETCOMM_REQUIRE_HANDLE(remote);
    HETCOMM_RETURN_IF_ERROR(
        capi::check_alive(static_cast<Communicator&>(remote->communicator()).context()));
    if (remote->in_use()) {
      return Status(Code::kBusy,
                    "operations on the remote memory are pending; wait for them first");
    }
    capi::destroy(remote);
    return {};
  });
}

hetcomm_status_t hetcomm_put(hetcomm_remote_memory_t* remote, uint64_t offset,
                             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
                             hetcomm_request_t** out_request) noexcept {
  const auto write = [&](std::byte* there) {
    hetcomm::copy_bytes(there, reinterpret_cast<const std::byte*>(buffer.offset), buffer.length);
    return true;
  };
  if (is_plain_host(buffer) &&
      post_plain<OperationKind::kPut>(remote, offset, buffer.length, &buffer, buffer.offset,
                                      options, out_request, write)) [[likely]] {
    return HETCOMM_OK;
  }
  AccessArguments access{.offset = offset};
  // |notify_value| is an operand of the put, so it is read here and not with the other options.
  if (options != nullptr &&
      options->struct_size >=
          offsetof(hetcomm_operation_options_t, notify_value) + sizeof(options->notify_value)) {
    access.operand = options->notify_value;
  }
  return post_access(remote, OperationKind::kPut, access, &buffer, options, out_request);
}

hetcomm_status_t hetcomm_get(hetcomm_remote_memory_t* remote, uint64_t offset,
                             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
                             hetcomm_request_t** out_request) noexcept {
  const auto read = [&](const std::byte* there) {
    hetcomm::copy_bytes(reinterpret_cast<std::byte*>(buffer.offset), there, buffer.length);
    return true;
  };
  if (is_plain_host(buffer) &&
      post_plain<OperationKind::kGet>(remote, offset, buffer.length, &buffer, buffer.offset,
                                      options, out_request, read)) [[likely]] {
    return HETCOMM_OK;
  }
  return post_access(remote, OperationKind::kGet, {.offset = offset}, &buffer, options,
                     out_request);
}

hetcomm_status_t hetcomm_fetch_add(hetcomm_remote_memory_t* remote, uint64_t offset,
                                   uint64_t addend, uint64_t* out_previous,
                                   const hetcomm_operation_options_t* options,
                                   hetcomm_request_t** out_request) noexcept {
  const auto add = [&](std::atomic_ref<uint64_t> word) { return word.fetch_add(addend); };
  if (post_plain_atomic<OperationKind::kFetchAdd>(remote, offset, out_previous, options,
                                                  out_request, add)) [[likely]] {
    return HETCOMM_OK;
  }
  return post_access(remote, OperationKind::kFetchAdd,
                     {.offset = offset, .operand = addend, .result = out_previous}, nullptr,
                     options, out_request);
}

hetcomm_status_t hetcomm_compare_swap(hetcomm_remote_memory_t* remote, uint64_t offset,
                                      uint64_t expected, uint64_t desired, uint64_t* out_previous,
                                      const hetcomm_operation_options_t* options,
                                      hetcomm_request_t** out_request) noexcept {
  const auto swap = [&](std::atomic_ref<uint64_t> word) {
    uint64_t seen = expected;
    word.compare_exchange_strong(seen, desired);
    return seen;
  };
  if (post_plain_atomic<OperationKind::kCompareSwap>(remote, offset, out_previous, options,
                                                     out_request, swap)) [[likely]] {
    return HETCOMM_OK;
  }
  return post_access(
      remote, OperationKind::kCompareSwap,
      {.offset = offset, .operand = desired, .compare = expected, .result = out_previous}, nullptr,
      options, out_request);
}

hetcomm_status_t hetcomm_flush(hetcomm_communicator_t* communicator, int32_t rank,
                               const hetcomm_operation_options_t* options,
                               hetcomm_request_t** out_request) noexcept {
  const AccessArguments access{};
  return capi::post(communicator,
                    {.kind = OperationKind::kFlush,
                     .peer = rank,
                     .tag = 0,
                     .ignore = 0,
                     .buffers = nullptr,
                     .count = 0,
                     .options = options,
                     .access = &access},
                    false, out_request);
}

hetcomm_status_t hetcomm_memory_wait_notification(
    hetcomm_memory_t* memory, uint64_t timeout_ns,
    hetcomm_notification_t* out_notification) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(memory);
    HETCOMM_REQUIRE(out_notification);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(memory->context));
    hetcomm::Context& context = memory->context;
    const uint64_t timeout = timeout_ns == HETCOMM_TIMEOUT_DEFAULT
                                 ? context.config().number(hetcomm::variable::kTimeout)
                                 : timeout_ns;
    return RegisteredMemories::wait_notification(*memory, context.engine(), timeout,
                                                 out_notification);
  });
}

}  // extern "C"
