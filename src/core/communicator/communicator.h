// Communicator: a numbered set of ranks of a job, with match tables of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/p2p.h>

#include "src/core/job/job.h"
#include "src/core/job/job_member.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class Context;
namespace collectives {
class Collective;
class Collectives;
struct Arguments;
}  // namespace collectives

// What one-sided operations have beside them.
struct AccessArguments {
  RemoteMemory* remote = nullptr;  // null: a flush
  uint64_t offset = 0;
  uint64_t operand = 0;
  uint64_t compare = 0;
  uint64_t* result = nullptr;
};

// The arguments of a data call, checked for nothing yet.
struct PostArguments {
  OperationKind kind;
  int32_t peer;  // in the communicator; -1: any source
  uint64_t tag;
  uint64_t ignore;
  const hetcomm_buffer_t* buffers;
  size_t count;
  const hetcomm_operation_options_t* options;  // null: defaults
  bool collective = false;
  const AccessArguments* access = nullptr;
};

class Communicator final : public JobMember {
 public:
  static Result<std::unique_ptr<Communicator>> create(Context& context, Bootstrap& bootstrap,
                                                      const JobOptions& options);
  ~Communicator();
  // The one that |operation| was posted on.
  static Communicator& of(const Operation& operation) {
    return static_cast<Communicator&>(*operation.communicator);
  }

  // Any thread.
  // Starts an operation; |*text| says why it was rejected.
  Code post(const PostArguments& arguments, Operation** out, std::string* text);
  // The same for the common operation: one buffer, in host memory, and no options. Null when it
  // cannot be started at once; then post() does it or says why not.
  template <OperationKind kKind>
  [[gnu::always_inline]] Operation* post_plain(int32_t peer, uint64_t tag, uint64_t ignore,
                                               const hetcomm_buffer_t& buffer) {
    if (!engine_.try_lock_as_user()) [[unlikely]]
      return nullptr;
    Operation* operation = nullptr;
    {
      const Engine::Held held(engine_);
      operation = engine_.pool().allocate();
      if (operation == nullptr) [[unlikely]]
        return nullptr;
      if (kKind == OperationKind::kSend && send_at_once(peer, tag, buffer)) {
        show_outcome(kKind, rank_, tag, buffer.length, *operation);
        engine_.operation_was_started();
        return operation;
      }
      fill_common(kKind, peer, tag, ignore, *operation);
      fill_host(buffer, *operation);
      if (OverlapGuard::kActive && !note_receive(*operation)) {
        engine_.pool().recycle_locked(operation);
        return nullptr;
      }
      operation->set_state(OperationState::kPending);
      start_now(*operation);
    }
    if (engine_.threaded()) engine_.note_pending();
    return operation;
  }
  // A one-sided operation without options on |length| bytes of the peer's memory. Where that is
  // mapped act(there) does it, and it is over when this returns; false: it cannot. Else a put or
  // get with |buffer|, in host memory, is started. Null when it is not that simple; then post()
  // does it or says why not.
  template <OperationKind kKind, typename Act>
  [[gnu::always_inline]] Operation* access_plain(RemoteMemory& remote, uint64_t offset,
                                                 uint64_t length, const hetcomm_buffer_t* buffer,
                                                 Act&& act) {
    if (!engine_.try_lock_as_user()) [[unlikely]]
      return nullptr;
    const Engine::Held held(engine_);
    constexpr bool kPuts = kKind == OperationKind::kPut;
    constexpr bool kGets = kKind == OperationKind::kGet;
    constexpr uint32_t kRight = kPuts   ? HETCOMM_ACCESS_PUT
                                : kGets ? HETCOMM_ACCESS_GET
                                        : HETCOMM_ACCESS_ATOMIC;
    if ((remote.rights() & kRight) == 0 || channel().closed || !remote.contains(offset, length))
        [[unlikely]] {
      return nullptr;
    }
    if (remote.mapped == nullptr || length > kMostCopiedAtOnce) {
      return kPuts || kGets ? start_access(kKind, remote, offset, *buffer) : nullptr;
    }
    Operation* operation = engine_.pool().allocate();
    if (operation == nullptr) [[unlikely]]
      return nullptr;
    if (!act(remote.mapped + offset)) [[unlikely]] {
      engine_.pool().recycle_locked(operation);
      return nullptr;
    }
    ++(kPuts ? remote.counters->puts : kGets ? remote.counters->gets : remote.counters->atomics);
    ++remote.counters->direct;
    show_outcome(kKind, kPuts ? rank_ : rank_of(remote.rank()), 0, length, *operation);
    return operation;
  }
  // The same for a collective operation.
  Code post_collective(const collectives::Arguments& arguments, Operation** out, std::string* text);
  // Makes a prepared operation.
  Code prepare(const PostArguments& arguments, Operation** out, std::string* text);
  Code restart(const OperationRef& prepared, std::string* text);
  // Looks for an unexpected message; false when there is none.
  bool probe(int32_t source, uint64_t tag, uint64_t ignore, hetcomm_completion_t* out);
  Status barrier(uint64_t timeout_ns);
  // communicator_memory.cc: registered memory.
  Status register_memory(Memory& memory, uint32_t rights, bool caller_progress);
  static Status unregister_memory(Memory& memory, uint64_t timeout_ns);
  static Result<std::vector<std::byte>> export_memory(const Memory& memory);
  Status import_memory(ConstByteSpan bytes, ExportedMemory* exported, std::vector<RemoteKey>* keys);
  // |engine| is that of the memory's context.
  static Status wait_notification(Memory& memory, Engine& engine, uint64_t timeout_ns,
                                  hetcomm_notification_t* out);
  void add_remote(RemoteMemory& remote) override;
  void drop_remote(RemoteMemory& remote) override;
  // Null for a rank without a color. A rank whose arguments are |refused| takes part all the same,
  // so that the others learn of it.
  Result<std::unique_ptr<Communicator>> split(int32_t color, int32_t key, const Status& refused);
  void abort(const std::string& reason);
  Status peer_status(int32_t rank);
  size_t counters(int32_t rank, size_t capacity, hetcomm_counters_t* out);
  std::string explain(int32_t rank);
  // Groups of it that exist; what they collected refers to it.
  void add_group() { groups_.fetch_add(1, std::memory_order_relaxed); }
  void drop_group() { groups_.fetch_sub(1, std::memory_order_release); }
  // kBusy text while it cannot be destroyed.
  Status check_idle();
  // Why no message of |source| (-1: of anybody) can come any more; ok as long as one can.
  Status check_source(int32_t source);
  // The last one of its job waits until accepted messages have left, at most |timeout_ns|.
  void flush(uint64_t timeout_ns);

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(ranks().size()); }
  // Number of this rank's channel of it.
  uint32_t id() const { return id_; }
  const JobMember* split_from() const override { return parent_; }
  // The communicator that was not split from another one, but made from a bootstrap.
  Communicator& root() { return parent_ == nullptr ? *this : parent_->root(); }
  // Says for each of its ranks whether it died, left or cannot be reached; for this one, whether
  // the others have declared it lost. Does not communicate. [any-thread]
  std::vector<bool> lost_ranks();
  Job& job() { return *job_; }
  Context& context() { return context_; }
  const JobOptions& options() const { return options_; }

  // Under the baton.
  // Number of the channel of a rank of the job, which it contains.
  uint32_t channel_at(int job_rank) const override {
    return members_[static_cast<size_t>(rank_of(job_rank))].channel;
  }
  void start(Operation& operation) override;
  void end(Operation& operation, Code code, std::string_view why) override;
  // Ends a pending operation with kCancelled.
  void cancel(Operation& operation);
  // The caller gives the handle of a pending operation back: it ends unseen.
  void release(Operation& operation);
  Operation* begin_for_peer(OperationKind kind, int peer, Registration& registration,
                            uint64_t offset, uint64_t length) override;
  Operation* make_internal(const InternalMessage& message) override;
  void start_internal(Operation& message) override {
    engine_.operation_started();
    start(message);
  }
  // This rank does not make the next collective call of all ranks, for the reason |why|: theirs fails.
  void refuse_collective(std::string_view why);
  void end_collectives(const Status& why) override;
  void peer_calls(int job_rank, ConstByteSpan note) override;
  void note_unexpected_part(int job_rank, uint64_t tag) override;
  void peer_lost(int job_rank) override;
  static void fill_completion(const Operation& operation, hetcomm_completion_t* out) {
    out->status = static_cast<hetcomm_status_t>(operation.outcome.code);
    out->source = operation.outcome.source;
    out->tag = operation.outcome.matched_tag;
    out->bytes_sent = operation.outcome.bytes_sent;
    out->bytes_received = operation.outcome.bytes_received;
    out->text = "";
  }

 private:
  struct Member {
    int rank;          // in the job
    uint32_t channel;  // the number by which it is reached
  };
  static std::vector<int> ranks_of(const std::vector<Member>& members);
  // Takes |channel| over.
  Communicator(Context& context, std::shared_ptr<Job> job, Channel& channel,
               std::vector<Member> members, Communicator* parent, JobOptions options);
  void fill_common(OperationKind kind, int32_t peer, uint64_t tag, uint64_t ignore,
                   Operation& operation) {
    operation.kind = kind;
    operation.stage = OperationStage::kSubmitted;
    operation.prepared = false;
    operation.detached = false;
    operation.buffers.on_host = true;
    operation.collective = false;
    operation.options = {};
    const Member to = peer < 0 ? Member{-1, 0} : members_[static_cast<size_t>(peer)];
    operation.peer = to.rank;
    operation.channel = to.channel;
    operation.tag = tag;
    operation.ignore = ignore;
    operation.communicator = this;
    operation.pair = nullptr;
    operation.run = {};
    operation.wait_index.store(0, std::memory_order_relaxed);
    operation.outcome.begin(kind != OperationKind::kReceive ? job_->rank() : -1, tag);
    operation.timeout_ns = default_timeout_ns_;
  }
  static void fill_host(const hetcomm_buffer_t& buffer, Operation& operation) {
    operation.buffers.segment = {reinterpret_cast<void*>(buffer.offset), buffer.length};
    operation.length = buffer.length;
    if (!operation.buffers.pieces.empty()) [[unlikely]]
      operation.clear_pieces();
  }
  // An operation that was over before anything was noted in it: what a completion shows.
  void show_outcome(OperationKind kind, int32_t source, uint64_t tag, uint64_t length,
                    Operation& operation) {
    operation.kind = kind;
    operation.prepared = false;
    operation.detached = false;
    operation.outcome.code = Code::kOk;
    operation.communicator = this;
    operation.outcome.source = source;
    operation.outcome.matched_tag = tag;
    operation.outcome.bytes_sent = operation.outcome.bytes_received = length;
    operation.wait_index.store(0, std::memory_order_relaxed);
    if (!operation.buffers.pieces.empty()) [[unlikely]]
      operation.clear_pieces();
    operation.set_state(OperationState::kComplete);
  }
  // Under the baton, just taken. The peer has a short message before anything is noted of it here.
  // False: it has not left.
  bool send_at_once(int32_t peer, uint64_t tag, const hetcomm_buffer_t& buffer) {
    engine_.drain_queued();
    const Member& to = members_[static_cast<size_t>(peer)];
    Pair* pair = job_->find_pair(to.rank);
    return pair != nullptr && !channel().closed &&
           pair->send_at_once(to.channel, tag,
                              {reinterpret_cast<void*>(buffer.offset), buffer.length});
  }
  // Under the baton, just taken: what was submitted before comes first.
  void start_now(Operation& operation) {
    engine_.drain_queued();
    engine_.operation_started();
    start(operation);
    engine_.operation_was_started();
  }
  Operation* start_access(OperationKind kind, RemoteMemory& remote, uint64_t offset,
                          const hetcomm_buffer_t& buffer);
  Code fill(const PostArguments& arguments, Operation& operation, std::string* text);
  Code fill_to_start(const PostArguments& arguments, Operation& operation, std::string* text);
  Code fill_access(const PostArguments& arguments, Operation& operation, std::string* text) const;
  bool note_receive(const Operation& operation);
  Code fill_buffers(const PostArguments& arguments, Operation& operation, std::string* text);
  const Status& peer_status_locked(int job_rank) const { return job_->peer_status(job_rank); }
  Code post_beside(const PostArguments& arguments, Operation** out, std::string* text);
  static bool in_group(const PostArguments& arguments);
  void collect(Operation& operation);
  Operation* allocate();
  void fill_call(const collectives::Arguments& arguments,
                 std::unique_ptr<collectives::Collective> call, Operation& operation);
  // Starts a collective operation of all ranks and waits for its end.
  Status run_collective(const collectives::Arguments& arguments);
  static Result<std::unique_ptr<Communicator>> create_over_known_job(Context& context,
                                                                     Bootstrap& bootstrap,
                                                                     const JobOptions& options);
  struct SplitEntry;
  Status exchange_split(const SplitEntry& mine, std::vector<SplitEntry>* all);
  Result<std::unique_ptr<Communicator>> join_split(const std::vector<SplitEntry>& all,
                                                   int32_t color, Channel& channel);
  // Why there are no collective operations any more; ok while there are.
  Status check_collectives();

  Context& context_;
  std::shared_ptr<Job> job_;
  Engine& engine_;
  const uint32_t id_;  // of the channel
  Communicator* parent_;
  JobOptions options_;
  std::vector<Member> members_;
  int32_t rank_;
  uint64_t default_timeout_ns_;
  std::atomic<int32_t> children_{0};
  std::atomic<int32_t> groups_{0};
  // Under the baton: remote memories made for it, and memories registered on it.
  int32_t remotes_ = 0;
  int32_t registrations_ = 0;
  std::unique_ptr<collectives::Collectives> collectives_;
};

}  // namespace hetcomm
