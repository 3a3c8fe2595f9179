// Holds the state that a process group and its works share: the communicator, the pending works,
// and the threads that complete futures for which no thread waits. A group exists as long as the
// process group or any of its works.
//
// The group keeps works until they are done, so that tensors outlive the operations on them even if
// the caller drops the work. The cost of a post, a wait or a completion does not grow with the
// number of works. close() ends all works. After that, no call uses the communicator.
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
  std::string settings;    // "NAME=value;..." for the context
  std::string transports;  // empty: as configured in the context
  std::chrono::milliseconds timeout;
  // Reuses the connections of an earlier group if possible. Must be equal on all ranks. The default
  // group sets it to false, because no group precedes it.
  bool share = false;
  std::shared_ptr<Hooks> hooks = std::make_shared<Hooks>();
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  // Creates the communicator. Collective. Throws if the ranks do not find each other.
  Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupSettings& settings);
  // Makes a group that is closed from the start, because its communicator could not be created.
  Group(int rank, const GroupSettings& settings, const std::string& reason);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Calls |post| with the communicator, and keeps |work| until it is done. Operations of the group
  // start in the order of these calls. Throws if the group is closed.
  template <typename Post>
  void post(const WorkRef& work, Post&& post);

  // Returns the communicator to a borrower, for calls that make no work. Throws if the group is
  // closed. close() calls |forget| before it destroys the communicator.
  hetcomm_communicator_t* lend(std::function<void()> forget);

  // Examines the next few works in turn. Completes those that have ended and that the caller has
  // dropped.
  void sweep() noexcept;
  // Removes a completed work from the pending works. The caller must hold a reference.
  void forget(OperationWork& work);
  // Assigns |work| to a watcher, which completes it.
  void watch(const WorkRef& work) { watchers_.watch(work, shared_from_this()); }
  // While works are pending, lets the context's lookout thread complete them soon after they have
  // ended, even if no thread waits for them. If no thread can be started, logs that, and the next
  // call tries again. [any-thread]
  void look_after_works() noexcept;

  // Returns the stream that orders |work|: the current stream of its device, or null if its tensors
  // are in host memory. Called with the lock of post() held.
  hetcomm_stream_t* stream_of(const OperationWork& work);
  // Returns the stream that orders a message. Messages keep the order of the calls, regardless of
  // the current streams. From the first device message on, all messages therefore use one stream,
  // even those in host memory.
  hetcomm_stream_t* stream_of_message(const OperationWork& work);

  // Opens a hetcomm_group_t, which collects operations that start together. Called with the lock of
  // post() held. close() drops open groups and cancels their operations.
  hetcomm_group_t* open_group();
  // Starts the collected operations and frees |group|. Throws after cancel_all() or close().
  void start_group(hetcomm_group_t* group);
  // Cancels the collected operations and frees |group|.
  void drop_group(hetcomm_group_t* group);

  Hooks& hooks() const { return *hooks_; }
  void enable_timing() { timed_.store(true, std::memory_order_relaxed); }
  bool is_timed() const { return timed_.load(std::memory_order_relaxed); }
  // Returns whether works may be pending. Threads may be waiting for them.
  bool has_pending() const { return pending_count_.load(std::memory_order_relaxed) > 0; }
  // Waits until all works that are pending now are done. If called in a hook or callback of any
  // group, does not wait for works that another thread is completing.
  void wait_for_pending();

  // Notifies the other ranks that this rank will not make the collective call that they are waiting
  // for.
  void refuse(const std::string& reason);
  // Ends all operations, on all ranks. Never blocks. [any-thread]
  void abort(const std::string& reason);
  // Cancels pending operations and rejects later posts. The caller calls close() later.
  void cancel_all(const std::string& reason);
  // Ends pending operations, says goodbye to the other ranks and frees the communicator. Later
  // posts fail with |reason|. A second call waits until the first one has closed the group. When
  // the call returns, no hook or callback of a work is running, with two exceptions. A call from a
  // hook or callback of any group does not wait for other threads. If a signal handler throws
  // during the wait, the group is closed, and the exception is rethrown.
  void close(const std::string& reason);
  // Returns the tracker of threads that complete works of the group.
  Completions& completions() { return completions_; }

  hetcomm_status_t peer_status(int rank);
  // Returns whether this is the process that created the group. Returns false in a forked child.
  bool alive() const { return context_->alive(); }
  uint32_t generation() const { return generation_; }
  SharedContext& context() const { return *context_; }
  const std::shared_ptr<SharedContext>& shared_context() const { return context_; }

 private:
  // State of the group. A group whose communicator could not be created is always in kClosed.
  enum class State {
    kOpen,     // accepts calls
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

  std::mutex mutex_;  // guards posting, pending works and the end of the communicator
  hetcomm_communicator_t* communicator_ = nullptr;
  State state_ = State::kOpen;
  std::string close_reason_;
  std::vector<hetcomm_group_t*> open_groups_;
  std::vector<std::function<void()>> borrowers_;
  std::optional<c10::Stream> message_stream_;  // orders messages
  std::vector<WorkRef> pending_;
  size_t swept_ = 0;     // position in |pending_| at which sweep() continues
  uint64_t posted_ = 0;  // number of works posted so far
  std::atomic<size_t> pending_count_{0};
  std::atomic<bool> has_device_works_{false};  // true after the first work on a device

  const std::shared_ptr<Hooks> hooks_;
  std::atomic<bool> timed_{false};
  std::atomic<bool> looked_after_{false};  // true while the lookout calls look_at_all()
  // The value of |posted_| when look_at_all() last found no pending works. Guarded by mutex_.
  uint64_t posted_before_ = 0;

  std::condition_variable close_over_;  // notified when state_ becomes kClosed
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
    // The communicator may have accepted some parts of the work.
    if (work->next_part() != nullptr) keep(work);
    throw;
  }
  keep(work);
}

}  // namespace hetcomm::torch_backend
