// Watchers runs the threads of a group that complete works whose futures other threads wait for.
//
// One thread is the leader: it waits for the requests of the watched works. Before it completes a
// work, another thread becomes the leader, because the callbacks of a future may wait for another
// work.
//
// The leader waits for kWindow requests at once, at the same cost for any number of watched works.
// If there are more, the leader examines all works in rounds, in steps of kWindow. Between two
// rounds it pauses for four times the duration of the last round.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/completions.h"
#include "python/src/torch/interrupts.h"
#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

class Watchers {
 public:
  // Each thread has a scope in |completions| while it runs.
  explicit Watchers(Completions& completions);
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

  // Sets the communicator, which must stay valid until let_go() has returned, and the rank of this
  // process. Called before the first watch().
  void start(hetcomm_communicator_t* communicator, int rank) {
    communicator_ = communicator;
    rank_ = rank;
  }
  // Completes |work| when its requests have ended. The threads keep |owner|, which owns this
  // object, alive. Does nothing after stop(). May throw if memory or threads run out. [any-thread]
  void watch(const WorkRef& work, const std::shared_ptr<void>& owner);
  // Makes the threads end. Threads in callbacks end when the callbacks return.
  void stop();
  // Releases the threads after stop(). With |waits|, waits until they have ended. A callback must
  // not pass |waits|.
  void let_go(bool waits);
  // Releases the thread objects in a forked child, where the threads do not run.
  void forget_threads();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kWindow = 64;

  using Works = std::list<WorkRef>;
  // The result of a part of a work that has ended.
  struct Report {
    Works work;  // the work, or empty if no part has ended
    OperationWork::Part* part = nullptr;
    hetcomm_completion_t completion{};
  };
  // The requests that the leader waits for at once. |parts| and |works| have the same order as the
  // requests after the first. The lists have capacity for a whole window.
  struct Window {
    std::vector<hetcomm_request_t*> requests;  // first wake_ or null, then one for each work
    std::vector<OperationWork::Part*> parts;
    std::vector<Works::iterator> works;
  };

  void call_watcher(const std::shared_ptr<void>& owner);
  void wake_leader();
  // Runs one thread. Returns an object that counts it as a waiting thread. That object is created
  // before the thread's scope in completions_ ends.
  WaitingThread run(const std::shared_ptr<void>& owner);
  Report lead(std::unique_lock<std::mutex>& lock);
  void end_lead(std::unique_lock<std::mutex>& lock);
  // The leader calls these within lead(), without holding the lock.
  Works::iterator fill(Works::iterator from, hetcomm_request_t* first);
  Report wait_in_window(uint64_t timeout_ns);
  Report go_round();
  uint64_t pause_ns() const;

  Completions& completions_;
  hetcomm_communicator_t* communicator_ = nullptr;
  int rank_ = 0;

  std::mutex mutex_;  // guards the members below
  std::condition_variable called_;
  std::vector<std::thread> threads_;
  size_t free_threads_ = 0;  // threads that are not in a callback
  bool stops_ = false;
  bool led_ = false;
  std::thread::id leader_;  // the current or last leader
  bool leader_sleeps_ = false;
  bool woken_ = false;  // a message to wake the leader is in flight
  Works added_;

  // Only the leader uses the members below. The leader changes only with mutex_ held.
  Works watched_;  // oldest first
  Works over_;     // completed works; dropped without the lock, since that may free tensors
  Window window_;
  bool in_round_ = false;
  Works::iterator round_at_ = watched_.end();  // next work of the current round
  Clock::duration round_cost_{0};              // duration of the current round so far
  Clock::time_point next_round_{};
  hetcomm_request_t* wake_ = nullptr;  // the receive whose message wakes the leader
  bool deaf_ = false;                  // true if no message reaches the leader after an abort
};

}  // namespace hetcomm::torch_backend
