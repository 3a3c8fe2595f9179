// Tally counts pending operations, ended operations and arrivals. The holder of the baton writes
// the counts. Other threads can read some of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "src/base/baton_role.h"

namespace hetcomm {

class Tally {
 public:
  // Adds |change| to the number of pending operations and other pieces of pending work.
  void add_pending(int64_t change) HETCOMM_UNDER_BATON {
    pending_.store(pending_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  // Adds |change| to the number of transfers that were requested from peers and have neither
  // arrived nor been abandoned.
  void add_expected(int64_t change) HETCOMM_UNDER_BATON { expected_ += change; }
  void note_end() HETCOMM_UNDER_BATON {
    ends_.store(ends_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    changed_ = true;
  }
  void note_arrival() HETCOMM_UNDER_BATON {
    arrivals_.store(arrivals_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    changed_ = true;
  }
  // Makes waiters check again although no operation has ended.
  void note_change() HETCOMM_UNDER_BATON { changed_ = true; }

  // [any-thread]
  bool some_pending() const { return pending_.load(std::memory_order_relaxed) != 0; }
  uint64_t ends() const { return ends_.load(std::memory_order_acquire); }
  uint64_t arrivals() const { return arrivals_.load(std::memory_order_acquire); }

  bool data_is_expected() const HETCOMM_UNDER_BATON { return expected_ > 0; }
  // Returns whether the counts have changed since the last take_changed(). If so, waiters must be
  // woken.
  bool changed() const HETCOMM_UNDER_BATON { return changed_; }
  bool take_changed() HETCOMM_UNDER_BATON { return std::exchange(changed_, false); }

 private:
  std::atomic<int64_t> pending_{0};
  std::atomic<uint64_t> ends_{0};
  std::atomic<uint64_t> arrivals_{0};
  int64_t expected_ HETCOMM_GUARDED_BY_BATON = 0;
  bool changed_ HETCOMM_GUARDED_BY_BATON = false;
};

}  // namespace hetcomm
