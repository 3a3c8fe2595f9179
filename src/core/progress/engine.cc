#include "src/core/progress/engine.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "src/base/short_slices.h"
#include "src/base/signals_blocked.h"

namespace hetcomm {
namespace {

// How often a polling thread looks at descriptors that are not polled directly, and at timers.
constexpr uint64_t kSlowIntervalUs = 50;
// A parked background thread takes over when nobody has waited for this long, while operations are
// pending or not.
constexpr uint64_t kShortNapNs = 15'000;
constexpr uint64_t kLongNapNs = 1'000'000;
// How many times it is woken for nothing before it is left alone.
constexpr uint32_t kMostPatience = 3;
// While a waiter sleeps in the poller there is nothing to do: naps are longer, and after a few of
// them long enough that the waiter has to end them when it leaves.
constexpr uint64_t kNapBesideSleeperNs = 2'000'000;
constexpr uint64_t kDeepNapNs = 100'000'000;
constexpr uint32_t kNapsBeforeDeep = 16;
// How long the background thread goes on polling after it has found something.
constexpr uint64_t kBackgroundSpinUs = 5;
// The same while a peer is about to send what it was asked for: a wake-up beside computing threads
// costs more.
constexpr uint64_t kBackgroundExpectUs = 40;
// How long, in pauses, a submission beside a busy baton waits to be seen.
constexpr int kSubmitPauses = 64;
// And how long the background thread waits for the baton before it sleeps.
constexpr int kLockPauses = 32;
constexpr uint64_t kLongestSleepNs = 60'000'000'000;
constexpr uint64_t kShortSleepNs = 100'000;

}  // namespace

Status Engine::start(const EngineOptions& options) {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status();
  poller_ = std::make_unique<Poller>(std::move(poller.value()));
  doorbell_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell_.valid()) return status_from_errno(errno, "eventfd");
  HETCOMM_RETURN_IF_ERROR(poller_->add(doorbell_.get(), EPOLLIN, doorbell_watcher_));
  fence_.set_up();
  // A background thread is a second user.
  baton_.set_up(options.thread ? BiasedLock::Bias::kNever : BiasedLock::Bias::kSoleUser);
  yield_ = options.yield;
  ticks_per_us_ = ticks_per_us();
  set_spin(options.spin_ns);
  adapts_spin_ = options.adapts_spin;
  refresh_now();
  threaded_ = options.thread;
  return {};
}

Status Engine::start_background() {
  if (!threaded_ || thread_.joinable()) return {};
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run_background(); });
  } catch (const std::system_error& error) {
    return status_of_no_thread("progress thread", error);
  }
  return {};
}

void Engine::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  park_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(park_word_);
  ring();
  thread_.join();
}

void Engine::remove(Driven* driven) { std::erase(driven_, driven); }

void Engine::lock_contended() {
  contenders_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t round = 1; !try_lock(); ++round) {
    if ((round & 63) == 0) {
      sched_yield();
    } else {
      cpu_relax();
    }
  }
  contenders_.fetch_sub(1, std::memory_order_relaxed);
}

void Engine::await_sole_user() {
  lock();
  unlock();
}

void Engine::give_way() const {
  constexpr int kMostYields = 64;
  for (int i = 0; i < kMostYields && contenders_.load(std::memory_order_relaxed) != 0; ++i) {
    sched_yield();
  }
}

void Engine::submit_queued(Operation* operation) {
  Operation* head = submitted_.load(std::memory_order_relaxed);
  do {
    operation->next = head;
  } while (!submitted_.compare_exchange_weak(head, operation, std::memory_order_seq_cst,
                                             std::memory_order_relaxed));
  // The holder looks at the queue often; wait a moment for that, since to make sure of it costs a
  // system call.
  for (int round = 0; round < kSubmitPauses; ++round) {
    if (try_lock()) {
      unlock();
      return;
    }
    cpu_relax();
    if (submitted_.load(std::memory_order_relaxed) == nullptr) return;
  }
  fence_.heavy();
  if (try_lock()) unlock();
}

// The queue is a stack; it is turned round so that operations start in the order in which they
// came.
void Engine::drain() {
  begin_work();
  Operation* stack = submitted_.exchange(nullptr, std::memory_order_acquire);
  Operation* ordered = nullptr;
  while (stack != nullptr) {
    Operation* next = stack->next;
    stack->next = ordered;
    ordered = stack;
    stack = next;
  }
  while (ordered != nullptr) {
    Operation* operation = ordered;
    ordered = ordered->next;
    operation->next = nullptr;
    add_pending(1);
    submitter_.start(*operation);
  }
}

void Engine::drain_after_unlock() {
  // Whoever holds the baton now will find the queue in its unlock.
  while (submitted_.load(std::memory_order_relaxed) != nullptr && try_lock()) {
    drain();
    give_up_baton();
  }
}

void Engine::poke() {
  if (!try_lock()) return;
  {
    const Held held(*this);
    begin_work();
    int moved = 0;
    for (Driven* driven : driven_) moved += driven->progress();
    if (slow_is_due(moved)) slow_progress();
  }
  if (threaded_ && pending_.load(std::memory_order_relaxed) != 0) note_pending();
}

int Engine::slow_progress() {
  next_slow_ticks_ = ticks() + kSlowIntervalUs * ticks_per_us_;
  refresh_now();
  // The doorbell is no work, and may ring for somebody else. Where nobody sleeps it rang too late.
  int moved = 0;
  try {
    moved = poller_->poll();
  } catch (const std::bad_alloc&) {
    for (Driven* driven : driven_) driven->out_of_memory();
    moved = 1;
  }
  if (doorbell_watcher_.take_rung()) {
    --moved;
    if (sleeper_.load(std::memory_order_relaxed) == kNobody) silence();
  }
  for (size_t i = 0; i < driven_.size(); ++i) driven_[i]->tick(now_ns_);
  if (now_ns_ >= next_sweep_ns_) sweep();
  return moved;
}

void Engine::sweep() {
  last_sweep_ns_ = now_ns_;
  next_sweep_ns_ = kForever;  // operations that the sweep itself starts may lower it
  next_sweep_ns_ = std::min(next_sweep_ns_, submitter_.sweep(now_ns_));
}

void Engine::timer_changed(uint64_t at_ns) {
  if (at_ns < next_sweep_ns_) next_sweep_ns_ = at_ns;
  if (armed_ && at_ns < wake_at_ns_) ring();
}

void Engine::begin_polling() {
  finish_sleep();
  const uint32_t sleeper = sleeper_.load(std::memory_order_relaxed);
  if (sleeper == kBackground) evicted_.store(1, std::memory_order_release);
  if (sleeper != kNobody) ring();
}

void Engine::pause_once() const {
  if (yield_.load(std::memory_order_relaxed)) {
    sched_yield();
  } else {
    cpu_relax();
  }
}

uint64_t Engine::prepare_sleep(Sleep sleep) {
  slow_progress();
  bool quiet = true;
  for (Driven* driven : driven_) quiet = driven->prepare_sleep(sleep) && quiet;
  armed_ = true;
  uint64_t until = next_sweep_ns_;
  for (const Driven* driven : driven_) until = std::min(until, driven->next_timer_ns());
  const uint64_t longest_ns = sleep == Sleep::kShort ? kShortSleepNs : kLongestSleepNs;
  wake_at_ns_ = std::min(until, now_ns_ + longest_ns);
  if (quiet && until > now_ns_) return wake_at_ns_;
  finish_sleep();
  return 0;
}

void Engine::finish_sleep() {
  if (!armed_) return;
  armed_ = false;
  for (Driven* driven : driven_) driven->finish_sleep();
}

void Engine::interrupt_sleeper() {
  finish_sleep();
  ring();
}

void Engine::check_sleeper() {
  for (const Driven* driven : driven_) {
    if (driven->may_sleep_on() && driven->next_timer_ns() >= wake_at_ns_) continue;
    interrupt_sleeper();
    return;
  }
}

void Engine::wake_waiters() {
  wake_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(wake_word_);
  if (sleeper_.load(std::memory_order_seq_cst) == kWaiter) ring();
}

void Engine::ring() const {
  const uint64_t one = 1;
  const ssize_t put = ::write(doorbell_.get(), &one, sizeof(one));
  static_cast<void>(put);  // full means that it rings already
}

void Engine::silence() const {
  uint64_t count = 0;
  const ssize_t got = ::read(doorbell_.get(), &count, sizeof(count));
  static_cast<void>(got);  // nothing to read means that it did not ring
}

void Engine::run_background() {
  ask_for_short_slices();
  prctl(PR_SET_NAME, "hetcomm");
  while (!stopping_.load(std::memory_order_relaxed)) {
    uint32_t nobody = kNobody;
    if (sleeper_.compare_exchange_strong(nobody, kBackground, std::memory_order_acq_rel)) {
      drive_background();
    } else {
      park_background();
    }
  }
}

void Engine::pass_to_background() {
  background_waits_.store(0, std::memory_order_relaxed);
  futex_wake_all(baton_.word());
}

// For the background thread. False when a waiter polls, which then does all that there is to do. It
// sleeps for the baton and does not spin: it may have displaced the very thread that holds it.
bool Engine::lock_beside_waiters() {
  for (int round = 0; !try_lock(); ++round) {
    if (evicted_.load(std::memory_order_relaxed) != 0 ||
        polling_.load(std::memory_order_relaxed) != 0 ||
        stopping_.load(std::memory_order_relaxed)) {
      background_waits_.store(0, std::memory_order_relaxed);
      return false;
    }
    if (round < kLockPauses) {
      cpu_relax();
      continue;
    }
    // A wake-up lost to a race costs no more than the time limit.
    background_waits_.store(1, std::memory_order_seq_cst);
    futex_wait(baton_.word(), 1, kShortSleepNs);
  }
  background_waits_.store(0, std::memory_order_relaxed);
  return true;
}

uint64_t Engine::background_spin_end() const {
  return ticks() + (expected_ > 0 ? kBackgroundExpectUs : kBackgroundSpinUs) * ticks_per_us_;
}

// Holds the sleeper's role until evicted or stopped.
void Engine::drive_background() {
  Sleep next = Sleep::kShort;  // until nothing has happened for the time of a short one
  while (!stopping_.load(std::memory_order_relaxed) &&
         evicted_.load(std::memory_order_acquire) == 0) {
    if (!lock_beside_waiters()) break;
    uint64_t end = background_spin_end();
    do {
      if (progress() > 0) {
        end = background_spin_end();
        next = Sleep::kShort;
      }
      if (submitted_.load(std::memory_order_relaxed) != nullptr) drain();
      if (completed_) break;
      pause_once();
    } while (ticks() < end && contenders_.load(std::memory_order_relaxed) == 0);
    const bool wanted = contenders_.load(std::memory_order_relaxed) != 0;
    const uint64_t until = completed_ || wanted ? 0 : prepare_sleep(next);
    unlock();
    if (wanted) give_way();
    if (until == 0) continue;
    const uint64_t at = hetcomm::now_ns();
    if (at < until && !stopping_.load(std::memory_order_relaxed)) poller_->wait(until - at);
    next = hetcomm::now_ns() < until ? Sleep::kShort : Sleep::kLong;
    silence();
    if (!lock_beside_waiters()) break;
    finish_sleep();
    slow_progress();
    unlock();
  }
  evicted_.store(0, std::memory_order_relaxed);
  sleeper_.store(kNobody, std::memory_order_seq_cst);
  // Waiters that rely on a sleeper have to look for another.
  if (asleep_.load(std::memory_order_seq_cst) != 0) wake_waiters();
  park_background();
}

// Until work is left behind and nobody comes back to it for a moment, or nothing happens for long.
void Engine::park_background() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint64_t uses = uses_.load(std::memory_order_relaxed);
    nap_long();
    const bool idle = uses == uses_.load(std::memory_order_relaxed);
    if (work_is_left()) {
      if (nap_short()) break;
    } else if (idle && nobody_there()) {
      break;
    }
  }
}

// Whoever leaves work behind ends it, unless that was for nothing the last times.
void Engine::nap_long() {
  const uint32_t word = park_word_.load(std::memory_order_acquire);
  long_nap_.store(1, std::memory_order_seq_cst);
  // A wake-up that is lost to a race costs no more than the long nap.
  if (!work_is_left() || patience_ == 0) {
    if (sleeper_.load(std::memory_order_seq_cst) == kNobody) {
      naps_beside_sleeper_ = 0;
      futex_wait(park_word_, word, kLongNapNs);
    } else if (++naps_beside_sleeper_ <= kNapsBeforeDeep) {
      futex_wait(park_word_, word, kNapBesideSleeperNs);
    } else {
      deep_nap_.store(1, std::memory_order_seq_cst);
      if (sleeper_.load(std::memory_order_seq_cst) != kNobody) {
        futex_wait(park_word_, word, kDeepNapNs);
      }
      deep_nap_.store(0, std::memory_order_relaxed);
    }
  }
  long_nap_.store(0, std::memory_order_relaxed);
}

// True when whoever left the work has not come back: then it computes, and will do so the next
// times.
bool Engine::nap_short() {
  const uint64_t uses = uses_.load(std::memory_order_relaxed);
  futex_wait(park_word_, park_word_.load(std::memory_order_acquire), kShortNapNs);
  if (uses == uses_.load(std::memory_order_relaxed) && nobody_there()) {
    patience_.store(kMostPatience, std::memory_order_relaxed);
    return true;
  }
  const uint32_t patience = patience_.load(std::memory_order_relaxed);
  if (patience > 0) patience_.store(patience - 1, std::memory_order_relaxed);
  return false;
}

void Engine::wake_background() {
  park_word_.fetch_add(1, std::memory_order_release);
  futex_wake_all(park_word_);
}

}  // namespace hetcomm
