#include "src/core/communicator/communicator.h"

#include <algorithm>

#include "src/base/text.h"
#include "src/core/collectives/collectives.h"
#include "src/core/context/context.h"
#include "src/system/variables.h"
#include "transports/variables.h"

namespace hetcomm {
namespace {

std::vector<int> ranks_of(const std::vector<MemberChannel>& members) {
  std::vector<int> ranks;
  ranks.reserve(members.size());
  for (const MemberChannel& member : members) ranks.push_back(member.rank);
  return ranks;
}

}  // namespace

Communicator::Communicator(Context& context, std::shared_ptr<Job> job, Channel& channel,
                           std::vector<MemberChannel> members, Communicator* parent,
                           JobOptions options)
    : JobMember(channel, job->gate(), ranks_of(members), job->size()),
      context_(context),
      job_(std::move(job)),
      engine_(job_->engine()),
      id_(channel.id),
      parent_(parent),
      options_(std::move(options)),
      members_(std::move(members)),
      rank_(rank_of(job_->rank())),
      collectives_(std::make_unique<collectives::Collectives>(*this, *job_, context.config())),
      poster_(context, *this, *job_, members_),
      memories_(*this, *job_, context.config().number(variable::kTimeout)),
      links_(context, *this, *job_) {
  set_starter(poster_);
  const Engine::Baton baton(engine_);
  job_->members().add(this);
  if (parent_ != nullptr) parent_->children_.fetch_add(1, std::memory_order_relaxed);
}

Communicator::~Communicator() {
  const Engine::Baton baton(engine_);
  collectives_.reset();
  job_->members().remove(this);
  job_->members().close_channel(channel());
  // Requests that have completed or are prepared can outlive the communicator, so they must not
  // refer to it.
  engine_.pool().for_each([this](Operation& operation) {
    const OperationState state = operation.state();
    if (state != OperationState::kComplete && state != OperationState::kPrepared) return;
    if (operation.communicator == this) operation.communicator = nullptr;
  });
  if (parent_ != nullptr) parent_->children_.fetch_sub(1, std::memory_order_release);
}

namespace {

// Calls Job::create() with the description of this host that |context| provides.
Result<std::unique_ptr<Job>> make_job(Context& context, Bootstrap& bootstrap,
                                      const JobOptions& options,
                                      std::optional<std::vector<topology::PciAddress>>* learned) {
  liveness::ControlThread* control = nullptr;
  const HostResources* resources = &context.plain_resources();
  Status nics_failure;
  std::vector<topology::PciAddress> hidden;
  if (bootstrap.size() > 1) {
    hidden = context.hidden_devices();
    // The resources are found first: they determine where the control thread runs.
    Result<const HostResources*> found = context.host_resources(bootstrap.stays_on_host());
    if (found.ok()) resources = found.value();
    nics_failure = found.status();
    Result<liveness::ControlThread*> thread = context.control_thread();
    if (!thread.ok()) return thread.status();
    control = thread.value();
  }
  const JobEnvironment environment{context.engine(), context.devices(),  context.config(),
                                   context.log(),    context.overlaps(), context.factories(),
                                   control,          resources->memory,  resources->nics,
                                   nics_failure,     resources->links,   std::move(hidden)};
  return Job::create(environment, bootstrap, options, learned);
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(Context& context, Bootstrap& bootstrap,
                                                           const JobOptions& options) {
  if (options.share) {
    auto shared = create_over_known_job(context, bootstrap, options);
    if (!shared.ok() || shared.value() != nullptr) return shared;
  }
  // Log lines show the rank of the process in its first job.
  if (context.jobs().empty()) context.log().set_rank(bootstrap.rank());
  std::optional<std::vector<topology::PciAddress>> learned;
  Result<std::unique_ptr<Job>> made = make_job(context, bootstrap, options, &learned);
  if (made.ok() && learned) {
    context.learn_devices(*learned);
    made = make_job(context, bootstrap, options, nullptr);
  }
  if (!made.ok()) return made.status();
  std::shared_ptr<Job> job = std::move(made).value();
  context.add_job(job);
  std::vector<MemberChannel> members;
  Channel* channel = nullptr;
  {
    // The baton is needed because another thread may open a channel in a shared job.
    const Engine::Baton baton(context.engine());
    channel = &job->first_channel();
    job->prepare_for_holds();
  }
  for (int rank = 0; rank < bootstrap.size(); ++rank) members.push_back({rank, channel->id});
  return std::unique_ptr<Communicator>(
      new Communicator(context, std::move(job), *channel, std::move(members), nullptr, options));
}

std::unique_ptr<Communicator> Communicator::make_child(Channel& channel,
                                                       std::vector<MemberChannel> members) {
  return std::unique_ptr<Communicator>(
      new Communicator(context_, job_, channel, std::move(members), this, options_));
}

// --- operations -------------------------------------------------------------

void Communicator::cancel(Operation& operation) {
  const bool collected = operation.phase == OperationPhase::kCollected;
  job_->ender().end(operation, Code::kCancelled,
                    collected ? "cancelled before it was started" : "cancelled by the caller");
}

void Communicator::end(Operation& operation, Code code, std::string_view why) {
  job_->ender().end(operation, code, why);
}

std::string Communicator::awaited_text(const Operation& operation) {
  return job_->ender().awaited_text(operation);
}

void Communicator::release(Operation& operation) {
  operation.detached = true;
  operation.expire(OperationState::kPending);
  engine_.request_released();
  if (operation.phase == OperationPhase::kCollected) cancel(operation);
}

void Communicator::end_collectives(const Status& why) { collectives_->end(why); }

void Communicator::peer_calls(int job_rank, ConstByteSpan note) {
  collectives_->peer_calls(job_rank, note);
}

void Communicator::note_unexpected_message(int job_rank, uint64_t tag) {
  collectives_->note_unexpected_message(job_rank, tag);
}

void Communicator::peer_lost(int job_rank) { collectives_->peer_lost(job_rank); }

bool Communicator::probe(int32_t source, uint64_t tag, uint64_t ignore, hetcomm_completion_t* out) {
  const Engine::Baton baton(engine_);
  const int32_t peer = source < 0 ? -1 : ranks()[static_cast<size_t>(source)];
  if (peer >= 0 && peer_status_locked(peer).ok()) job_->pair(peer).ensure_connected();
  MatchTable& table = channel().point_to_point;
  const Incoming* message = table.find_unexpected(peer, tag, ignore);
  if (message == nullptr) return false;
  *out = hetcomm_completion_t{
      HETCOMM_OK, rank_of(message->source), message->tag, message->length, 0, ""};
  return true;
}

// --- queries ----------------------------------------------------------------

Status Communicator::status() {
  // Callers poll the status often, and taking the baton would wake the thread that moves data.
  if (!channel().was_aborted.load(std::memory_order_relaxed) && !job_->mail_waits()) {
    return {};
  }
  const Engine::Baton baton(engine_);
  job_->events().read_mail();
  return channel().aborted;
}

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
  for (const hetcomm_counters_t& counters : pair->association().rails().counters()) {
    if (index < capacity) out[index] = counters;
    ++index;
  }
  return index;
}

std::string Communicator::explain(int32_t rank) {
  const Engine::Baton baton(engine_);
  const int peer = ranks()[static_cast<size_t>(rank)];
  return job_->paths().explain(peer) + job_->peers().explain_link(job_->rank(), peer);
}

void Communicator::abort(std::string_view reason) {
  const Engine::Baton baton(engine_);
  if (channel().closed) return;  // this path allocates no memory
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
  if (track_users_.load(std::memory_order_acquire) != 0) {
    return Status(Code::kBusy, "queues or redistributions of it still exist");
  }
  if (Status status = memories_.check_idle(); !status.ok()) return status;
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
    job_->events().read_mail();  // processes messages of the control plane
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
    // The first rounds repeat the check after 20 us, later ones after 1 ms.
    engine_.wait(now_ns() + (round > 64 ? 1'000'000 : 20'000), [] { return false; });
  }
  context_.log().info(
      "communicator '{}': some messages had not left after {:.1f} s; they may be lost",
      options_.name, static_cast<double>(timeout_ns) / 1e9);
}

}  // namespace hetcomm
