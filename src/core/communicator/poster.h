// Poster makes operations from the data calls of a communicator, and starts them.
//
//   post() --> operation --> start() --> pair, match table or team
//
// An operation that names a user's stream waits at the job's StreamGate until the stream reaches
// it.
//
// A call that can take the baton immediately starts its operation itself. If another thread holds
// the baton, the call queues its operation, and that thread starts it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/communicator/operation_filler.h"
#include "src/core/communicator/post_arguments.h"
#include "src/core/job/departures.h"
#include "src/core/job/job.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/peer/transfer/track.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class Context;

class Poster final : public OperationStarter {
 public:
  // All arguments outlive this object. |members|: the communicator's members, by rank.
  Poster(Context& context, MessagingCommunicator& communicator, Job& job,
         std::span<const MemberChannel> members);
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;

  // All functions down to filler() are [any-thread].

  // Starts an operation, unless it belongs to a group, which then starts it. If the call is
  // rejected, |*text| says why.
  Code post(const PostArguments& arguments, Operation** out, std::string* text);
  // Starts an operation of the most common form: one buffer, in host memory, and no options.
  // Returns null if the operation cannot be started immediately. The caller then calls post(),
  // which starts the operation or reports the reason.
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
        filler_.show_outcome(kKind, own_rank_, tag, buffer.length, *operation);
        engine_.operation_was_started();
        return operation;
      }
      filler_.fill_common(kKind, peer, tag, ignore, *operation);
      OperationFiller::fill_host(buffer, *operation);
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
  // Executes or starts a one-sided operation without options on |length| bytes of the peer's
  // memory. If the memory is mapped in this process and |length| is at most kMaxCopiedAtOnce, calls
  // act(address), which executes the operation or returns false. Otherwise starts a put or get with
  // |buffer|, which is in host memory. Returns null in all other cases. The caller then calls
  // post(), which starts the operation or reports the reason.
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
    if ((remote.rights() & kRight) == 0 || channel_.closed || !remote.contains(offset, length))
        [[unlikely]] {
      return nullptr;
    }
    if (remote.mapped == nullptr || length > kMaxCopiedAtOnce) {
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
    filler_.show_outcome(kKind, kPuts ? own_rank_ : communicator_.rank_of(remote.rank()), 0, length,
                         *operation);
    return operation;
  }
  // Opens |track|, one end of a track of the communicator. |track| must live until close_track().
  // If the communicator was aborted, marks |track| as closed instead. May throw std::bad_alloc.
  void open_track(Track& track);
  // Closes |track|. Returns Code::kBusy if runs of it are in progress.
  Code close_track(Track& track);
  // Makes a prepared operation.
  Code prepare(const PostArguments& arguments, Operation** out, std::string* text);
  Code restart(const OperationRef& prepared, std::string* text);
  // Returns an operation to be filled; null if out of memory.
  Operation* allocate();
  const OperationFiller& filler() const { return filler_; }

  // Makes the Departure of an operation that waits for |stream|. Does nothing if |stream| is null.
  // After success the operation must be started. On failure |*text| gives the reason.
  static Code book(UserStream* stream, std::unique_ptr<Departure>* out, std::string* text);
  // Starts the operations of a group that have not been started, cancelled or failed yet.
  // [any-thread]
  void start_group(std::span<const OperationRef> entries);
  // Cancels the operations of a group that have not been started, cancelled or failed yet.
  // [any-thread]
  void cancel_group(std::span<const OperationRef> entries);

  // See OperationStarter.
  void start(Operation& operation) override HETCOMM_UNDER_BATON;
  void depart(Operation& operation) override HETCOMM_UNDER_BATON { go(operation); }
  void note_started(Operation& operation) override HETCOMM_UNDER_BATON;
  Operation* begin_for_peer(OperationKind kind, int peer, Registration& registration,
                            uint64_t offset, uint64_t length) override HETCOMM_UNDER_BATON;
  Operation* make_internal(const InternalMessage& message) override HETCOMM_UNDER_BATON;
  void start_internal(Operation& message) override HETCOMM_UNDER_BATON {
    engine_.operation_started();
    start(message);
  }

  // Starts the operation of a call that has just taken the baton, after operations that were
  // submitted earlier.
  void start_now(Operation& operation) HETCOMM_UNDER_BATON {
    engine_.drain_queued();
    engine_.operation_started();
    start(operation);
    engine_.operation_was_started();
  }
  // Marks |operation| as collected: it starts with its group. Its deadline already applies.
  void collect(Operation& operation) HETCOMM_UNDER_BATON;

 private:
  // Sends a short message without filling an operation for it. The caller has just taken the baton.
  // Returns false if the message was not sent.
  bool send_at_once(int32_t peer, uint64_t tag,
                    const hetcomm_buffer_t& buffer) HETCOMM_UNDER_BATON {
    engine_.drain_queued();
    const MemberChannel& to = filler_.member(peer);
    Pair* pair = job_.find_pair(to.rank);
    return pair != nullptr && !channel_.closed &&
           pair->traffic().sender().send_at_once(
               to.channel, tag, {reinterpret_cast<void*>(buffer.offset), buffer.length});
  }
  Operation* start_access(OperationKind kind, RemoteMemory& remote, uint64_t offset,
                          const hetcomm_buffer_t& buffer) HETCOMM_UNDER_BATON;
  static Code take_permit(Track* track, std::string* text);
  Code fill_to_start(const PostArguments& arguments, Operation& operation, std::string* text);
  bool note_receive(const Operation& operation);
  static bool fill_internal(const InternalMessage& message, Operation& operation);
  Code post_beside(const PostArguments& arguments, Operation** out, std::string* text);
  Code post_behind(const PostArguments& arguments, Operation** out, std::string* text);
  // Calls |use| for those |entries| that still wait for their group to start.
  template <typename Use>
  static void for_each_waiting(std::span<const OperationRef> entries,
                               Use&& use) HETCOMM_UNDER_BATON;
  std::vector<UserStream*> streams_of(std::span<const OperationRef> entries) HETCOMM_UNDER_BATON;
  void start_behind(std::span<const OperationRef> entries,
                    std::unique_ptr<Departure> departure) HETCOMM_UNDER_BATON;
  void fail_waiting(std::span<const OperationRef> entries, const Status& why) HETCOMM_UNDER_BATON;
  void end_aborted(Operation& operation) HETCOMM_UNDER_BATON;
  bool end_abandoned(Operation& operation) HETCOMM_UNDER_BATON;
  void go(Operation& operation) HETCOMM_UNDER_BATON;

  Engine& engine_;
  Job& job_;
  Channel& channel_;
  Context& context_;
  MessagingCommunicator& communicator_;
  const int32_t own_rank_;  // this rank in the communicator
  const OperationFiller filler_;
};

}  // namespace hetcomm
