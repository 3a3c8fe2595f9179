// CopyWatch measures how long copies of a device have been in flight without any of them ending.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "src/system/clock.h"

namespace hetcomm {

class CopyWatch {
 public:
  // Records that a copy was started. Returns whether it is the only one.
  bool start(uint64_t at_ns) {
    const uint32_t before = under_way();
    under_way_.store(before + 1, std::memory_order_relaxed);
    if (before > 0) return false;
    since_ns_.store(at_ns, std::memory_order_relaxed);
    is_reported_ = false;
    return true;
  }
  // Records that a copy has ended, or that no operation waits for it any longer. Returns true if a
  // hang was reported before and other copies are in flight, which must then be watched again.
  bool end(uint64_t at_ns) {
    since_ns_.store(at_ns, std::memory_order_relaxed);
    under_way_.store(under_way() - 1, std::memory_order_relaxed);
    return under_way() > 0 && std::exchange(is_reported_, false);
  }
  uint32_t under_way() const { return under_way_.load(std::memory_order_relaxed); }
  // Returns whether no copy has ended for so long that a device call may wait forever. [any-thread]
  bool seems_to_hang() const {
    constexpr uint64_t kLongNs = 100'000'000;
    if (under_way() == 0) return false;
    const uint64_t now = now_ns();
    return now > since_ns() + kLongNs;
  }
  uint64_t since_ns() const { return since_ns_.load(std::memory_order_relaxed); }
  // Returns the time at which a hang must be reported: |limit_ns| after a copy last ended, or after
  // the first one started. Returns kForever if no copy is in flight or the hang was already
  // reported.
  uint64_t overdue_at(uint64_t limit_ns) const {
    return under_way() == 0 || is_reported_ ? kForever : deadline_after(since_ns(), limit_ns);
  }
  void report() { is_reported_ = true; }

 private:
  std::atomic<uint64_t> since_ns_{0};  // written under the baton, like all other members
  std::atomic<uint32_t> under_way_{0};
  bool is_reported_ = false;
};

}  // namespace hetcomm
