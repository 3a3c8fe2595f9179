#include "src/core/communicator/registered_memories.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/core/communicator/communicator.h"
#include "src/core/memory/access_state.h"

namespace hetcomm {
namespace {

// The interval at which unregister_memory() checks whether peers have released mapped memory.
constexpr uint64_t kLetGoIntervalNs = 200'000;

}  // namespace

Status RegisteredMemories::check_idle() const {
  if (registrations_ != 0) {
    return Status(Code::kBusy, fmt::format("{} memories are registered on it", registrations_));
  }
  if (remotes_ != 0) {
    return Status(Code::kBusy, "remote memories of it still exist");
  }
  return {};
}

void RegisteredMemories::add_remote(RemoteMemory& remote) {
  const Engine::Baton baton(engine_);
  job_.pair(remote.rank()).access().initiator().mapped().add(remote);
  ++remotes_;
}

void RegisteredMemories::drop_remote(RemoteMemory& remote) {
  const Engine::Baton baton(engine_);
  job_.pair(remote.rank()).access().initiator().mapped().remove(remote);
  --remotes_;
}

Status RegisteredMemories::register_memory(Memory& memory, uint32_t rights, bool caller_progress) {
  if ((rights & HETCOMM_ACCESS_ATOMIC) != 0 && !memory.host_accessible()) {
    return Status(Code::kUnsupported, "atomics need memory that the CPU can touch");
  }
  if (!engine_.threaded() && !caller_progress) {
    return Status(
        Code::kUnsupported,
        "without a progress thread (HETCOMM_PROGRESS=thread) peers are served in calls of "
        "this process only; HETCOMM_REGISTER_CALLER_PROGRESS says that it will call");
  }
  const Engine::Baton baton(engine_);
  if (memory.registration != nullptr) return Status(Code::kBusy, "the memory is registered");
  if (communicator_.channel().closed) return communicator_.channel().aborted;
  auto made = std::make_unique<Registration>(communicator_, memory, rights);
  Registration& registration = *made;
  memory.registration = std::move(made);
  try {
    job_.memories().publish(registration);
  } catch (const std::bad_alloc&) {
    // The memory was never exported, so no peer has mapped it.
    (void)job_.memories().withdraw(registration);
    job_.registrations().erase(registration.id);
    memory.registration.reset();
    return Code::kOutOfMemory;
  }
  memory.add_use();
  ++registrations_;
  return {};
}

// Ends running operations on the memory. Visits all operations of the context.
void RegisteredMemories::end_running(const Registration& registration) {
  engine_.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() != OperationState::kPending || !has_access(operation) ||
        access_of(operation).registration != &registration) {
      return;
    }
    job_.ender().end(operation, Code::kStaleHandle, "the memory was unregistered");
  });
}

Status RegisteredMemories::unregister_memory(Memory& memory, uint64_t timeout_ns) {
  Registration* registration = registration_of(memory);
  if (registration == nullptr) {
    return Status(Code::kInvalidArgument, "the memory is not registered");
  }
  RegisteredMemories& own = Communicator::of(*registration).memories();
  const uint64_t timeout = timeout_ns == 0 ? own.default_timeout_ns_ : timeout_ns;
  {
    const Engine::Baton baton(own.engine_);
    registration->closing = true;
    own.engine_.note_arrival();  // wakes threads that wait for a notification
    if (registration->running() != 0) own.end_running(*registration);
  }
  const uint64_t deadline = deadline_after(now_ns(), timeout);
  bool withdrawn = false;
  while (true) {
    {
      const Engine::Baton baton(own.engine_);
      withdrawn = own.job_.memories().withdraw(*registration);
    }
    const bool quiet = registration->running() == 0 && registration->waiters == 0;
    if (withdrawn && quiet) break;
    if (now_ns() >= deadline) {
      return Status(Code::kTimedOut,
                    withdrawn ? "operations on the memory still run; unregister it again later"
                              : "a peer still uses the memory; unregister it again later");
    }
    const uint64_t next = now_ns() + kLetGoIntervalNs;
    own.engine_.wait(std::min(next, deadline),
                     [&] { return !quiet && registration->running() == 0; });
  }
  const Engine::Baton baton(own.engine_);
  own.job_.registrations().erase(registration->id);
  hetcomm_notification_t dropped;
  NotificationSource* source = nullptr;
  while (registration->take(&dropped, &source)) source->give_back_credit(kMessageCost);
  memory.registration.reset();
  memory.drop_use();
  --own.registrations_;
  return {};
}

Result<std::vector<std::byte>> RegisteredMemories::export_memory(const Memory& memory) {
  Registration* const registration = registration_of(memory);
  if (registration == nullptr) {
    return Status(Code::kInvalidArgument, "the memory is not registered");
  }
  RegisteredMemories& own = Communicator::of(*registration).memories();
  const Engine::Baton baton(own.engine_);
  own.job_.memories().publish_again(*registration);
  return own.job_.memories().describe(*registration).encode();
}

Status RegisteredMemories::import_memory(ConstByteSpan bytes, ExportedMemory* exported,
                                         std::vector<RemoteKey>* keys) {
  Result<ExportedMemory> decoded = ExportedMemory::decode(bytes);
  if (!decoded.ok()) return decoded.status();
  const Engine::Baton baton(engine_);
  HETCOMM_RETURN_IF_ERROR(job_.memories().find_keys(decoded.value(), keys));
  if (!communicator_.contains(decoded.value().rank)) {
    return Status(Code::kOutOfRange, "the memory's owner is not a rank of the communicator");
  }
  *exported = std::move(decoded.value());
  return {};
}

Status RegisteredMemories::wait_notification(Memory& memory, Engine& engine, uint64_t timeout_ns,
                                             hetcomm_notification_t* out) {
  const uint64_t deadline = deadline_after(now_ns(), timeout_ns);
  bool polled = false;
  while (true) {
    Registration* registration = nullptr;
    {
      const Engine::Baton baton(engine);
      registration = registration_of(memory);
      if (registration == nullptr) {
        return Status(Code::kInvalidArgument, "the memory is not registered");
      }
      NotificationSource* source = nullptr;
      if (registration->take(out, &source)) {
        source->give_back_credit(kMessageCost);
        return {};
      }
      if (registration->closing) return Status(Code::kStaleHandle, "the memory is unregistered");
      registration->waiters.fetch_add(1);
    }
    if (!polled) engine.poke();
    polled = true;
    const bool came = engine.wait(
        deadline, [&] { return registration->has_notification() || registration->closing; });
    registration->waiters.fetch_sub(1);  // another thread may delete |registration| from here on
    if (!came) return Status(Code::kTimedOut, "no notification");
  }
}

}  // namespace hetcomm
