// Engine provides progress to the rest of core and to the C ABI. Callers take the baton, submit
// operations and wait. Core reports which operations have started and ended, and what has arrived.
//
//   Engine      owns the pool of operations and the parts below, and ties them together
//   Waiter      a thread that waits: polls, then sleeps
//   Background  the thread of thread mode
//   BatonLock   the lock of the state of core and transports; releasing it wakes waiters
//   Passes      a pass by the holder: polls, checks descriptors and timers, prepares sleeps
//   Sleepers    the threads that sleep, and the thread that watches for them
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/background.h"
#include "src/core/progress/baton_lock.h"
#include "src/core/progress/driven.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/recent_completions.h"
#include "src/core/progress/spin_policy.h"
#include "src/core/progress/waiter.h"

namespace hetcomm {

struct EngineOptions {
  bool thread = false;
  uint64_t spin_ns = 0;
  bool adapts_spin = true;  // waiters poll less while unrelated processes compete
  bool yield = false;
  const uint32_t* alive_word = nullptr;  // zero in forked children
};

class Engine {
 public:
  explicit Engine(Sweeper& sweeper) : pool_(this), baton_(sweeper), background_(baton_, spin_) {}
  ~Engine() { stop(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status start(const EngineOptions& options);
  // Joins the background thread. No operation may be pending.
  void stop() { background_.stop(); }

  // Releases the baton at the end of a scope. The caller must have taken the baton.
  class HETCOMM_SCOPED_CAPABILITY Held {
   public:
    explicit Held(Engine& engine) HETCOMM_UNDER_BATON : engine_(engine) {}
    ~Held() HETCOMM_RELEASE() { engine_.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Engine& engine_;
  };
  // Releases the baton at the end of a scope, after try_enter_as_user(). Nothing may be started or
  // completed in the scope.
  class HETCOMM_SCOPED_CAPABILITY Visit {
   public:
    explicit Visit(Engine& engine) HETCOMM_UNDER_BATON : engine_(engine) {}
    ~Visit() HETCOMM_RELEASE() { engine_.leave_as_user(); }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Engine& engine_;
  };
  // Takes the baton for a scope. Used in setup calls and queries.
  class HETCOMM_SCOPED_CAPABILITY Baton {
   public:
    explicit Baton(Engine& engine) HETCOMM_ACQUIRE(baton_role) : held_((engine.lock(), engine)) {
      engine.begin_work();
    }
    ~Baton() HETCOMM_RELEASE() = default;
    Baton(const Baton&) = delete;
    Baton& operator=(const Baton&) = delete;

   private:
    Held held_;
  };

  // These functions call BatonLock's functions of the same names. [any-thread]
  bool try_lock() HETCOMM_TRY_ACQUIRE(baton_role) { return baton_.try_lock(); }
  bool try_lock_as_user() HETCOMM_TRY_ACQUIRE(baton_role) { return baton_.try_lock_as_user(); }
  bool try_enter_as_user() HETCOMM_TRY_ACQUIRE(baton_role) { return baton_.try_enter_as_user(); }
  void lock() HETCOMM_ACQUIRE(baton_role) { baton_.lock(); }
  [[gnu::always_inline]] void unlock() HETCOMM_RELEASE(baton_role) { baton_.unlock(); }
  void leave_as_user() HETCOMM_RELEASE(baton_role) { baton_.leave_as_user(); }

  // Returns the lock. Its submit() leaves operations to the holder of the baton. [any-thread]
  BatonLock& baton_lock() { return baton_; }
  // Returns a count of unexpected messages, and of other events that threads wait for without an
  // operation, such as notifications. Waiters check again when it changes. [any-thread]
  uint64_t arrivals() const { return baton_.tally().arrivals(); }
  // Returns a count that changes whenever an operation ends or its request is released.
  // [any-thread]
  uint64_t ends() const { return baton_.tally().ends(); }
  // [any-thread]
  RecentCompletions& completions() { return completions_; }
  // Makes one pass, unless another thread holds the baton or the background thread is the sleeper.
  // [any-thread]
  void poke() HETCOMM_EXCLUDES(baton_role);
  // Waits until done() returns true or |deadline_ns| has passed. Returns false in the latter case.
  // done() is called only by this thread, with or without the baton.
  template <typename Done>
  bool wait(uint64_t deadline_ns, Done&& done) HETCOMM_EXCLUDES(baton_role) {
    if (done()) {
      note_wait();
      return true;
    }
    return make_waiter(deadline_ns, spin_.spin_ticks(), done).wait();
  }
  // Like wait(), but sleeps immediately. Meant for waits that take long or involve many processes.
  template <typename Done>
  bool wait_asleep(uint64_t deadline_ns, Done&& done) HETCOMM_EXCLUDES(baton_role) {
    return done() || make_waiter(deadline_ns, 0, done).wait();
  }
  // Records a wait that ended immediately. If it leaves nothing pending, the background thread is
  // not needed. [any-thread]
  void note_wait() {
    if (threaded() && !baton_.tally().some_pending()) background_.note_wait();
  }
  // Records that the caller has released the baton and left work pending. The background thread
  // then checks that work soon. [any-thread]
  void note_pending() { background_.note_pending(); }
  bool threaded() const { return background_.enabled(); }
  // Returns false in a forked child. [any-thread]
  bool alive() const { return *static_cast<volatile const uint32_t*>(alive_word_) != 0; }
  // Returns the policy that determines how long waiters poll. [any-thread]
  SpinPolicy& spin() { return spin_; }
  // Returns the poller. Descriptors that must end a sleep are registered with it, under the baton.
  // doorbell() is one of them.
  Poller& poller() { return baton_.sleepers().poller(); }
  int doorbell() { return baton_.sleepers().doorbell().fd(); }

  // Starts the background thread if thread mode is enabled and the thread is not running yet. Until
  // then, only waiting threads make progress.
  Status start_background() HETCOMM_UNDER_BATON { return background_.start(); }
  void place_background(const ProcessorSet& processors) HETCOMM_UNDER_BATON {
    background_.place(processors);
  }
  OperationPool& pool() { return pool_; }
  Passes& passes() { return baton_.passes(); }
  int progress() HETCOMM_UNDER_BATON { return baton_.passes().run(); }
  void operation_started() HETCOMM_UNDER_BATON { baton_.tally().add_pending(1); }
  // Adds |change| to the count of pending work that belongs to no operation of this rank.
  void work_left(int64_t change) HETCOMM_UNDER_BATON { baton_.tally().add_pending(change); }
  void operation_completed(Operation* operation) HETCOMM_UNDER_BATON {
    const bool marked = operation->wait_index.load(std::memory_order_relaxed) != 0;
    operation->set_state(OperationState::kComplete);
    if (marked) [[unlikely]]
      completions_.keep(*operation);
    baton_.tally().note_end();
    baton_.tally().add_pending(-1);
  }
  // Ends an operation that no thread waits for.
  void operation_dropped(Operation* operation) HETCOMM_UNDER_BATON {
    baton_.tally().add_pending(-1);
    pool_.recycle_locked(operation);
  }
  void note_arrival() HETCOMM_UNDER_BATON { baton_.tally().note_arrival(); }
  // Records that a request was released while its operation is running. Threads that wait for the
  // operation check again.
  void request_released() HETCOMM_UNDER_BATON { baton_.tally().note_end(); }
  // Call this before any action that can leave work that no descriptor signals. If a thread sleeps
  // in the poller, this cancels the sleep that was prepared and wakes the thread, so that it checks
  // everything again.
  void begin_work() HETCOMM_UNDER_BATON { baton_.begin_work(); }
  // Call this after an operation was started. Acts as begin_work() if the operation has left work
  // that no descriptor signals.
  void operation_was_started() HETCOMM_UNDER_BATON {
    if (sleeper_is_armed()) [[unlikely]]
      baton_.passes().check_sleep();
  }
  // Returns whether a thread sleeps, or is about to, with a wake-up time that does not account for
  // work started since then. Such work must wake it.
  bool sleeper_is_armed() HETCOMM_UNDER_BATON { return baton_.passes().sleep_is_prepared(); }
  // Schedules a check of timers at |at_ns|, unless one is due earlier. Wakes a sleeper that would
  // sleep longer.
  void timer_changed(uint64_t at_ns) HETCOMM_UNDER_BATON { baton_.passes().timer_changed(at_ns); }
  // Brings the next sweep forward. Called when an operation has become pending whose default
  // deadline is recorded only by a sweep. Wakes no thread.
  void sweep_soon() HETCOMM_UNDER_BATON { baton_.passes().sweep_soon(); }
  // Starts the operations in the submission queue.
  void drain() HETCOMM_UNDER_BATON { baton_.drain(); }
  void drain_queued() HETCOMM_UNDER_BATON { baton_.drain_queued(); }
  // Count the transfers that were requested from peers and have neither arrived nor been abandoned.
  // While there are any, the background thread polls longer before it sleeps.
  void expect_more() HETCOMM_UNDER_BATON { baton_.tally().add_expected(1); }
  void expect_less() HETCOMM_UNDER_BATON { baton_.tally().add_expected(-1); }
  uint64_t refresh_now() HETCOMM_UNDER_BATON { return baton_.passes().refresh_now(); }
  const uint64_t& coarse_now() HETCOMM_UNDER_BATON { return baton_.passes().coarse_now(); }

 private:
  template <typename Done>
  Waiter<Done> make_waiter(uint64_t deadline_ns, uint64_t spin_ticks, Done& done) {
    return Waiter<Done>(baton_, spin_, background_, deadline_ns, spin_ticks, done);
  }

  OperationPool pool_;
  BatonLock baton_;
  SpinPolicy spin_;
  Background background_;
  const uint32_t* alive_word_ = nullptr;
  RecentCompletions completions_;
};

}  // namespace hetcomm
