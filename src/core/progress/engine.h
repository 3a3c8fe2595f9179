// Progress, as the rest of core and the C ABI see it: taking the baton, submitting, waiting, and
// what core reports about operations and arrivals.
//
//   Engine      owns the pool of operations and the parts below, and ties them together
//   Waiter      a thread that waits: polls, then sleeps
//   Background  the thread of thread mode
//   BatonLock   who may touch the state of core and transports, and what the holder owes to others
//   Passes      what the holder does: drives, checks descriptors and timers, prepares sleeps
//   Sleepers    who sleeps, and who watches for them
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
  bool adapts_spin = true;  // waiters may poll for a shorter time
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
  // Joins the background thread. Nothing may be pending.
  void stop() { background_.stop(); }

  // Releases a baton that was taken.
  class HETCOMM_SCOPED_CAPABILITY Held {
   public:
    explicit Held(Engine& engine) HETCOMM_UNDER_BATON : engine_(engine) {}
    ~Held() HETCOMM_RELEASE() { engine_.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Engine& engine_;
  };
  // Releases a baton that try_enter_as_user() took, if nothing was started or completed.
  class HETCOMM_SCOPED_CAPABILITY Visit {
   public:
    explicit Visit(Engine& engine) HETCOMM_UNDER_BATON : engine_(engine) {}
    ~Visit() HETCOMM_RELEASE() { engine_.leave_as_user(); }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Engine& engine_;
  };
  // Takes the baton for set-up calls and queries.
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

  // BatonLock's functions of the same names. [any-thread]
  bool try_lock() HETCOMM_TRY_ACQUIRE(baton_role) { return baton_.try_lock(); }
  bool try_lock_as_user() HETCOMM_TRY_ACQUIRE(baton_role) { return baton_.try_lock_as_user(); }
  bool try_enter_as_user() HETCOMM_TRY_ACQUIRE(baton_role) { return baton_.try_enter_as_user(); }
  void lock() HETCOMM_ACQUIRE(baton_role) { baton_.lock(); }
  [[gnu::always_inline]] void unlock() HETCOMM_RELEASE(baton_role) { baton_.unlock(); }
  void leave_as_user() HETCOMM_RELEASE(baton_role) { baton_.leave_as_user(); }

  // For operations that are left to the holder of the baton. [any-thread]
  BatonLock& baton_lock() { return baton_; }
  // Number of messages queued as unexpected so far. Waiters check again when it changes.
  // [any-thread]
  uint64_t arrivals() const { return baton_.tally().arrivals(); }
  // A count that changes whenever an operation has ended or its request was released. [any-thread]
  uint64_t ends() const { return baton_.tally().ends(); }
  // [any-thread]
  RecentCompletions& completions() { return completions_; }
  // Makes one pass over everything, unless another thread is making one. [any-thread]
  void poke() HETCOMM_EXCLUDES(baton_role);
  // Waits until |done()| or |deadline_ns|; returns done(). Only this thread calls done(), at any
  // time.
  template <typename Done>
  bool wait(uint64_t deadline_ns, Done&& done) HETCOMM_EXCLUDES(baton_role) {
    if (done()) {
      note_wait();
      return true;
    }
    return make_waiter(deadline_ns, spin_.spin_ticks(), done).wait();
  }
  // Like wait(), but sleeps immediately: for waits that take long or concern many processes.
  template <typename Done>
  bool wait_asleep(uint64_t deadline_ns, Done&& done) HETCOMM_EXCLUDES(baton_role) {
    return done() || make_waiter(deadline_ns, 0, done).wait();
  }
  // Records a wait that ended immediately. If it leaves nothing pending, the background thread is
  // not needed. [any-thread]
  void note_wait() {
    if (threaded() && !baton_.tally().some_pending()) background_.note_wait();
  }
  // Records that work was left pending while the baton is released, so that the background thread
  // checks it soon. [any-thread]
  void note_pending() { background_.note_pending(); }
  bool threaded() const { return background_.enabled(); }
  // False in a forked child. [any-thread]
  bool alive() const { return *static_cast<volatile const uint32_t*>(alive_word_) != 0; }
  // The policy that sets how long waiters poll. [any-thread]
  SpinPolicy& spin() { return spin_; }
  // The poller in which descriptors that end a sleep are registered, under the baton. The doorbell
  // is one of them.
  Poller& poller() { return baton_.sleepers().poller(); }
  int doorbell() { return baton_.sleepers().doorbell().fd(); }

  // Starts the background thread in thread mode, if it is not running. Until then, only waiting
  // threads make progress.
  Status start_background() HETCOMM_UNDER_BATON { return background_.start(); }
  void place_background(const ProcessorSet& processors) HETCOMM_UNDER_BATON {
    background_.place(processors);
  }
  OperationPool& pool() { return pool_; }
  Passes& passes() { return baton_.passes(); }
  int progress() HETCOMM_UNDER_BATON { return baton_.passes().run(); }
  void operation_started() HETCOMM_UNDER_BATON { baton_.tally().add_pending(1); }
  // Adds |change| to the amount of work for a later pass that belongs to no operation of this rank.
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
  // Records that a request was released while its operation runs. Threads that wait for it check
  // again.
  void request_released() HETCOMM_UNDER_BATON { baton_.tally().note_end(); }
  // Call this before any action that may leave work that no descriptor announces. If a thread
  // sleeps in the poller, this cancels its arranged wake-up and wakes it, so that it checks
  // everything again.
  void begin_work() HETCOMM_UNDER_BATON { baton_.begin_work(); }
  // Call this after an operation was started. Acts as begin_work() if the operation has left
  // unannounced work.
  void operation_was_started() HETCOMM_UNDER_BATON {
    if (sleeper_is_armed()) [[unlikely]]
      baton_.passes().check_sleep();
  }
  // Whether a thread sleeps in the poller until a time that was computed before any work started
  // now.
  bool sleeper_is_armed() HETCOMM_UNDER_BATON { return baton_.passes().sleep_is_prepared(); }
  // Schedules a check at |at_ns|, which may be earlier than the scheduled one.
  void timer_changed(uint64_t at_ns) HETCOMM_UNDER_BATON { baton_.passes().timer_changed(at_ns); }
  // Brings the next sweep forward, so that it records an operation with the default deadline that
  // has become pending. Wakes no thread.
  void sweep_soon() HETCOMM_UNDER_BATON { baton_.passes().sweep_soon(); }
  // Starts the operations in the submission queue.
  void drain() HETCOMM_UNDER_BATON { baton_.drain(); }
  void drain_queued() HETCOMM_UNDER_BATON { baton_.drain_queued(); }
  // Count the transfers that were requested from peers and have neither arrived nor been abandoned.
  // While there are some, the background thread polls longer before it sleeps.
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
