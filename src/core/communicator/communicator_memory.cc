// Registered memory and one-sided operations of a communicator.
#include "src/core/communicator/communicator.h"
#include "src/core/job/context.h"

namespace hetcomm {
namespace {

// How often it is looked whether peers have let go of mapped memory.
constexpr uint64_t kLetGoInterval = 200'000;

}  // namespace

void Communicator::add_remote(RemoteMemory& remote) {
  const Engine::Baton baton(engine_);
  job_->pair(remote.rank()).access().add(remote);
  ++remotes_;
}

void Communicator::drop_remote(RemoteMemory& remote) {
  const Engine::Baton baton(engine_);
  job_->pair(remote.rank()).access().remove(remote);
  --remotes_;
}

Status Communicator::register_memory(Memory& memory, uint32_t rights, bool caller_progress) {
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
  if (channel().closed) return channel().aborted;
  memory.registration = std::make_unique<Registration>(*this, memory, rights);
  try {
    job_->memories().publish(*memory.registration);
  } catch (const std::bad_alloc&) {
    // Nobody knows of it: no peer holds it.
    (void)job_->memories().withdraw(*memory.registration);
    job_->commons().registrations.erase(memory.registration->id);
    memory.registration.reset();
    return Code::kOutOfMemory;
  }
  memory.add_use();
  ++registrations_;
  return {};
}

Status Communicator::unregister_memory(Memory& memory, uint64_t timeout_ns) {
  Registration* registration = memory.registration.get();
  if (registration == nullptr) {
    return Status(Code::kInvalidArgument, "the memory is not registered");
  }
  auto& own = static_cast<Communicator&>(registration->communicator());
  const uint64_t timeout = timeout_ns == 0 ? own.default_timeout_ns_ : timeout_ns;
  {
    const Engine::Baton baton(own.engine_);
    registration->closing = true;
    own.engine_.note_arrival();  // who waits for a notification has to look again
    own.engine_.pool().for_each([&](Operation& operation) {
      if (operation.state() != OperationState::kPending ||
          operation.kind < OperationKind::kAccept ||
          operation.access.registration != registration) {
        return;
      }
      own.job_->ender().end(operation, Code::kStaleHandle, "the memory was unregistered");
    });
  }
  const uint64_t deadline = deadline_after(now_ns(), timeout);
  bool withdrawn = false;
  while (true) {
    {
      const Engine::Baton baton(own.engine_);
      withdrawn = own.job_->memories().withdraw(*registration);
    }
    const bool quiet = registration->running() == 0 && registration->waiters == 0;
    if (withdrawn && quiet) break;
    if (now_ns() >= deadline) {
      return Status(Code::kTimedOut,
                    withdrawn ? "copies of it are still running" : "a peer has not let go of it");
    }
    const uint64_t next = now_ns() + kLetGoInterval;
    own.engine_.wait(std::min(next, deadline),
                     [&] { return !quiet && registration->running() == 0; });
  }
  const Engine::Baton baton(own.engine_);
  own.job_->commons().registrations.erase(registration->id);
  hetcomm_notification_t dropped;
  Pair* source = nullptr;
  while (registration->take(&dropped, &source)) source->return_credit(kMessageCost);
  memory.registration.reset();
  memory.drop_use();
  --own.registrations_;
  return {};
}

Result<std::vector<std::byte>> Communicator::export_memory(const Memory& memory) {
  const Registration* registration = memory.registration.get();
  if (registration == nullptr) {
    return Status(Code::kInvalidArgument, "the memory is not registered");
  }
  const auto& own = static_cast<Communicator&>(registration->communicator());
  const Engine::Baton baton(own.engine_);
  return own.job_->memories().describe(*registration).encode();
}

Status Communicator::import_memory(ConstByteSpan bytes, ExportedMemory* exported,
                                   std::vector<RemoteKey>* keys) {
  Result<ExportedMemory> decoded = ExportedMemory::decode(bytes);
  if (!decoded.ok()) return decoded.status();
  const Engine::Baton baton(engine_);
  HETCOMM_RETURN_IF_ERROR(job_->memories().find_keys(decoded.value(), keys));
  if (!contains(decoded.value().rank)) {
    return Status(Code::kOutOfRange, "the memory's owner is not in the communicator");
  }
  *exported = std::move(decoded.value());
  return {};
}

Status Communicator::wait_notification(Memory& memory, Engine& engine, uint64_t timeout_ns,
                                       hetcomm_notification_t* out) {
  const uint64_t deadline = deadline_after(now_ns(), timeout_ns);
  bool polled = false;
  while (true) {
    Registration* registration = nullptr;
    {
      const Engine::Baton baton(engine);
      registration = memory.registration.get();
      if (registration == nullptr) {
        return Status(Code::kInvalidArgument, "the memory is not registered");
      }
      Pair* source = nullptr;
      if (registration->take(out, &source)) {
        source->return_credit(kMessageCost);
        return {};
      }
      if (registration->closing) return Status(Code::kStaleHandle, "the memory is unregistered");
      registration->waiters.fetch_add(1);
    }
    if (!polled) engine.poke();
    polled = true;
    const bool came = engine.wait(
        deadline, [&] { return registration->has_notification() || registration->closing; });
    registration->waiters.fetch_sub(1);  // it may be gone from here on
    if (!came) return Status(Code::kTimedOut, "no notification");
  }
}

Code Communicator::fill_access(const PostArguments& arguments, Operation& operation,
                               std::string* text) const {
  const AccessArguments& given = *arguments.access;
  operation.access = {.remote = given.remote,
                      .offset = given.offset,
                      .operand = given.operand,
                      .compare = given.compare,
                      .result = given.result};
  if (given.remote == nullptr) return Code::kOk;
  operation.access.notify =
      arguments.options != nullptr && (arguments.options->flags & HETCOMM_OPERATION_NOTIFY) != 0;
  const RemoteMemory& remote = *given.remote;
  uint32_t right = HETCOMM_ACCESS_ATOMIC;
  if (arguments.kind == OperationKind::kPut) {
    right = HETCOMM_ACCESS_PUT;
  } else if (arguments.kind == OperationKind::kGet) {
    right = HETCOMM_ACCESS_GET;
  } else {
    operation.length = sizeof(uint64_t);
  }
  Code code = Code::kOk;
  if (!remote.contains(given.offset, operation.length)) {
    *text = fmt::format("offset {} and length {} end past the remote memory's {} bytes",
                        given.offset, operation.length, remote.length());
    code = Code::kOutOfRange;
  } else if ((remote.rights() & right) == 0) {
    *text = "the owner of the memory did not grant this right";
    code = Code::kPermissionDenied;
  } else if (right == HETCOMM_ACCESS_ATOMIC && given.offset % sizeof(uint64_t) != 0) {
    *text = "the offset of an atomic is not a multiple of 8";
    code = Code::kInvalidArgument;
  }
  if (code != Code::kOk) {
    Completer::drop_uses(operation);
    return code;
  }
  given.remote->add_use();
  return Code::kOk;
}

// A put or get that was checked, under the baton.
Operation* Communicator::start_access(OperationKind kind, RemoteMemory& remote, uint64_t offset,
                                      const hetcomm_buffer_t& buffer) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  fill_common(kind, rank_of(remote.rank()), 0, 0, *operation);
  fill_host(buffer, *operation);
  operation->access = {.remote = &remote, .offset = offset};
  remote.add_use();
  operation->set_state(OperationState::kPending);
  start_now(*operation);
  return operation;
}

Operation* Communicator::begin_for_peer(OperationKind kind, int peer, Registration& registration,
                                        uint64_t offset, uint64_t length) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  fill_common(kind, -1, 0, 0, *operation);
  operation->peer = peer;
  operation->detached = true;
  operation->timeout_ns = kForever;
  operation->run.deadline_ns = kForever;
  Memory& memory = registration.memory();
  const hetcomm_buffer_t buffer{reinterpret_cast<hetcomm_memory_t*>(&memory), offset, length};
  try {
    std::string text;  // the range has been checked
    if (fill_buffers({kind, -1, 0, 0, &buffer, 1, nullptr}, *operation, &text) != Code::kOk) {
      engine_.pool().recycle_locked(operation);
      return nullptr;
    }
  } catch (const std::bad_alloc&) {
    engine_.pool().recycle_locked(operation);
    return nullptr;
  }
  operation->access = {.registration = &registration, .offset = offset};
  operation->set_state(OperationState::kPending);
  operation->slot.block->has_new = true;
  registration.add_running();
  operation_begun();
  engine_.operation_started();
  return operation;
}

}  // namespace hetcomm
