// The threads of a group that complete works for whose futures somebody waits.
//
// One of them leads: it sleeps among the requests of the watched works. It gives up the lead before
// it completes a work, because the callbacks of a future may wait for another one. A second thread
// leads then.
//
// The leader waits for kWindow requests at once, which costs the same however many works are
// watched. Where there are more, it goes round all of them in steps of kWindow. It pauses between
// two rounds for four times the time that the last one took.
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
  // The threads have scopes of |completions| for as long as they run.
  explicit Watchers(Completions& completions);
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

  // Before the first watch(). The communicator lives until let_go() has returned. |rank| is this
  // rank's.
  void start(hetcomm_communicator_t* communicator, int rank) {
    communicator_ = communicator;
    rank_ = rank;
  }
  // Completes |work| when its requests have ended. |owner| owns this: threads keep it. Does nothing
  // after stop(). May throw where there is no memory or no thread. [any-thread]
  void watch(const WorkRef& work, const std::shared_ptr<void>& owner);
  // Ends the threads. Those that are in callbacks end when they come back.
  void stop();
  // Lets go of the threads after stop(). With |waits| it returns when they have ended. A callback
  // may call it, without |waits|.
  void let_go(bool waits);
  // Lets go of the threads in a forked child, where they do not run.
  void forget_threads();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kWindow = 64;

  using Works = std::list<WorkRef>;
  // A part of a work has ended.
  struct Report {
    Works work;  // the one; empty: no part has ended
    OperationWork::Part* part = nullptr;
    hetcomm_completion_t completion{};
  };
  // The leader waits for these at once. The lists go together, and have room for a whole window.
  struct Window {
    std::vector<hetcomm_request_t*> requests;  // one more: the first is wake_, or null
    std::vector<OperationWork::Part*> parts;
    std::vector<Works::iterator> works;
  };

  void call_watcher(const std::shared_ptr<void>& owner);
  void wake_leader();
  // Counts the thread before its scope ends.
  WaitingThread run(const std::shared_ptr<void>& owner);
  Report lead(std::unique_lock<std::mutex>& lock);
  void end_lead(std::unique_lock<std::mutex>& lock);
  // The leader takes these steps of lead() without the lock.
  Works::iterator fill(Works::iterator from, hetcomm_request_t* first);
  Report wait_in_window(uint64_t timeout_ns);
  Report go_round();
  uint64_t pause_ns() const;

  Completions& completions_;
  hetcomm_communicator_t* communicator_ = nullptr;
  int rank_ = 0;

  std::mutex mutex_;  // of what follows
  std::condition_variable called_;
  std::vector<std::thread> threads_;
  size_t free_threads_ = 0;  // those that are not in a callback
  bool stops_ = false;
  bool led_ = false;
  std::thread::id leader_;  // the thread that leads, or led last
  bool leader_sleeps_ = false;
  bool woken_ = false;  // a message to wake the leader is under way
  Works added_;

  // The leader's. The lead is passed on under mutex_.
  Works watched_;  // the oldest first
  Works over_;     // dropped without the lock: tensors may go with them
  Window window_;
  bool in_round_ = false;
  Works::iterator round_at_ = watched_.end();  // the next one of the round, in a round
  Clock::duration round_cost_{0};              // so far
  Clock::time_point next_round_{};
  hetcomm_request_t* wake_ =
      nullptr;         // a receive from this rank, for which the leader waits as well
  bool deaf_ = false;  // the communicator was aborted: no message will come
};

}  // namespace hetcomm::torch_backend
