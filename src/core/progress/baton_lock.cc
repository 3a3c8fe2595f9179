#include "src/core/progress/baton_lock.h"

#include <sched.h>

#include "src/core/progress/communicator_base.h"
#include "src/system/clock.h"
#include "src/system/futex.h"

namespace hetcomm {
namespace {

// A submitting thread that finds the baton taken executes this many pause instructions, in the hope
// that the holder notices the operation.
constexpr int kSubmitPauses = 64;

}  // namespace

Status BatonLock::start(BiasedLock::Bias bias) {
  HETCOMM_RETURN_IF_ERROR(sleepers_.open());
  fence_.set_up();
  lock_.set_up(bias);
  passes_.begin();
  return {};
}

void BatonLock::lock_contended() {
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

void BatonLock::await_sole_user() {
  lock();
  unlock();
}

void BatonLock::give_way() const {
  constexpr int kMaxYields = 64;
  for (int i = 0; i < kMaxYields && is_wanted(); ++i) sched_yield();
}

void BatonLock::await() {
  // A race can lose the wake-up. The thread then sleeps for the whole time limit.
  awaited_.store(1, std::memory_order_seq_cst);
  futex_wait(lock_.word(), 1, Passes::kShortSleepNs);
}

void BatonLock::pass_on() {
  stop_awaiting();
  futex_wake_all(lock_.word());
}

void BatonLock::submit(Operation& operation) {
  submitted_.push(operation);
  // The holder checks the queue often, so this thread first waits for a moment. fence() would cost
  // a system call.
  for (int round = 0; round < kSubmitPauses; ++round) {
    if (try_lock()) {
      unlock();
      return;
    }
    cpu_relax();
    if (submitted_.empty()) return;
  }
  fence();
  if (try_lock()) unlock();
}

void BatonLock::drain() {
  begin_work();
  Operation* ordered = submitted_.take();
  while (ordered != nullptr) {
    Operation* const operation = ordered;
    ordered = ordered->links.next;
    operation->links.next = nullptr;
    tally_.add_pending(1);
    operation->communicator->entry_of(*operation).start(*operation);
  }
}

void BatonLock::drain_after_unlock() {
  // If another thread has taken the baton in the meantime, that thread drains the queue in its
  // unlock().
  while (!submitted_.empty() && try_lock()) {
    drain();
    give_up();
  }
}

}  // namespace hetcomm
