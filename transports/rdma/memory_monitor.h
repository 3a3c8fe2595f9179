// Tells which watched memory was unmapped, moved or thrown away (munmap, mremap, brk, mmap over it,
// madvise), exactly and before the call that did it has returned: the kernel's userfaultfd, of
// which only the events are used. Memory is watched in write-protect mode and never protected, so
// no access ever faults.
//
// The kernel holds the caller of munmap until the event was read. That needs a thread; it takes no
// lock that is ever held over an allocation, and allocates nothing itself, since it could wait for
// its own event otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace hetcomm::rdma {

struct MemoryRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

class MemoryMonitor {
 public:
  // kUnsupported where the kernel or the container does not allow it.
  static Result<std::unique_ptr<MemoryMonitor>> create();
  ~MemoryMonitor();
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  // Whole pages. False: this memory cannot be watched (not anonymous, or watched by another).
  // Ranges may overlap; what is in several stays watched until the last of them is given up.
  bool watch(const MemoryRange& range);
  // Once for each watch() that succeeded. The memory may have gone meanwhile.
  void unwatch(const MemoryRange& range);

  static constexpr size_t kMost = 256;
  struct Lost {
    std::array<MemoryRange, kMost> ranges;
    size_t count = 0;
    bool all = false;  // too many to name
  };
  // False: nothing was lost since the last take(). Costs one load.
  bool anything_lost() const { return sequence_.load(std::memory_order_acquire) != seen_; }
  // What was lost by calls that have returned.
  void take(Lost& out);

 private:
  MemoryMonitor(UniqueFd events, UniqueFd stop);
  void run();
  void read_events();
  void let_go(const MemoryRange& range, size_t from);

  UniqueFd events_;
  UniqueFd stop_;
  std::vector<MemoryRange> watched_;
  // Odd while an event may have been read that is not in lost_ yet.
  std::atomic<uint64_t> sequence_{0};
  uint64_t seen_ = 0;
  std::mutex mutex_;
  Lost lost_;
  std::thread thread_;
};

}  // namespace hetcomm::rdma
