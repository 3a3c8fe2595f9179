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
  // The process's; made if there is none.
  static Result<std::shared_ptr<MemoryEvents>> get();
  ~MemoryEvents();
  MemoryEvents(const MemoryEvents&) = delete;
  MemoryEvents& operator=(const MemoryEvents&) = delete;

  bool watch(const MemoryRange& range);
  void unwatch(const MemoryRange& range);

  // True: watched memory goes, or has gone, by a call that has not returned. After false,
  // sequence() tells of all that went before.
  bool changing() const;

  // Moves with every event. Odd while one may have been read that take() does not know yet.
  uint64_t sequence() const { return sequence_.load(std::memory_order_acquire); }
  // Gives the ranges that were lost since the count was |taken|, which becomes the present count.
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

  // A forked child has a copy of this, and no thread.
  const pid_t process_;
  UniqueFd events_;  // closed by the thread, if there is one; a forked child has none
  UniqueFd stop_;

  // Held over system calls and allocations; never taken by the thread.
  std::mutex watched_mutex_;
  std::vector<MemoryRange> watched_;

  std::atomic<uint64_t> sequence_{0};
  std::mutex lost_mutex_;
  std::array<MemoryRange, MemoryMonitor::kMax> lost_{};  // a ring
  uint64_t lost_count_ = 0;                              // of all times

  // Left behind in a forked child, in which its name may be that of another one.
  std::unique_ptr<std::thread> thread_;
};

}  // namespace hetcomm::rdma
