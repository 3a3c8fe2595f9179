#include "src/core/communicator/poster.h"

#include <algorithm>
#include <new>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/context/context.h"
#include "src/core/device/user_stream.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/matching/track_base.h"
#include "src/system/variables.h"

namespace hetcomm {
namespace {

constexpr const char* kOverlapText =
    "the buffer overlaps that of another pending receive; wait for that one first";

bool in_group(const PostArguments& arguments) {
  return arguments.options != nullptr && arguments.options->group != nullptr;
}

}  // namespace

Poster::Poster(Context& context, MessagingCommunicator& communicator, Job& job,
               std::span<const MemberChannel> members)
    : engine_(job.engine()),
      job_(job),
      channel_(communicator.channel()),
      context_(context),
      communicator_(communicator),
      own_rank_(communicator.rank_of(job.rank())),
      filler_(communicator, members, job.rank(), context.config().number(variable::kTimeout)) {}

bool Poster::note_receive(const Operation& operation) {
  return !OverlapGuard::kActive || operation.kind != OperationKind::kReceive ||
         context_.overlaps().add(operation);
}

// Fills an operation that runs once. Takes the permit for the run if the operation is on a track.
// Fails if the buffer of a receive overlaps that of another pending receive.
Code Poster::fill_to_start(const PostArguments& arguments, Operation& operation,
                           std::string* text) {
  if (Code code = take_permit(arguments.track, text); code != Code::kOk) [[unlikely]]
    return code;
  Code code = filler_.fill(arguments, operation, text);
  if (code == Code::kOk && !note_receive(operation)) {
    Completer::drop_uses(operation);
    *text = kOverlapText;
    code = Code::kInvalidArgument;
  }
  if (code != Code::kOk && arguments.track != nullptr) arguments.track->give_permit();
  return code;
}

// Takes a permit for a run of |track|. Does nothing if |track| is null.
Code Poster::take_permit(Track* track, std::string* text) {
  if (track == nullptr || track->take_permit()) [[likely]]
    return Code::kOk;
  *text = fmt::format("{} items are under way, which is all that may be; wait for the oldest",
                      track->terms().depth);
  return Code::kBusy;
}

void Poster::open_track(Track& track) {
  const Engine::Baton baton(engine_);
  if (channel_.closed) {
    track.set_closed(channel_.aborted);
    return;
  }
  job_.pair(track.peer()).open_track(track);
}

Code Poster::close_track(Track& track) {
  const Engine::Baton baton(engine_);
  engine_.drain();
  if (track.taken() != 0) return Code::kBusy;
  job_.pair(track.peer()).close_track(track, status_or_code(Code::kAborted, [&] {
                                        return fmt::format("rank {} closed its end", job_.rank());
                                      }));
  return Code::kOk;
}

Operation* Poster::allocate() {
  Operation* operation = engine_.pool().allocate_shared();
  if (operation != nullptr) return operation;
  const Engine::Baton baton(engine_);
  engine_.pool().add_shared();
  return engine_.pool().allocate();
}

Code Poster::book(UserStream* stream, std::unique_ptr<Departure>* out, std::string* text) {
  if (stream == nullptr) return Code::kOk;
  UserStream* const streams[] = {stream};
  Result<std::unique_ptr<Departure>> made = Departure::make(streams);
  if (made.ok()) {
    *out = std::move(made).value();
    (*out)->reserve(1);
    return Code::kOk;
  }
  *text = made.status().text();
  return made.status().code();
}

Code Poster::post(const PostArguments& arguments, Operation** out, std::string* text) {
  if (arguments.stream() != nullptr && !in_group(arguments)) [[unlikely]]
    return post_behind(arguments, out, text);
  if (!engine_.try_lock_as_user()) [[unlikely]]
    return post_beside(arguments, out, text);
  {
    const Engine::Held held(engine_);
    Operation* operation = engine_.pool().allocate();
    if (operation == nullptr) [[unlikely]]
      return Code::kOutOfMemory;
    if (const Code code = fill_to_start(arguments, *operation, text); code != Code::kOk)
        [[unlikely]] {
      engine_.pool().recycle_locked(operation);
      return code;
    }
    *out = operation;
    if (in_group(arguments)) [[unlikely]] {
      collect(*operation);
      return Code::kOk;
    }
    operation->set_state(OperationState::kPending);
    start_now(*operation);
  }
  if (engine_.threaded()) engine_.note_pending();
  return Code::kOk;
}

// Posts an operation while another thread holds the baton. The holder of the baton starts the
// operation.
Code Poster::post_beside(const PostArguments& arguments, Operation** out, std::string* text) {
  Operation* operation = allocate();
  if (operation == nullptr) return Code::kOutOfMemory;
  if (const Code code = fill_to_start(arguments, *operation, text); code != Code::kOk) {
    engine_.pool().recycle(operation);
    return code;
  }
  *out = operation;
  if (in_group(arguments)) {
    const Engine::Baton baton(engine_);
    collect(*operation);
    return Code::kOk;
  }
  operation->set_state(OperationState::kPending);
  engine_.baton_lock().submit(*operation);
  if (engine_.threaded()) engine_.note_pending();
  return Code::kOk;
}

// Posts an operation that waits for the work that is already in its user's stream.
Code Poster::post_behind(const PostArguments& arguments, Operation** out, std::string* text) {
  std::unique_ptr<Departure> departure;
  if (Code code = book(arguments.stream(), &departure, text); code != Code::kOk) return code;
  Operation* operation = allocate();
  if (operation == nullptr) return Code::kOutOfMemory;
  if (const Code code = fill_to_start(arguments, *operation, text); code != Code::kOk) {
    engine_.pool().recycle(operation);
    return code;
  }
  book_departure(*operation, std::move(departure));
  operation->set_state(OperationState::kPending);
  *out = operation;
  engine_.baton_lock().submit(*operation);
  engine_.note_pending();
  return Code::kOk;
}

template <typename Use>
void Poster::for_each_waiting(std::span<const OperationRef> entries, Use&& use) {
  for (const OperationRef& entry : entries) {
    if (entry.is(OperationState::kPending) &&
        entry.operation->phase == OperationPhase::kCollected) {
      use(*entry.operation);
    }
  }
}

// Returns the streams that operations of a group name, each once, and adds a use to each.
std::vector<UserStream*> Poster::streams_of(std::span<const OperationRef> entries) {
  std::vector<UserStream*> streams;
  for_each_waiting(entries, [&](Operation& operation) HETCOMM_UNDER_BATON {
    if (!operation.options.on_stream) return;
    // Memory is reserved before the first add_use(), because a push_back() that failed later would
    // leak the uses added so far.
    if (streams.empty()) streams.reserve(entries.size());
    UserStream* const stream = operation.order.stream;
    if (std::find(streams.begin(), streams.end(), stream) != streams.end()) return;
    streams.push_back(stream);
    stream->add_use();
  });
  return streams;
}

void Poster::start_group(std::span<const OperationRef> entries) {
  std::vector<UserStream*> streams;
  {
    const Engine::Baton baton(engine_);
    engine_.drain();
    streams = streams_of(entries);
    if (streams.empty()) {
      for_each_waiting(entries, [&](Operation& operation) HETCOMM_UNDER_BATON {
        engine_.operation_started();
        operation.phase = OperationPhase::kSubmitted;
        start(operation);
      });
    }
  }
  if (!streams.empty()) {
    // Vendor calls are made without the baton.
    Result<std::unique_ptr<Departure>> departure = Status(Code::kOutOfMemory);
    try {
      departure = Departure::make(streams);
      if (departure.ok()) departure.value()->reserve(entries.size());
    } catch (const std::bad_alloc&) {
      departure = Status(Code::kOutOfMemory);
    }
    {
      const Engine::Baton baton(engine_);
      if (departure.ok()) {
        start_behind(entries, std::move(departure).value());
      } else {
        fail_waiting(entries, departure.status());
      }
    }
    for (UserStream* const stream : streams) stream->drop_use();
  }
  if (engine_.threaded()) engine_.note_pending();
}

void Poster::cancel_group(std::span<const OperationRef> entries) {
  const Engine::Baton baton(engine_);
  for_each_waiting(entries, [&](Operation& operation) HETCOMM_UNDER_BATON {
    communicator_.end(operation, Code::kCancelled, "cancelled before it was started");
  });
}

// Starts a group that waits for the users' streams of |departure|.
void Poster::start_behind(std::span<const OperationRef> entries,
                          std::unique_ptr<Departure> departure) {
  if (channel_.closed) {
    fail_waiting(entries, channel_.aborted);
    return;
  }
  try {
    std::vector<const void*> orders;
    for_each_waiting(entries, [&](const Operation& operation) HETCOMM_UNDER_BATON {
      if (operation.kind != OperationKind::kCollective) return;
      orders.push_back(operation.composite->order());
    });
    std::sort(orders.begin(), orders.end());
    orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
    Departure& own = job_.departures().add(std::move(departure), std::move(orders));
    for_each_waiting(entries, [&](Operation& operation) HETCOMM_UNDER_BATON {
      engine_.operation_started();
      communicator_.operation_begun();
      own.join(operation);
      if (operation.kind == OperationKind::kCollective) operation.composite->lined_up();
    });
    own.close();
    for (const OperationRef& entry : entries) {
      if (entry.is(OperationState::kPending) && entry.operation->phase == OperationPhase::kBehind) {
        job_.stream_waits().begun(*entry.operation);
      }
    }
  } catch (const std::bad_alloc&) {
    fail_waiting(entries, Status(Code::kOutOfMemory));
  }
}

void Poster::fail_waiting(std::span<const OperationRef> entries, const Status& why) {
  for_each_waiting(entries, [&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.kind == OperationKind::kCollective) {
      operation.composite->withdraw(why.code(),
                                    text_or_none([&] { return std::string(why.text()); }));
    }
    communicator_.end(operation, why.code(), why.text());
  });
}

void Poster::collect(Operation& operation) {
  operation.phase = OperationPhase::kCollected;
  operation.slot.block->has_new = true;
  const uint64_t at = context_.note_times(operation, now_ns());
  operation.set_state(OperationState::kPending);
  engine_.timer_changed(at);
}

Code Poster::prepare(const PostArguments& arguments, Operation** out, std::string* text) {
  Operation* operation = nullptr;
  {
    const Engine::Baton baton(engine_);
    operation = engine_.pool().allocate();
  }
  if (operation == nullptr) return Code::kOutOfMemory;
  const Code code = filler_.fill(arguments, *operation, text);
  if (code != Code::kOk) {
    engine_.pool().recycle(operation);
    return code;
  }
  operation->prepared = true;
  operation->set_state(OperationState::kPrepared);
  *out = operation;
  return Code::kOk;
}

Code Poster::restart(const OperationRef& prepared, std::string* text) {
  Operation& operation = *prepared.operation;
  if (!operation.claim_prepared(prepared.generation)) {
    // The operation is running, or it has ended but its end has not been reported yet.
    *text = "the request is running; wait for its end before it is started again";
    return Code::kBusy;
  }
  Track* const track = operation.options.on_track ? &track_of(operation) : nullptr;
  std::unique_ptr<Departure> departure;
  Code code = Code::kOutOfMemory;
  try {
    code = book(operation.options.on_stream ? operation.order.stream : nullptr, &departure, text);
    for (const BufferPiece& piece : operation.buffers.pieces) {
      if (code != Code::kOk || piece.memory == nullptr) continue;
      const Status status = piece.memory->check();
      code = status.code();
      if (!status.ok()) *text = status.text();
    }
  } catch (const std::bad_alloc&) {
    code = Code::kOutOfMemory;  // the operation can be restarted later
  }
  if (code == Code::kOk) code = take_permit(track, text);
  if (code == Code::kOk && !note_receive(operation)) {
    if (track != nullptr) track->give_permit();
    *text = kOverlapText;
    code = Code::kInvalidArgument;
  }
  if (code != Code::kOk) {
    operation.set_state(OperationState::kPrepared);
    return code;
  }
  filler_.fill_again(operation);
  if (departure != nullptr) book_departure(operation, std::move(departure));
  {
    // The operation becomes pending under the baton, so that no thread cancels it before it starts.
    const Engine::Baton baton(engine_);
    operation.set_state(OperationState::kPending);
    start_now(operation);
  }
  if (engine_.threaded()) engine_.note_pending();
  return Code::kOk;
}

void Poster::start(Operation& operation) {
  if (operation.options.gated || job_.departures().holds_back(operation)) [[unlikely]] {
    job_.gate().start(operation);
    return;
  }
  communicator_.operation_begun();
  go(operation);
}

void Poster::end_aborted(Operation& operation) {
  job_.data().completer.complete(operation, Code::kAborted, text_or_none([&]() HETCOMM_UNDER_BATON {
                                   return std::string(channel_.aborted.text());
                                 }));
}

// Completes the operation with an error, and returns true, if a device of its memory was abandoned.
bool Poster::end_abandoned(Operation& operation) {
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (piece.memory == nullptr || piece.length == 0) continue;
    const Status status = piece.memory->check();
    if (status.ok()) continue;
    std::string text = text_or_none([&]() HETCOMM_UNDER_BATON {
      return fmt::format("{}: {}", describe(operation), status.text());
    });
    if (operation.kind == OperationKind::kCollective) {
      operation.composite->withdraw(status.code(), text);
    }
    job_.data().completer.complete(operation, status.code(), std::move(text));
    return true;
  }
  return false;
}

void Poster::go(Operation& operation) {
  if (channel_.closed) [[unlikely]] {
    end_aborted(operation);
    return;
  }
  // An item of a queue keeps its position there: it fails after the items before it have ended.
  if (context_.devices().has_abandoned() && !operation.options.on_track && end_abandoned(operation))
      [[unlikely]] {
    return;
  }
  try {
    if (operation.kind == OperationKind::kCollective) {
      if (Status status = operation.composite->begin(operation); !status.ok()) {
        job_.data().completer.complete(operation, status.code(), std::string(status.text()));
      }
    } else if (operation.kind == OperationKind::kReceive && !operation.options.on_track) {
      job_.start_receive(channel_, operation);
    } else {
      job_.pair(operation.peer).submit(operation);
    }
  } catch (const std::bad_alloc&) {
    job_.ender().end_out_of_memory(operation);
  }
  if (operation.state() == OperationState::kPending) note_started(operation);
}

void Poster::note_started(Operation& operation) {
  operation.slot.block->has_new = true;
  if (operation.run.deadline_ns == kForever) {
    engine_.timer_changed(kForever);
  } else if (operation.run.deadline_ns != 0) {
    // The operation may be due for a stall report long before its own deadline.
    engine_.timer_changed(context_.note_times(operation, now_ns()));
  } else if (engine_.sleeper_is_armed()) {
    // While a thread sleeps, the next sweep may be a long time away, so the operation's times are
    // recorded here. The sleeper is woken if it would sleep past them.
    engine_.timer_changed(context_.note_times(operation, now_ns()));
  } else {
    engine_.sweep_soon();
  }
}

// Starts a put or get whose arguments were checked.
Operation* Poster::start_access(OperationKind kind, RemoteMemory& remote, uint64_t offset,
                                const hetcomm_buffer_t& buffer) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  filler_.fill_common(kind, communicator_.rank_of(remote.rank()), 0, 0, *operation);
  OperationFiller::fill_host(buffer, *operation);
  begin_access(*operation, offset, {.remote = &remote});
  remote.add_use();
  operation->set_state(OperationState::kPending);
  start_now(*operation);
  return operation;
}

Operation* Poster::begin_for_peer(OperationKind kind, int peer, Registration& registration,
                                  uint64_t offset, uint64_t length) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  filler_.fill_common(kind, -1, 0, 0, *operation);
  operation->peer = peer;
  operation->detached = true;
  operation->timeout_ns = kForever;
  operation->run.deadline_ns = kForever;
  Memory& memory = registration.memory();
  const hetcomm_buffer_t buffer{reinterpret_cast<hetcomm_memory_t*>(&memory), offset, length};
  try {
    std::string text;  // unused: the range has been checked
    if (OperationFiller::fill_buffers({kind, -1, 0, 0, &buffer, 1, nullptr}, *operation, &text) !=
        Code::kOk) {
      engine_.pool().recycle_locked(operation);
      return nullptr;
    }
  } catch (const std::bad_alloc&) {
    engine_.pool().recycle_locked(operation);
    return nullptr;
  }
  begin_access(*operation, offset, {.registration = &registration});
  operation->set_state(OperationState::kPending);
  operation->slot.block->has_new = true;
  registration.add_running();
  communicator_.operation_begun();
  engine_.operation_started();
  return operation;
}

// Fills in the buffers, which have been checked. Returns false if out of memory.
bool Poster::fill_internal(const InternalMessage& message, Operation& operation) {
  std::string text;
  operation.clear_pieces();
  if (message.lists != nullptr) operation.swap_lists(*message.lists);
  try {
    return OperationFiller::fill_buffers({.kind = message.kind,
                                          .peer = -1,
                                          .tag = 0,
                                          .ignore = 0,
                                          .buffers = message.buffers.data(),
                                          .count = message.buffers.size(),
                                          .options = nullptr},
                                         operation, &text) == Code::kOk;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Operation* Poster::make_internal(const InternalMessage& message) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  filler_.fill_common(message.kind, communicator_.rank_of(message.peer), message.tag, 0,
                      *operation);
  operation->options.collective = message.track == nullptr;
  operation->detached = true;
  operation->options.high_priority = message.high_priority;
  if (message.track != nullptr) {
    operation->options.on_track = true;
    track_run(*operation).track = message.track;
  }
  operation->run.deadline_ns = message.deadline_ns;
  OperationFiller::fill_host(hetcomm_buffer_host(message.bytes.data(), message.bytes.size()),
                             *operation);
  if (!message.buffers.empty() && !fill_internal(message, *operation)) {
    operation->clear_pieces();
    if (message.lists != nullptr) operation->swap_lists(*message.lists);
    engine_.pool().recycle_locked(operation);
    return nullptr;
  }
  operation->internal.handler = message.handler;
  operation->set_state(OperationState::kPending);
  return operation;
}

}  // namespace hetcomm
