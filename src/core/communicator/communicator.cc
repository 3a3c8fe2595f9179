#include "src/core/communicator/communicator.h"

#include <algorithm>

#include "src/base/text.h"
#include "src/core/collectives/collectives.h"
#include "src/core/job/context.h"

namespace hetcomm {
namespace {

constexpr const char* kOverlapText = "the buffer overlaps that of another pending receive";

}  // namespace

std::vector<int> Communicator::ranks_of(const std::vector<Member>& members) {
  std::vector<int> ranks;
  ranks.reserve(members.size());
  for (const Member& member : members) ranks.push_back(member.rank);
  return ranks;
}

Communicator::Communicator(Context& context, std::shared_ptr<Job> job, Channel& channel,
                           std::vector<Member> members, Communicator* parent, JobOptions options)
    : JobMember(channel, ranks_of(members), job->size()),
      context_(context),
      job_(std::move(job)),
      engine_(job_->engine()),
      id_(channel.id),
      parent_(parent),
      options_(std::move(options)),
      members_(std::move(members)),
      rank_(rank_of(job_->rank())),
      default_timeout_ns_(context.config().number(Variable::kTimeout)),
      collectives_(std::make_unique<collectives::Collectives>(*this, *job_, context.config())) {
  const Engine::Baton baton(engine_);
  job_->members().add(this);
  if (parent_ != nullptr) parent_->children_.fetch_add(1, std::memory_order_relaxed);
}

Communicator::~Communicator() {
  const Engine::Baton baton(engine_);
  collectives_.reset();
  job_->members().remove(this);
  job_->members().close_channel(channel());
  // Requests that nobody has asked about yet outlive it.
  engine_.pool().for_each([this](Operation& operation) {
    const OperationState state = operation.state();
    if (state != OperationState::kComplete && state != OperationState::kPrepared) return;
    if (operation.communicator == this) operation.communicator = nullptr;
  });
  if (parent_ != nullptr) parent_->children_.fetch_sub(1, std::memory_order_release);
}

Result<std::unique_ptr<Communicator>> Communicator::create(Context& context, Bootstrap& bootstrap,
                                                           const JobOptions& options) {
  if (options.share) {
    auto shared = create_over_known_job(context, bootstrap, options);
    if (!shared.ok() || shared.value() != nullptr) return shared;
  }
  // The rank by which a process is known is that of its first job.
  if (context.jobs().empty()) context.log().set_rank(bootstrap.rank());
  liveness::ControlThread* control = nullptr;
  if (bootstrap.size() > 1) {
    Result<liveness::ControlThread*> thread = context.control_thread();
    if (!thread.ok()) return thread.status();
    control = thread.value();
  }
  const JobEnvironment environment{context.engine(), context.devices(),  context.config(),
                                   context.log(),    context.overlaps(), context.factories(),
                                   control};
  Result<std::unique_ptr<Job>> made = Job::create(environment, bootstrap, options);
  if (!made.ok()) return made.status();
  std::shared_ptr<Job> job = std::move(made).value();
  context.add_job(job);
  std::vector<Member> members;
  Channel& channel = job->first_channel();
  for (int rank = 0; rank < bootstrap.size(); ++rank) members.push_back({rank, channel.id});
  return std::unique_ptr<Communicator>(
      new Communicator(context, std::move(job), channel, std::move(members), nullptr, options));
}

// --- posting ----------------------------------------------------------------

Code Communicator::fill(const PostArguments& arguments, Operation& operation, std::string* text) {
  fill_common(arguments.kind, arguments.peer, arguments.tag, arguments.ignore, operation);
  operation.collective = arguments.collective;
  if (const hetcomm_operation_options_t* options = arguments.options; options != nullptr) {
    operation.options.high_priority = options->priority == HETCOMM_PRIORITY_HIGH;
    operation.options.fail_on_any_loss = (options->flags & HETCOMM_OPERATION_FAIL_ON_ANY_LOSS) != 0;
    if (options->timeout_ns != 0) {
      operation.timeout_ns = options->timeout_ns;
      operation.run.deadline_ns = deadline_after(now_ns(), operation.timeout_ns);
    }
  }
  if (arguments.count == 1 && arguments.buffers->memory == nullptr) {
    fill_host(*arguments.buffers, operation);
  } else if (const Code code = fill_buffers(arguments, operation, text); code != Code::kOk) {
    return code;
  }
  return arguments.access == nullptr ? Code::kOk : fill_access(arguments, operation, text);
}

bool Communicator::note_receive(const Operation& operation) {
  return !OverlapGuard::kActive || operation.kind != OperationKind::kReceive ||
         context_.overlaps().add(operation);
}

// fill() for an operation that starts at once.
Code Communicator::fill_to_start(const PostArguments& arguments, Operation& operation,
                                 std::string* text) {
  const Code code = fill(arguments, operation, text);
  if (code != Code::kOk || note_receive(operation)) return code;
  Completer::drop_uses(operation);
  *text = kOverlapText;
  return Code::kInvalidArgument;
}

// The general case: several buffers, or memory objects.
Code Communicator::fill_buffers(const PostArguments& arguments, Operation& operation,
                                std::string* text) {
  operation.clear_pieces();
  operation.buffers.segment = {};
  operation.length = 0;
  operation.buffers.on_host = true;
  operation.buffers.has_windows = true;
  for (size_t i = 0; i < arguments.count; ++i) {
    const hetcomm_buffer_t& buffer = arguments.buffers[i];
    auto* memory = reinterpret_cast<Memory*>(buffer.memory);
    if (memory != nullptr && !memory->contains(buffer.offset, buffer.length)) {
      *text = fmt::format("buffer {}: offset {} and length {} end past the memory's {} bytes", i,
                          buffer.offset, buffer.length, memory->size());
      return Code::kOutOfRange;
    }
    if (buffer.length > UINT64_MAX - operation.length) {
      *text = "the buffers together are longer than 2^64 bytes";
      return Code::kOutOfRange;
    }
    operation.buffers.pieces.push_back({memory, buffer.offset, buffer.length});
    operation.length += buffer.length;
    const bool on_host = memory == nullptr || memory->host_accessible();
    operation.buffers.on_host = operation.buffers.on_host && (on_host || buffer.length == 0);
    if (on_host) {
      std::byte* base = memory != nullptr ? static_cast<std::byte*>(memory->address()) : nullptr;
      operation.buffers.segment_list.push_back({base + buffer.offset, buffer.length});
    } else if (buffer.length > 0) {
      std::byte* const window = memory->window();
      operation.buffers.has_windows = operation.buffers.has_windows && window != nullptr;
      if (window != nullptr) {
        operation.buffers.segment_list.push_back({window + buffer.offset, buffer.length});
      }
    }
  }
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (piece.memory != nullptr) piece.memory->add_use();
  }
  return Code::kOk;
}

bool Communicator::in_group(const PostArguments& arguments) {
  return arguments.options != nullptr && arguments.options->group != nullptr;
}

Operation* Communicator::allocate() {
  Operation* operation = engine_.pool().allocate_shared();
  if (operation != nullptr) return operation;
  const Engine::Baton baton(engine_);
  engine_.pool().add_shared();
  return engine_.pool().allocate();
}

Code Communicator::post(const PostArguments& arguments, Operation** out, std::string* text) {
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

// While another thread holds the baton, which starts the operation then.
Code Communicator::post_beside(const PostArguments& arguments, Operation** out, std::string* text) {
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
  engine_.submit_queued(operation);
  if (engine_.threaded()) engine_.note_pending();
  return Code::kOk;
}

// Its group will start it. Its deadline counts already.
void Communicator::collect(Operation& operation) {
  operation.stage = OperationStage::kCollected;
  operation.slot.block->has_new = true;
  const uint64_t at = context_.note_times(operation, now_ns());
  operation.set_state(OperationState::kPending);
  engine_.timer_changed(at);
}

Code Communicator::prepare(const PostArguments& arguments, Operation** out, std::string* text) {
  Operation* operation = nullptr;
  {
    const Engine::Baton baton(engine_);
    operation = engine_.pool().allocate();
  }
  if (operation == nullptr) return Code::kOutOfMemory;
  const Code code = fill(arguments, *operation, text);
  if (code != Code::kOk) {
    engine_.pool().recycle(operation);
    return code;
  }
  operation->prepared = true;
  operation->set_state(OperationState::kPrepared);
  *out = operation;
  return Code::kOk;
}

Code Communicator::restart(const OperationRef& prepared, std::string* text) {
  Operation& operation = *prepared.operation;
  if (!operation.claim_prepared(prepared.generation)) {
    // Running, or ended and not reported yet.
    *text = "the request is running";
    return Code::kBusy;
  }
  if (!note_receive(operation)) {
    operation.set_state(OperationState::kPrepared);
    *text = kOverlapText;
    return Code::kInvalidArgument;
  }
  operation.stage = OperationStage::kSubmitted;
  operation.run = {};
  operation.wait_index.store(0, std::memory_order_relaxed);
  if (operation.timeout_ns != default_timeout_ns_) {
    operation.run.deadline_ns = deadline_after(now_ns(), operation.timeout_ns);
  }
  operation.outcome.begin(operation.kind != OperationKind::kReceive ? job_->rank() : -1,
                          operation.tag);
  operation.outcome.text.reset();
  {
    // Pending only under the baton: until then nobody may cancel it.
    const Engine::Baton baton(engine_);
    operation.set_state(OperationState::kPending);
    start_now(operation);
  }
  if (engine_.threaded()) engine_.note_pending();
  return Code::kOk;
}

void Communicator::start(Operation& operation) {
  operation_begun();
  if (channel().closed) [[unlikely]] {
    job_->commons().completer.complete(operation, Code::kAborted, text_or_none([&] {
                                         return std::string(channel().aborted.text());
                                       }));
    return;
  }
  try {
    if (operation.kind == OperationKind::kCollective) {
      if (Status status = collectives_->start(operation); !status.ok()) {
        job_->commons().completer.complete(operation, status.code(), std::string(status.text()));
      }
    } else if (operation.kind == OperationKind::kSend) {
      job_->pair(operation.peer).submit_send(operation);
    } else if (operation.kind == OperationKind::kReceive) {
      job_->start_receive(channel(), operation);
    } else {
      job_->pair(operation.peer).access().submit(operation);
    }
  } catch (const std::bad_alloc&) {
    // A collective operation that its team has taken over tells the other ranks by itself.
    const bool told = operation.kind != OperationKind::kCollective ||
                      operation.stage != OperationStage::kSubmitted;
    job_->ender().end_out_of_memory(operation);
    if (!told) collectives_->fail(Code::kOutOfMemory, "an operation could not be started");
  }
  if (operation.state() != OperationState::kPending) return;
  operation.slot.block->has_new = true;
  if (operation.run.deadline_ns == kForever) {
    engine_.timer_changed(kForever);
  } else if (operation.run.deadline_ns != 0) {
    // It may stall long before its own deadline.
    engine_.timer_changed(context_.note_times(operation, now_ns()));
  } else if (engine_.sleeper_is_armed()) {
    // Nobody may sweep soon: the times are noted here, and the sleeper is woken if it sleeps
    // longer.
    engine_.timer_changed(context_.note_times(operation, now_ns()));
  } else {
    engine_.sweep_soon();
  }
}

void Communicator::cancel(Operation& operation) {
  const bool collected = operation.stage == OperationStage::kCollected;
  job_->ender().end(operation, Code::kCancelled,
                    collected ? "cancelled before it was started" : "cancelled by the caller");
}

void Communicator::end(Operation& operation, Code code, std::string_view why) {
  job_->ender().end(operation, code, why);
}

void Communicator::release(Operation& operation) {
  operation.detached = true;
  operation.expire(OperationState::kPending);
  engine_.request_released();
  if (operation.stage == OperationStage::kCollected) cancel(operation);
}

bool Communicator::probe(int32_t source, uint64_t tag, uint64_t ignore, hetcomm_completion_t* out) {
  const Engine::Baton baton(engine_);
  const int32_t peer = source < 0 ? -1 : ranks()[static_cast<size_t>(source)];
  if (peer >= 0 && peer_status_locked(peer).ok()) job_->pair(peer).ensure_connected();
  const MatchTable& table = channel().point_to_point;
  const Incoming* message = table.find_unexpected(peer, tag, ignore);
  if (message == nullptr) return false;
  *out = hetcomm_completion_t{
      HETCOMM_OK, rank_of(message->source), message->tag, message->length, 0, ""};
  return true;
}

// --- queries ----------------------------------------------------------------

Status Communicator::peer_status(int32_t rank) {
  const Engine::Baton baton(engine_);
  job_->events().read_mail();
  return peer_status_locked(ranks()[static_cast<size_t>(rank)]);
}

std::vector<bool> Communicator::lost_ranks() {
  const Engine::Baton baton(engine_);
  job_->events().read_mail();
  std::vector<bool> lost;
  for (const int rank : ranks()) {
    const Code code = peer_status_locked(rank).code();
    lost.push_back(code == Code::kPeerLost || code == Code::kUnreachable ||
                   (rank == job_->rank() && job_->events().was_declared_lost()));
  }
  return lost;
}

size_t Communicator::counters(int32_t rank, size_t capacity, hetcomm_counters_t* out) {
  const Engine::Baton baton(engine_);
  const Pair* pair = job_->find_pair(ranks()[static_cast<size_t>(rank)]);
  if (pair == nullptr) return 0;
  size_t index = 0;
  for (const hetcomm_counters_t& counters : pair->counters()) {
    if (index < capacity) out[index] = counters;
    ++index;
  }
  return index;
}

std::string Communicator::explain(int32_t rank) {
  const Engine::Baton baton(engine_);
  return job_->paths().explain(ranks()[static_cast<size_t>(rank)]);
}

void Communicator::abort(const std::string& reason) {
  const Engine::Baton baton(engine_);
  job_->members().abort(
      *this, Status(Code::kAborted, fmt::format("rank {} aborted: {}", rank_, reason)), true);
}

Status Communicator::check_idle() {
  const Engine::Baton baton(engine_);
  engine_.drain();
  if (children_.load(std::memory_order_acquire) != 0) {
    return Status(Code::kBusy, "communicators that were split from it still exist");
  }
  if (groups_.load(std::memory_order_acquire) != 0) {
    return Status(Code::kBusy, "groups of it still exist");
  }
  if (registrations_ != 0) {
    return Status(Code::kBusy, fmt::format("{} memories are registered on it", registrations_));
  }
  if (remotes_ != 0) {
    return Status(Code::kBusy, "remote memories of it still exist");
  }
  if (pending() != 0) {
    return Status(Code::kBusy, fmt::format("{} operations are pending on it", pending()));
  }
  return {};
}

Status Communicator::check_source(int32_t source) {
  const Engine::Baton baton(engine_);
  if (channel().closed) return channel().aborted;
  if (source >= 0) return peer_status_locked(ranks()[static_cast<size_t>(source)]);
  if (job_->pairs().any_live_sender(*this)) return {};
  return peer_status_locked(ranks().back() == job_->rank() ? ranks().front() : ranks().back());
}

void Communicator::flush(uint64_t timeout_ns) {
  {
    const Engine::Baton baton(engine_);
    if (job_->members().others_stay(*this)) return;
  }
  const uint64_t end = deadline_after(now_ns(), timeout_ns);
  bool asked = false;
  for (uint32_t round = 0; now_ns() < end; ++round) {
    {
      const Engine::Baton baton(engine_);
      engine_.progress();
      if (job_->pairs().flushed()) return;
      if (!asked || round % 128 == 0) job_->pairs().ask_for_acknowledgements();
      asked = true;
    }
    // Polls, then sleeps until something arrives or it is time to look again.
    engine_.wait(now_ns() + (round > 64 ? 1'000'000 : 20'000), [] { return false; });
  }
  context_.log().info("some messages had not left after {:.1f} s",
                      static_cast<double>(timeout_ns) / 1e9);
}

}  // namespace hetcomm
