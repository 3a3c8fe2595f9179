// Threads that wait asleep, and the one that watches for them.
//
// The sleeper is the one thread that sleeps in the poller, so that arrivals wake it: a waiter, or
// the background thread of thread mode. A waiter that polls makes a sleeper needless. All other
// waiters sleep on a futex word. They are woken when an operation completes, or when nobody watches
// any more, so that one of them takes the place.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/doorbell.h"
#include "src/net/poller.h"
#include "src/system/futex.h"

namespace hetcomm {

class Sleepers {
 public:
  enum class Role : uint32_t { kNobody, kWaiter, kBackground };

  Status open();

  // While this exists, a waiter polls.
  class Polling {
   public:
    explicit Polling(Sleepers& sleepers) HETCOMM_UNDER_BATON : word_(sleepers.polling_) {
      word_.store(1, std::memory_order_relaxed);
    }
    ~Polling() { word_.store(0, std::memory_order_relaxed); }
    Polling(const Polling&) = delete;
    Polling& operator=(const Polling&) = delete;

   private:
    std::atomic<uint32_t>& word_;
  };
  // While this exists, the calling thread counts as a waiter that is asleep.
  class Asleep {
   public:
    explicit Asleep(Sleepers& sleepers) : count_(sleepers.asleep_) {
      count_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Asleep() { count_.fetch_sub(1, std::memory_order_relaxed); }
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;

   private:
    std::atomic<uint32_t>& count_;
  };

  // All of the following are [any-thread].
  // Makes the calling thread the sleeper; false: there is one already.
  bool become(Role role) {
    Role nobody = Role::kNobody;
    return sleeper_.compare_exchange_strong(nobody, role, std::memory_order_acq_rel);
  }
  // The sleeper leaves.
  void leave() { sleeper_.store(Role::kNobody, std::memory_order_seq_cst); }
  Role sleeper(std::memory_order order = std::memory_order_relaxed) const {
    return sleeper_.load(order);
  }
  bool somebody_polls() const { return polling_.load(std::memory_order_relaxed) != 0; }
  // Whether there is a sleeper, or a waiter that polls.
  bool somebody_watches() const {
    return sleeper_.load(std::memory_order_seq_cst) != Role::kNobody ||
           polling_.load(std::memory_order_seq_cst) != 0;
  }
  bool some_are_asleep(std::memory_order order = std::memory_order_relaxed) const {
    return asleep_.load(order) != 0;
  }
  // Wakes every waiter that sleeps.
  void wake();

  // A waiter reads the count of wake-ups, looks whether it has to wait, and then sleeps as long as
  // the count stays the same.
  uint32_t wake_ups() const { return wake_word_.load(std::memory_order_acquire); }
  void sleep(uint32_t wake_ups, uint64_t timeout_ns) {
    futex_wait(wake_word_, wake_ups, timeout_ns);
  }

  // The sleeper sleeps on these two.
  Poller& poller() { return *poller_; }
  Doorbell& doorbell() { return doorbell_; }

 private:
  std::unique_ptr<Poller> poller_;
  Doorbell doorbell_;
  std::atomic<uint32_t> asleep_{0};  // waiters, in the poller or on wake_word_
  std::atomic<Role> sleeper_{Role::kNobody};
  std::atomic<uint32_t> polling_{0};
  std::atomic<uint32_t> wake_word_{0};
};

}  // namespace hetcomm
