// Progress: who may touch the state of a context, and how threads wait.
//
// Baton: held by the thread that touches core or transport state. A call that finds it free works
// in place; a submission that finds it taken goes to a lock-free queue, which the holder drains
// before it is done. A waiter keeps the baton while it polls and gives it up when another thread
// asks for it.
//
// Sleeper: the one thread that sleeps in the poller, so that arrivals wake it; a waiter, or the
// background thread of thread mode. Other waiters sleep on a futex word and are woken when an
// operation completes or when the sleeper (or the polling waiter) leaves. A waiter that begins to
// poll takes the wake-ups from the sleeper: another waiter moves to the futex word, a background
// thread parks (so that a blocking wait costs no switch) and comes back when nobody has waited for
// a moment.
//
//   background:  drive + sleep in poller  --evicted-->  parked  --unused for a moment-->  drive ...
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/biased_lock.h"
#include "src/base/clock.h"
#include "src/base/futex.h"
#include "src/base/membarrier.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/base/yielder.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/recent_completions.h"
#include "src/net/poller.h"
#include "transports/transport.h"

namespace hetcomm {

// Something that the engine drives. All calls under the baton.
class Driven {
 public:
  // Moves things; returns how much was done.
  virtual int progress() = 0;
  // Timers; called when next_timer_ns() has passed, and now and then.
  virtual void tick(uint64_t now_ns) = 0;
  // Memory has run out while descriptors were looked at: some of what came is lost.
  virtual void out_of_memory() = 0;
  virtual uint64_t next_timer_ns() const = 0;
  // As Transport's.
  virtual bool prepare_sleep(Sleep sleep) = 0;
  virtual bool may_sleep_on() const = 0;
  virtual void finish_sleep() = 0;

 protected:
  ~Driven() = default;
};

// What the engine asks of core. Under the baton.
class Submitter {
 public:
  // Starts |operation|, which is pending; it may complete at once.
  virtual void start(Operation& operation) = 0;
  // Ends what is overdue or cancelled and reports stalls; returns when this is needed again.
  virtual uint64_t sweep(uint64_t now_ns) = 0;

 protected:
  ~Submitter() = default;
};

struct EngineOptions {
  bool thread = false;
  uint64_t spin_ns = 0;
  bool adapts_spin = true;  // waiters may poll for a shorter time
  bool yield = false;
};

class Engine {
 public:
  explicit Engine(Submitter& submitter) : submitter_(submitter), pool_(this) {}
  ~Engine() { stop(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status start(const EngineOptions& options);
  // Joins the background thread. Nothing is pending any more.
  void stop();

  // Gives up a baton that was taken.
  class Held {
   public:
    explicit Held(Engine& engine) : engine_(engine) {}
    ~Held() { engine_.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Engine& engine_;
  };
  // The same after try_enter_as_user(), by a thread that started and completed nothing.
  class Visit {
   public:
    explicit Visit(Engine& engine) : engine_(engine) {}
    ~Visit() { engine_.leave_as_user(); }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Engine& engine_;
  };
  // The baton for set-up calls and queries.
  class Baton {
   public:
    explicit Baton(Engine& engine) : held_((engine.lock(), engine)) { engine.begin_work(); }

   private:
    Held held_;
  };

  bool try_lock() { return baton_.try_lock(); }
  // The same for calls of the data path: a thread that alone makes them pays least.
  bool try_lock_as_user() { return baton_.try_lock_as_user(); }
  // Takes the baton, to report a completion under it, if that costs nothing. Otherwise nobody
  // reports under it any more, and whoever wants to report has to claim the operation. [any-thread]
  bool try_enter_as_user() {
    if (baton_.try_enter_as_user()) [[likely]]
      return true;
    if (baton_.sole_user_inside()) [[unlikely]]
      await_sole_user();
    drain_if_queued();
    return false;
  }
  void lock() {
    if (!try_lock()) lock_contended();
  }
  // Inlined by force: most calls of the data path end with it.
  [[gnu::always_inline]] void unlock() {
    if (submitted_.load(std::memory_order_relaxed) != nullptr) drain();
    give_up_baton();
    drain_if_queued();
  }

  // After try_enter_as_user(), when nothing was started and nothing completed.
  void leave_as_user() {
    baton_.unlock();
    fence_.light();
    drain_if_queued();
  }

  // Leaves |operation| (pending) to the holder of the baton, or starts it if that has gone
  // meanwhile. [any-thread]
  void submit_queued(Operation* operation);
  // Messages that were queued as unexpected so far; waiters look again when it changes.
  // [any-thread]
  uint64_t arrivals() const { return arrivals_.load(std::memory_order_acquire); }
  // Changes whenever an operation has ended or its request was released. [any-thread]
  uint64_t ends() const { return ends_.load(std::memory_order_acquire); }
  // [any-thread]
  RecentCompletions& completions() { return completions_; }
  // One pass over everything, unless somebody else is at it. [any-thread]
  void poke();
  // Waits until |done()| or |deadline_ns|; returns done(), which this thread alone calls, at any
  // time.
  template <typename Done>
  bool wait(uint64_t deadline_ns, Done&& done) {
    return wait_polling(deadline_ns, spin_ticks_.load(std::memory_order_relaxed), done);
  }
  // The same for what takes long, or concerns many processes: sleeps at once.
  template <typename Done>
  bool wait_asleep(uint64_t deadline_ns, Done&& done) {
    return wait_polling(deadline_ns, 0, done);
  }

  // Under the baton:
  // In thread mode: the background thread, if it does not run yet. Until then whoever waits drives.
  Status start_background();
  void add(Driven* driven) { driven_.push_back(driven); }
  void remove(Driven* driven);
  int progress() {
    int moved = 0;
    for (size_t i = 0; i < driven_.size(); ++i) moved += driven_[i]->progress();
    if ((++passes_ & 15) == 0 && slow_is_due(moved)) moved += slow_progress();
    return moved;
  }
  void operation_started() { add_pending(1); }
  // Something of no operation here has to be done in a later pass, or was.
  void work_left(int64_t change) { add_pending(change); }
  // Without the baton, after something was left pending: a background thread that naps long looks
  // sooner.
  void note_pending() {
    if (long_nap_.load(std::memory_order_relaxed) != 0 &&
        patience_.load(std::memory_order_relaxed) != 0) {
      wake_background();
    }
  }
  void operation_completed(Operation* operation) {
    const bool marked = operation->any_place.load(std::memory_order_relaxed) != 0;
    operation->set_state(OperationState::kComplete);
    if (marked) [[unlikely]]
      completions_.keep(*operation);
    note_end();
    add_pending(-1);
    completed_ = true;
  }
  void note_arrival() {
    arrivals_.store(arrivals_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    completed_ = true;
  }
  // A request was given back while its operation runs: who waits for it has to look.
  void request_released() {
    note_end();
    completed_ = true;
  }
  // The same as operation_completed() for an operation that nobody waits for.
  void operation_dropped(Operation* operation) {
    add_pending(-1);
    pool_.recycle_locked(operation);
  }
  // Before anything that may leave work which no descriptor announces, beside a thread that sleeps
  // in the poller: takes back the wake-ups that were arranged for it and wakes it, so that it looks
  // at everything again.
  void begin_work() {
    if (armed_) [[unlikely]]
      interrupt_sleeper();
  }
  // The same after an operation was started, if it has left such work.
  void operation_was_started() {
    if (armed_) [[unlikely]]
      check_sleeper();
  }
  // Somebody sleeps in the poller, until a time that was chosen without what is started now.
  bool sleeper_is_armed() const { return armed_; }
  // There is something to do at |at_ns|, perhaps earlier than known.
  void timer_changed(uint64_t at_ns);
  // An operation with the default deadline became pending: the next sweep notes it. Wakes nobody.
  void sweep_soon() {
    const uint64_t at = last_sweep_ns_ + kSweepIntervalNs;
    if (at < next_sweep_ns_) next_sweep_ns_ = at;
  }
  // Starts what is in the submission queue.
  void drain();
  void drain_queued() {
    if (submitted_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      drain();
  }
  // Data was asked of a peer; it has come, or was given up. In between the background thread polls
  // longer before it sleeps.
  void expect_more() { ++expected_; }
  void expect_less() { --expected_; }
  // A word that is zero in forked children.
  void set_alive_word(const uint32_t* word) { alive_ = word; }
  bool alive() const { return *static_cast<volatile const uint32_t*>(alive_) != 0; }
  uint64_t refresh_now() { return now_ns_ = hetcomm::now_ns(); }
  const uint64_t& coarse_now() const { return now_ns_; }

  void set_yield(bool yield) { yield_.store(yield, std::memory_order_relaxed); }
  // How long a waiting thread polls before it sleeps.
  void set_spin(uint64_t spin_ns) {
    spin_ticks_.store(spin_ns * ticks_per_us_ / 1000, std::memory_order_relaxed);
  }
  OperationPool& pool() { return pool_; }
  Poller& poller() { return *poller_; }
  // An eventfd. Whoever writes to it wakes the thread that sleeps in the poller, which then makes
  // progress. [any-thread]
  int doorbell() const { return doorbell_.get(); }
  bool threaded() const { return threaded_; }

 private:
  // A waiter that has polled in vain for so long lets others run.
  static constexpr uint64_t kEagerUs = 5;
  // Beside strangers it sleeps when it has polled for so long: the peer may need this processor.
  static constexpr uint64_t kBesideStrangersUs = 100;
  static constexpr uint64_t kSweepIntervalNs = 20'000'000;
  static constexpr uint64_t kSlowGraceUs = 150;
  enum Sleeper : uint32_t { kNobody, kWaiter, kBackground };
  // Says that a waiter polls.
  class Polling {
   public:
    explicit Polling(std::atomic<uint32_t>& word) : word_(word) {
      word_.store(1, std::memory_order_relaxed);
    }
    ~Polling() { word_.store(0, std::memory_order_relaxed); }
    Polling(const Polling&) = delete;
    Polling& operator=(const Polling&) = delete;

   private:
    std::atomic<uint32_t>& word_;
  };
  // Only the sleeper, once awake, silences the doorbell: a thread that polls beside it would take
  // its wake-up away.
  class Doorbell final : public Watcher {
   public:
    void on_events(uint32_t /*events*/) override { rung_ = true; }
    bool take_rung() { return std::exchange(rung_, false); }

   private:
    bool rung_ = false;
  };

  // What was completed is visible before the sleepers are counted, and the baton before the queue
  // is looked at again; those who go to sleep, and those who leave something in the queue, pay for
  // the fence.
  void give_up_baton() {
    const bool wake = completed_;
    completed_ = false;
    baton_.unlock();
    fence_.light();
    if (background_waits_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      pass_to_background();
    if (wake && asleep_.load(std::memory_order_relaxed) != 0) wake_waiters();
  }
  bool somebody_watches() const {
    return sleeper_.load(std::memory_order_seq_cst) != kNobody ||
           polling_.load(std::memory_order_seq_cst) != 0;
  }
  // After polling: if others sleep and nobody watches for them, wakes them to find a new sleeper.
  void hand_over() {
    if (threaded_ && pending_.load(std::memory_order_relaxed) != 0) note_pending();
    if (asleep_.load(std::memory_order_relaxed) != 0 && !somebody_watches()) wake_waiters();
  }
  // For the parked background thread.
  bool nobody_there() const {
    return sleeper_.load(std::memory_order_relaxed) == kNobody &&
           polling_.load(std::memory_order_relaxed) == 0 && baton_.looks_free();
  }
  // Operations (or other work) are pending and nobody drives them.
  bool work_is_left() const {
    return pending_.load(std::memory_order_relaxed) != 0 && !somebody_watches();
  }
  void add_pending(int64_t change) {
    pending_.store(pending_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  void note_end() {
    ends_.store(ends_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void lock_contended();
  void await_sole_user();
  // After giving up the baton for those who asked for it: lets them take it.
  void give_way() const;
  void sweep();
  // Without the baton.
  void drain_if_queued() {
    if (submitted_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      drain_after_unlock();
  }
  void drain_after_unlock();
  // Looks at descriptors that are not polled directly, and at timers.
  int slow_progress();
  // A pass that has |moved| something leaves it to one that has not, for a while: nobody who waits
  // for what came waits for a system call first.
  bool slow_is_due(int moved) const {
    const uint64_t at = next_slow_ticks_ + (moved > 0 ? kSlowGraceUs * ticks_per_us_ : 0);
    return ticks() >= at;
  }
  void begin_polling();
  template <typename Done>
  bool wait_polling(uint64_t deadline_ns, uint64_t spin, Done&& done);
  template <typename Done>
  bool poll_locked(uint64_t deadline_ns, uint64_t spin, uint64_t* spin_end, Done&& done);
  template <typename Done>
  void sleep(uint64_t deadline_ns, Done&& done);
  template <typename Done>
  void sleep_in_poller(uint64_t deadline_ns, Done&& done);
  // False when yields took long lately; then it has only paused. Where ranks share cores, what runs
  // instead is most likely what is waited for.
  bool let_others_run() {
    if (!yield_.load(std::memory_order_relaxed)) return yielder_.yield();
    sched_yield();
    return true;
  }
  void pause_once() const;
  // Arms the wake-ups; returns when to wake up at the latest, 0 when there is work already.
  uint64_t prepare_sleep(Sleep sleep);
  void finish_sleep();
  void interrupt_sleeper();
  void check_sleeper();
  void wake_waiters();
  void ring() const;
  void silence() const;
  void run_background();
  void pass_to_background();
  bool lock_beside_waiters();
  void drive_background();
  void park_background();
  void nap_long();
  bool nap_short();
  void wake_background();
  uint64_t background_spin_end() const;

  Submitter& submitter_;
  AsymmetricFence fence_;
  OperationPool pool_;
  std::unique_ptr<Poller> poller_;
  UniqueFd doorbell_;
  Doorbell doorbell_watcher_;
  std::vector<Driven*> driven_;
  uint64_t ticks_per_us_ = 1;
  std::atomic<uint64_t> spin_ticks_{0};
  bool adapts_spin_ = true;
  Yielder yielder_;
  bool threaded_ = false;
  const uint32_t* alive_ = nullptr;
  std::thread thread_;

  // Under the baton.
  uint64_t now_ns_ = 0;
  uint64_t next_sweep_ns_ = 0;
  uint64_t last_sweep_ns_ = 0;
  uint64_t next_slow_ticks_ = 0;
  uint64_t passes_ = 0;
  int64_t expected_ = 0;
  std::atomic<int64_t> pending_{0};  // written under the baton only
  std::atomic<uint64_t> ends_{0};    // likewise
  bool completed_ = false;           // something completed since wake-ups were last considered
  bool armed_ = false;               // transports ring the doorbell
  uint64_t wake_at_ns_ = 0;          // when the sleeper looks again, while armed

  BiasedLock baton_;
  alignas(64) std::atomic<Operation*> submitted_{nullptr};
  std::atomic<uint32_t> contenders_{0};
  std::atomic<uint32_t> asleep_{0};  // waiters asleep, in the poller or on wake_word_
  std::atomic<uint32_t> sleeper_{kNobody};
  std::atomic<uint32_t> polling_{0};  // a waiter polls
  std::atomic<uint32_t> wake_word_{0};
  std::atomic<uint32_t> background_waits_{
      0};                              // the background thread sleeps until the baton is free
  std::atomic<uint32_t> evicted_{0};   // the background thread shall leave the poller
  std::atomic<uint32_t> long_nap_{0};  // parked, it sleeps until it is woken, or for long
  std::atomic<uint32_t> deep_nap_{0};  // beside a waiter that sleeps long
  uint32_t naps_beside_sleeper_ = 0;   // of the background thread
  std::atomic<uint32_t> patience_{1};  // times that it may still be woken for nothing
  std::atomic<uint32_t> park_word_{0};
  std::atomic<uint64_t> uses_{0};      // waits begun
  std::atomic<uint64_t> arrivals_{0};  // written under the baton only
  std::atomic<bool> yield_{false};
  std::atomic<bool> stopping_{false};
  RecentCompletions completions_;
};

// Polls for |spin| ticks before it sleeps.
template <typename Done>
bool Engine::wait_polling(uint64_t deadline_ns, uint64_t spin, Done&& done) {
  if (done()) return true;
  uses_.store(uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  uint64_t spin_end = 0;
  for (uint32_t round = 1;; ++round) {
    if (try_lock()) {
      bool stay = false;
      {
        const Held held(*this);
        stay = poll_locked(deadline_ns, spin, &spin_end, done);
      }
      const bool is_done = done();
      if (is_done || !stay) hand_over();
      if (is_done) return true;
      if (stay) {
        give_way();
        continue;
      }
    } else {
      if (spin_end == 0) spin_end = ticks() + spin;
      pause_once();
      if (done()) {
        hand_over();
        return true;
      }
      if (ticks() < spin_end && ((round & 255) != 0 || hetcomm::now_ns() < deadline_ns)) continue;
    }
    if (hetcomm::now_ns() >= deadline_ns) {
      hand_over();
      return false;
    }
    sleep(deadline_ns, done);
    if (done()) {
      hand_over();
      return true;
    }
    spin_end = 0;
  }
}

// Polls with the baton until done, out of time, or asked to give the baton up. True in the last
// case.
template <typename Done>
bool Engine::poll_locked(uint64_t deadline_ns, uint64_t spin, uint64_t* spin_end, Done&& done) {
  const Polling polling(polling_);
  if (armed_) begin_polling();
  bool yields = yield_.load(std::memory_order_relaxed);
  for (uint32_t round = 1;; ++round) {
    const int moved = progress();
    if (submitted_.load(std::memory_order_relaxed) != nullptr) drain();
    if (done()) return false;
    if (moved > 0) {
      *spin_end = 0;
      yields = yield_.load(std::memory_order_relaxed);
      if (completed_ && asleep_.load(std::memory_order_relaxed) != 0) return true;
    }
    if (contenders_.load(std::memory_order_relaxed) != 0) return true;
    if ((round & 31) == 0 || yields) {
      const uint64_t at = ticks();
      if (*spin_end == 0) *spin_end = at + spin;
      if (at >= *spin_end) return false;
      // What comes soon is found sooner without a pause. What takes longer may wait for a thread
      // that needs this processor.
      yields = yields || at + spin - kEagerUs * ticks_per_us_ >= *spin_end;
      if (deadline_ns != kForever && hetcomm::now_ns() >= deadline_ns) return false;
    }
    if (yields && !let_others_run() && adapts_spin_) {
      *spin_end = std::min(*spin_end, ticks() + kBesideStrangersUs * ticks_per_us_);
    }
  }
}

template <typename Done>
void Engine::sleep(uint64_t deadline_ns, Done&& done) {
  uint32_t nobody = kNobody;
  if (polling_.load(std::memory_order_relaxed) == 0 &&
      sleeper_.compare_exchange_strong(nobody, kWaiter, std::memory_order_acq_rel)) {
    sleep_in_poller(deadline_ns, done);
    return;
  }
  const uint32_t word = wake_word_.load(std::memory_order_acquire);
  asleep_.fetch_add(1, std::memory_order_seq_cst);
  fence_.heavy();
  const uint64_t at = hetcomm::now_ns();
  // Whoever watches may have left between the two looks; then this thread has to take the place.
  if (!done() && at < deadline_ns && somebody_watches()) {
    futex_wait(wake_word_, word, deadline_ns == kForever ? kForever : deadline_ns - at);
  }
  asleep_.fetch_sub(1, std::memory_order_relaxed);
}

template <typename Done>
void Engine::sleep_in_poller(uint64_t deadline_ns, Done&& done) {
  uint64_t timer_ns = 0;
  {
    lock();
    const Held held(*this);
    if (!done()) timer_ns = prepare_sleep(Sleep::kLong);
  }
  if (timer_ns != 0) {
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    fence_.heavy();
    const uint64_t until = timer_ns < deadline_ns ? timer_ns : deadline_ns;
    const uint64_t at = hetcomm::now_ns();
    if (!done() && at < until) poller_->wait(until == kForever ? kForever : until - at);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
  }
  silence();
  {
    lock();
    const Held held(*this);
    finish_sleep();
    completed_ = true;  // others may have to take the sleeper's place
    sleeper_.store(kNobody, std::memory_order_seq_cst);
    // The events that woke us are still in the poller.
    slow_progress();
  }
  if (deep_nap_.load(std::memory_order_seq_cst) != 0) {
    // The background thread shall watch again, but not at once: this thread was here just now.
    uses_.store(uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    wake_background();
  }
}

}  // namespace hetcomm
