// MemoryEvents is the state that all memory monitors of the process share: the descriptor, the
// thread that reads it, the watched ranges, and the ranges that were lost most recently.
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
  // Returns the process-wide object. Creates it if it does not exist.
  static Result<std::shared_ptr<MemoryEvents>> get();
  ~MemoryEvents();
  MemoryEvents(const MemoryEvents&) = delete;
  MemoryEvents& operator=(const MemoryEvents&) = delete;

  bool watch(const MemoryRange& range);
  void unwatch(const MemoryRange& range);

  // Returns whether some thread is still in a system call that may be removing watched memory, or
  // may have removed it. If not, sequence() covers all memory removed so far.
  bool changing() const;

  // Returns a number that changes with every event. It is odd while an event may have been read
  // that take() does not report yet.
  uint64_t sequence() const { return sequence_.load(std::memory_order_acquire); }
  // Stores in |out| the ranges lost since the count was |taken|, or sets |out.all| if they are too
  // many. Then sets |taken| to the current count.
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

  // The process that created this object. A forked child has a copy of the object, but no thread.
  const pid_t process_;
  // The userfaultfd. The reader thread closes it if that thread was started. In a forked child it
  // is already closed.
  UniqueFd events_;
  UniqueFd stop_;

  // Held during system calls and allocations. The reader thread never locks it.
  std::mutex watched_mutex_;
  std::vector<MemoryRange> watched_;

  std::atomic<uint64_t> sequence_{0};
  std::mutex lost_mutex_;
  std::array<MemoryRange, MemoryMonitor::kMax> lost_{};  // ring buffer
  uint64_t lost_count_ = 0;                              // number of ranges lost since the start

  // Leaked in a forked child, where another thread may have its id.
  std::unique_ptr<std::thread> thread_;
};

}  // namespace hetcomm::rdma
