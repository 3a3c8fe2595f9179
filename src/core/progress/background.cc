#include "src/core/progress/background.h"

#include <sys/prctl.h>

#include <algorithm>
#include <system_error>

#include "src/system/clock.h"
#include "src/system/futex.h"
#include "src/system/short_slices.h"
#include "src/system/signals_blocked.h"

namespace hetcomm {
namespace {

// The parked thread resumes when no thread has waited for this long: kShortNapNs if operations are
// pending, otherwise kLongNapNs.
constexpr uint64_t kShortNapNs = 15'000;
constexpr uint64_t kLongNapNs = 1'000'000;
// After this many fruitless wake-ups, pending work no longer wakes the parked thread.
constexpr uint32_t kMaxPatience = 3;
// A caller that waits again within this time makes the progress itself (see Usefulness).
constexpr uint64_t kSoonUs = 100;
// While a waiter sleeps in the poller, there is no work for the background thread, so its naps are
// longer. After kNapsBeforeDeep such naps it takes deep naps, which the waiter must end when it
// leaves.
constexpr uint64_t kNapBesideSleeperNs = 2'000'000;
constexpr uint64_t kDeepNapNs = 100'000'000;
constexpr uint32_t kNapsBeforeDeep = 16;
// The time for which the thread continues to poll after a pass has found work.
constexpr uint64_t kSpinUs = 5;
// The time for which the thread polls, instead of kSpinUs, while a peer is about to send requested
// data. A sleep would cost more, because a wake-up takes long while other threads compute.
constexpr uint64_t kExpectUs = 40;
// The number of pause instructions for which the thread spins for the baton before it sleeps.
constexpr int kLockPauses = 32;

}  // namespace

void Background::place(const ProcessorSet& processors) {
  processors_ = processors;
  if (thread_.joinable()) (void)narrow_thread(thread_.native_handle(), processors_);
}

Status Background::start() {
  if (!enabled_ || thread_.joinable()) return {};
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return status_of_no_thread("progress thread", error);
  }
  (void)narrow_thread(thread_.native_handle(), processors_);
  return {};
}

void Background::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  park_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(park_word_);
  baton_.sleepers().doorbell().ring();
  thread_.join();
}

void Background::run() {
  ask_for_short_slices();
  prctl(PR_SET_NAME, "hetcomm");
  while (!stopping()) {
    evicted_.store(0, std::memory_order_relaxed);
    if (baton_.sleepers().become(Sleepers::Role::kBackground)) {
      drive();
    } else {
      park();
    }
  }
}

// Takes the baton. Returns false if a waiter polls, because that waiter makes all progress, or if
// this thread must stop driving. After a few attempts this thread sleeps instead of spinning, since
// it may have preempted the thread that holds the baton.
bool Background::lock_beside_waiters() {
  for (int round = 0; !baton_.try_lock(); ++round) {
    if (evicted_.load(std::memory_order_relaxed) != 0 || baton_.sleepers().somebody_polls() ||
        stopping()) {
      baton_.stop_awaiting();
      return false;
    }
    if (round < kLockPauses) {
      cpu_relax();
      continue;
    }
    baton_.await();
  }
  baton_.stop_awaiting();
  return true;
}

uint64_t Background::spin_end() {
  polls_long_ = baton_.tally().data_is_expected() && long_polls_.pay();
  return ticks() + spin_.ticks_in_us(polls_long_ ? kExpectUs : kSpinUs);
}

// Drives the engine as the sleeper (see Sleepers) until the thread is evicted, is stopped, finds a
// waiter that polls, or is in the way of callers. Then parks.
void Background::drive() {
  Sleepers& sleepers = baton_.sleepers();
  Passes& passes = baton_.passes();
  Sleep next = Sleep::kShort;  // kLong after a sleep that was not ended by an event
  const auto waits = [this] { return waits_.load(std::memory_order_relaxed); };
  Usefulness usefulness(ticks(), waits(), spin_.ticks_in_us(kSoonUs));
  while (!stopping() && evicted_.load(std::memory_order_acquire) == 0 && !usefulness.in_the_way()) {
    if (!lock_beside_waiters()) break;
    uint64_t end = spin_end();
    uint64_t found_ticks = ticks();
    do {
      if (passes.run() > 0) {
        if (polls_long_ && ticks() > found_ticks + spin_.ticks_in_us(kSpinUs)) {
          long_polls_.note_found();
        }
        found_ticks = ticks();
        usefulness.note_found(found_ticks);
        end = spin_end();
        next = Sleep::kShort;
      }
      baton_.drain_queued();
      if (baton_.tally().changed()) break;
      spin_.pause_once();
    } while (ticks() < end && !baton_.is_wanted());
    const bool wanted = baton_.is_wanted();
    if (polls_long_ && ticks() >= end) long_polls_.note_vain();
    const uint64_t until = baton_.tally().changed() || wanted ? 0 : passes.prepare_sleep(next);
    baton_.unlock();
    if (wanted) baton_.give_way();
    if (until == 0) continue;
    usefulness.begin_sleep(ticks(), waits());
    const uint64_t at = now_ns();
    if (at < until && !stopping()) sleepers.poller().wait(until - at);
    usefulness.end_sleep(ticks());
    next = now_ns() < until ? Sleep::kShort : Sleep::kLong;
    sleepers.doorbell().silence();
    if (!lock_beside_waiters()) break;
    passes.finish_sleep();
    const uint64_t arrivals = baton_.tally().arrivals();
    const bool pending = baton_.tally().some_pending();
    const int moved = passes.run_slow() + passes.run();
    if (moved > 0) usefulness.note_found(ticks());
    usefulness.note_wake(waits(), next == Sleep::kShort,
                         pending || baton_.tally().arrivals() != arrivals, moved > 0);
    baton_.unlock();
  }
  note_wake(usefulness.of_use(waits()));
  sleepers.leave();
  // Waiters that rely on a sleeper must choose another one.
  if (sleepers.some_are_asleep(std::memory_order_seq_cst)) sleepers.wake();
  park();
}

// Naps until work has been pending for a moment and no thread continues it, or until no thread has
// waited for a long time.
void Background::park() {
  while (!stopping()) {
    const uint64_t uses = uses_.load(std::memory_order_relaxed);
    const bool slept = nap_long();
    const bool idle = uses == uses_.load(std::memory_order_relaxed);
    if (work_is_left() || !slept) {
      if (nap_short()) break;
    } else if (idle && nobody_is_there()) {
      break;
    }
  }
}

// Naps for a long time. A thread that leaves work behind ends the nap early, unless recent wake-ups
// were fruitless. Returns false if another thread has ended the nap.
bool Background::nap_long() {
  const Sleepers& sleepers = baton_.sleepers();
  const uint32_t word = park_word_.load(std::memory_order_acquire);
  long_nap_.store(1, std::memory_order_seq_cst);
  // A race can lose a wake-up. The thread then continues at the end of the nap.
  if (!work_is_left() || patience_ == 0) {
    if (sleepers.sleeper(std::memory_order_seq_cst) == Sleepers::Role::kNobody) {
      naps_beside_sleeper_ = 0;
      futex_wait(park_word_, word, kLongNapNs);
    } else if (++naps_beside_sleeper_ <= kNapsBeforeDeep) {
      futex_wait(park_word_, word, kNapBesideSleeperNs);
    } else {
      deep_nap_.store(1, std::memory_order_seq_cst);
      if (sleepers.sleeper(std::memory_order_seq_cst) != Sleepers::Role::kNobody) {
        futex_wait(park_word_, word, kDeepNapNs);
      }
      deep_nap_.store(0, std::memory_order_relaxed);
    }
  }
  long_nap_.store(0, std::memory_order_relaxed);
  return word == park_word_.load(std::memory_order_relaxed);
}

// Naps briefly. Returns true if no thread has waited in that time and none makes progress now,
// probably because the thread that left the work is computing. Otherwise the wake-up was fruitless,
// and |patience_| is reduced.
bool Background::nap_short() {
  const uint64_t waits = waits_.load(std::memory_order_relaxed);
  futex_wait(park_word_, park_word_.load(std::memory_order_acquire), kShortNapNs);
  if (waits == waits_.load(std::memory_order_relaxed) && nobody_is_there()) return true;
  note_wake(false);
  return false;
}

// Resets |patience_| after a useful wake-up, because a caller that computes now will probably do so
// again. Reduces it after a fruitless one.
void Background::note_wake(bool of_use) {
  const uint32_t patience = patience_.load(std::memory_order_relaxed);
  patience_.store(of_use ? kMaxPatience : std::max(patience, 1U) - 1, std::memory_order_relaxed);
}

void Background::wake() {
  park_word_.fetch_add(1, std::memory_order_release);
  futex_wake_all(park_word_);
}

// Returns whether operations or other work are pending and no thread makes progress on them.
bool Background::work_is_left() const {
  return baton_.tally().some_pending() && !baton_.sleepers().somebody_watches();
}

bool Background::nobody_is_there() const {
  const Sleepers& sleepers = baton_.sleepers();
  return sleepers.sleeper() == Sleepers::Role::kNobody && !sleepers.somebody_polls() &&
         baton_.looks_free();
}

}  // namespace hetcomm
