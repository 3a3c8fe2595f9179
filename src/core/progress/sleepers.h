// Sleepers records which waiting threads are asleep, and which thread watches for events on their
// behalf.
//
// The sleeper is the one thread that sleeps in the poller, so that arrivals wake it: a waiter, or
// the background thread in thread mode. No sleeper is needed while a waiter polls. All other
// waiters sleep on a futex word. They are woken when an operation completes. They are also woken
// when no thread watches any longer, so that one of them becomes the sleeper.
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

  // Marks a waiter as polling while this object exists.
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
  // Counts the calling thread as a sleeping waiter while this object exists.
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

  // All functions below are [any-thread].

  // Makes the calling thread the sleeper. Returns false if there is already one.
  bool become(Role role) {
    Role nobody = Role::kNobody;
    return sleeper_.compare_exchange_strong(nobody, role, std::memory_order_acq_rel);
  }
  // Leaves the role of the sleeper. Only the sleeper calls this.
  void leave() { sleeper_.store(Role::kNobody, std::memory_order_seq_cst); }
  Role sleeper(std::memory_order order = std::memory_order_relaxed) const {
    return sleeper_.load(order);
  }
  bool somebody_polls() const { return polling_.load(std::memory_order_relaxed) != 0; }
  // Returns whether there is a sleeper, or a waiter that polls.
  bool somebody_watches() const {
    return sleeper_.load(std::memory_order_seq_cst) != Role::kNobody ||
           polling_.load(std::memory_order_seq_cst) != 0;
  }
  bool some_are_asleep(std::memory_order order = std::memory_order_relaxed) const {
    return asleep_.load(order) != 0;
  }
  // Wakes every sleeping waiter.
  void wake();

  // Returns the number of wake-ups so far. A waiter reads it, checks whether it must wait, and then
  // calls sleep(), which sleeps until the number changes.
  uint32_t wake_ups() const { return wake_word_.load(std::memory_order_acquire); }
  void sleep(uint32_t wake_ups, uint64_t timeout_ns) {
    futex_wait(wake_word_, wake_ups, timeout_ns);
  }

  // Return the poller in which the sleeper sleeps, and the doorbell that wakes it.
  Poller& poller() { return *poller_; }
  Doorbell& doorbell() { return doorbell_; }

 private:
  std::unique_ptr<Poller> poller_;
  Doorbell doorbell_;
  std::atomic<uint32_t> asleep_{0};  // number of waiters asleep, in the poller or on wake_word_
  std::atomic<Role> sleeper_{Role::kNobody};
  std::atomic<uint32_t> polling_{0};
  std::atomic<uint32_t> wake_word_{0};
};

}  // namespace hetcomm
