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

// The parked thread resumes if no thread has waited for this long: the short time if operations are
// pending, otherwise the long one.
constexpr uint64_t kShortNapNs = 15'000;
constexpr uint64_t kLongNapNs = 1'000'000;
// After this many fruitless wake-ups, the parked thread is not woken again.
constexpr uint32_t kMaxPatience = 3;
// A caller that waits again this soon makes the progress itself (Usefulness).
constexpr uint64_t kSoonUs = 100;
// While a waiter sleeps in the poller there is no work, so naps are longer. After kNapsBeforeDeep
// such naps, the background thread takes deep naps, which the waiter has to end when it leaves.
constexpr uint64_t kNapBesideSleeperNs = 2'000'000;
constexpr uint64_t kDeepNapNs = 100'000'000;
constexpr uint32_t kNapsBeforeDeep = 16;
// The time for which the thread continues to poll after a pass has found work.
constexpr uint64_t kSpinUs = 5;
// The time for which the thread polls, instead of kSpinUs, while a peer is about to send requested
// data. A sleep would cost more, because a wake-up takes long among threads that compute.
constexpr uint64_t kExpectUs = 40;
// The number of pauses for which the thread waits for the baton before it sleeps.
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

// Takes the baton. Returns false if a waiter polls, which then makes all progress, or if the thread
// has to stop driving. After a few attempts this thread sleeps instead of spinning, since it may
// have displaced the thread that holds the baton.
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

// Drives the engine in the sleeper's role until the thread is evicted, stopped, displaced by a
// polling waiter, or in the way of callers. Then parks.
void Background::drive() {
  Sleepers& sleepers = baton_.sleepers();
  Passes& passes = baton_.passes();
  Sleep next = Sleep::kShort;  // kLong after a sleep that no event has ended
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
  // Waiters that rely on a sleeper have to choose another.
  if (sleepers.some_are_asleep(std::memory_order_seq_cst)) sleepers.wake();
  park();
}

// Naps until work has been left for a moment with no thread to continue it, or until no thread has
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

// Naps for long, or until a thread leaves work behind, unless the last wake-ups were fruitless.
// Returns false if another thread has ended the nap.
bool Background::nap_long() {
  const Sleepers& sleepers = baton_.sleepers();
  const uint32_t word = park_word_.load(std::memory_order_acquire);
  long_nap_.store(1, std::memory_order_seq_cst);
  // A race may lose a wake-up. The thread then continues at the end of the nap.
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
// probably because the thread that left the work computes. Otherwise the wake-up was fruitless, and
// the patience is reduced.
bool Background::nap_short() {
  const uint64_t waits = waits_.load(std::memory_order_relaxed);
  futex_wait(park_word_, park_word_.load(std::memory_order_acquire), kShortNapNs);
  if (waits == waits_.load(std::memory_order_relaxed) && nobody_is_there()) return true;
  note_wake(false);
  return false;
}

// Renews the patience after a useful wake-up, and otherwise reduces it. A caller that computes now
// will probably do so again.
void Background::note_wake(bool of_use) {
  const uint32_t patience = patience_.load(std::memory_order_relaxed);
  patience_.store(of_use ? kMaxPatience : std::max(patience, 1U) - 1, std::memory_order_relaxed);
}

void Background::wake() {
  park_word_.fetch_add(1, std::memory_order_release);
  futex_wake_all(park_word_);
}

// Returns whether operations or other work are pending and no thread drives them.
bool Background::work_is_left() const {
  return baton_.tally().some_pending() && !baton_.sleepers().somebody_watches();
}

bool Background::nobody_is_there() const {
  const Sleepers& sleepers = baton_.sleepers();
  return sleepers.sleeper() == Sleepers::Role::kNobody && !sleepers.somebody_polls() &&
         baton_.looks_free();
}

}  // namespace hetcomm
