// All memory monitors of the process share this: the descriptor, the thread that reads it, the
// ranges that are watched, and the last ranges that were lost.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/status.h"
#include "src/system/unique_fd.h"
#include "transports/rdma/memory_monitor.h"

namespace hetcomm::rdma {

class MemoryEvents {
 public:
  // Returns the object of the process, and makes it if there is none.
  static Result<std::shared_ptr<MemoryEvents>> get();
  ~MemoryEvents();
  MemoryEvents(const MemoryEvents&) = delete;
  MemoryEvents& operator=(const MemoryEvents&) = delete;

  bool watch(const MemoryRange& range);
  void unwatch(const MemoryRange& range);

  // True: a call that has not returned takes, or has taken, watched memory away. After false,
  // sequence() covers all memory that went before.
  bool changing() const;

  // Changes with every event. Odd while an event may have been read that take() does not know yet.
  uint64_t sequence() const { return sequence_.load(std::memory_order_acquire); }
  // Reports the ranges that were lost since the count was |taken|, and sets |taken| to the current
  // count.
  void take(uint64_t& taken, MemoryMonitor::Lost& out);
  uint64_t count();

 private:
  explicit MemoryEvents(UniqueFd stop);
  static Result<std::shared_ptr<MemoryEvents>> create();
  Status open();
  Status try_out();
  void close_events();
  void run();
  void read_events();
  void let_go(const MemoryRange& range, size_t from);

  // A forked child has a copy of this, but no thread.
  const pid_t process_;
  UniqueFd events_;  // closed by the thread, if there is one; a forked child has none
  UniqueFd stop_;

  // Held during system calls and allocations. The thread never takes it.
  std::mutex watched_mutex_;
  std::vector<MemoryRange> watched_;

  std::atomic<uint64_t> sequence_{0};
  std::mutex lost_mutex_;
  std::array<MemoryRange, MemoryMonitor::kMax> lost_{};  // a ring
  uint64_t lost_count_ = 0;                              // since the start

  // Left behind in a forked child, in which another thread may have its id.
  std::unique_ptr<std::thread> thread_;
};

}  // namespace hetcomm::rdma
