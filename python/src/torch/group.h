// A group is shared by a process group and its works. It has the communicator, the works that are
// not done, and the threads that complete futures for which nobody waits. It lives as long as any
// of them.
//
// Works are kept here until they are done, so that tensors outlive the operations on them even when
// the caller drops the work. What a post, a wait and an end cost does not grow with the number of
// works. close() ends everything; after it no call reaches the communicator.
#pragma once

#include <atomic>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/completions.h"
#include "python/src/torch/hooks.h"
#include "python/src/torch/room.h"
#include "python/src/torch/shared_context.h"
#include "python/src/torch/watchers.h"
#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

struct GroupSettings {
  std::string name;
  std::string settings;    // of the context
  std::string transports;  // "": as configured
  std::chrono::milliseconds timeout;
  // Uses the connections of an earlier group where it can; alike on all ranks. There is none before
  // the default group, which need not ask.
  bool share = false;
  std::shared_ptr<Hooks> hooks = std::make_shared<Hooks>();
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  // Collective. Throws when the ranks do not find each other.
  Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupSettings& settings);
  // One that was never made: closed from the start.
  Group(int rank, const GroupSettings& settings, const std::string& reason);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Calls |post| with the communicator and keeps |work| until it is done. Operations of a group
  // start in the order of these calls. Throws when the group is closed.
  template <typename Post>
  void post(const WorkRef& work, Post&& post);

  // The communicator, for calls beside those of works. Throws when the group is closed. |forget| is
  // called before the communicator goes.
  hetcomm_communicator_t* lend(std::function<void()> forget);

  // Looks at a few works, the next ones in turn, and completes those that have ended and that the
  // caller has dropped.
  void sweep() noexcept;
  // A work is done. The caller keeps a reference.
  void forget(OperationWork& work);
  // Lets a watcher complete |work|.
  void watch(const WorkRef& work) { watchers_.watch(work, shared_from_this()); }
  // Has works completed for which nobody waits, soon after they have ended, from now on and as long
  // as there are any. Where no thread can be started it logs that, and the next call tries again.
  // [any-thread]
  void look_after_works() noexcept;

  // The stream in whose order |work| is posted, under the lock of post(): the one that is current
  // for its device; null where its tensors are in host memory.
  hetcomm_stream_t* stream_of(const OperationWork& work);
  // Gives that of a message. Messages keep the order of the calls, whatever streams are current:
  // from the first one of a device on all go through one stream, those of the host too.
  hetcomm_stream_t* stream_of_message(const OperationWork& work);

  // Operations collected to start together. Both under the lock of post(): open_group() inside of
  // it. Those that are open when this is closed are dropped, and their operations cancelled.
  hetcomm_group_t* open_group();
  // Starts what was collected and frees |group|. Throws when this is closed.
  void start_group(hetcomm_group_t* group);
  // Cancels what was collected and frees |group|.
  void drop_group(hetcomm_group_t* group);

  Hooks& hooks() const { return *hooks_; }
  void enable_timing() { timed_.store(true, std::memory_order_relaxed); }
  bool is_timed() const { return timed_.load(std::memory_order_relaxed); }
  // Works that are not known to be done: somebody may wait for them.
  bool has_pending() const { return pending_count_.load(std::memory_order_relaxed) > 0; }
  // Returns when all works that there are now are done. A hook or a callback, of this group or
  // another, does not wait for works that threads are completing, itself or others.
  void wait_for_pending();

  // The other ranks learn that this one does not make the collective call that they wait for.
  void refuse(const std::string& reason);
  // Ends all operations, on all ranks. Never blocks. [any-thread]
  void abort(const std::string& reason);
  // Cancels what is pending, and refuses what is posted from now on. close() comes later.
  void cancel_all(const std::string& reason);
  // Ends what is pending, says goodbye and frees the communicator. Later posts fail with |reason|.
  // A second call waits for the first one. When it returns no hook and no callback of a work runs
  // any more, except where it is called by one, of this group or another: then it waits for no
  // other thread. It throws what a signal handler raises while it waits. Then hooks and callbacks
  // may still run.
  void close(const std::string& reason);
  // The threads that complete works of the group.
  Completions& completions() { return completions_; }

  hetcomm_status_t peer_status(int rank);
  // False in a forked child.
  bool alive() const { return context_->alive(); }
  uint32_t generation() const { return generation_; }
  SharedContext& context() const { return *context_; }
  const std::shared_ptr<SharedContext>& shared_context() const { return context_; }

 private:
  // A group that was never made begins and stays in kClosed.
  enum class State {
    kOpen,     // takes calls
    kRefuses,  // cancel_all() was called
    kCloses,   // a thread is in close()
    kClosed,
  };

  void keep(const WorkRef& work) noexcept;
  std::exception_ptr close_open_group(bool nested) noexcept;
  void wait_until_closed();
  void call_borrowers() noexcept;
  void drop_open_groups();
  void finish_pending(bool nested);
  void wait_for_completions(size_t own);
  void destroy_communicator();
  bool look_at_all();

  const std::shared_ptr<SharedContext> context_;
  const int rank_;
  uint32_t generation_ = 0;

  std::mutex mutex_;  // posting, pending works and the end of the communicator
  hetcomm_communicator_t* communicator_ = nullptr;
  State state_ = State::kOpen;
  std::string close_reason_;
  std::vector<hetcomm_group_t*> open_groups_;
  std::vector<std::function<void()>> borrowers_;
  std::optional<c10::Stream> message_stream_;  // waits for the streams of the callers
  std::vector<WorkRef> pending_;
  size_t swept_ = 0;     // the place in pending_ where sweep() goes on
  uint64_t posted_ = 0;  // works so far
  std::atomic<size_t> pending_count_{0};
  std::atomic<bool> has_device_works_{false};  // there has been one

  const std::shared_ptr<Hooks> hooks_;
  std::atomic<bool> timed_{false};
  std::atomic<bool> looked_after_{false};  // the lookout has look_at_all()
  uint64_t posted_before_ = 0;             // the last look; under mutex_

  std::condition_variable close_over_;  // with mutex_
  Completions completions_;
  Watchers watchers_{completions_};
};

[[noreturn]] void fail_closed(const std::string& reason);

template <typename Post>
void Group::post(const WorkRef& work, Post&& post) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen) fail_closed(close_reason_);
  make_room(pending_);
  try {
    post(communicator_);
  } catch (...) {
    // A part of it may have been accepted.
    if (work->next_part() != nullptr) keep(work);
    throw;
  }
  keep(work);
}

}  // namespace hetcomm::torch_backend
