// MemoryMonitor reports which watched memory was unmapped, moved or discarded (munmap, mremap, brk,
// mmap over it, madvise). It records a loss before the responsible call returns. It uses only the
// events of the kernel's userfaultfd. Memory is watched in write-protect mode but never protected,
// so no access ever faults.
//
// The kernel blocks the caller of munmap until the event has been read, so a separate thread reads
// the events. The thread takes no lock that is ever held during an allocation, and allocates
// nothing, since it could otherwise wait for its own event.
//
// The caller is blocked, but its addresses are already free: another thread may have mapped them
// again before the event arrives. The kernel counts changes in progress from before the memory
// disappears. It answers EAGAIN to other userfaultfd requests until the changes are complete.
// settle() checks for this answer.
//
// Only one descriptor can watch a piece of memory, so all monitors of the process share one
// descriptor and one thread. Both exist from the creation of the first monitor to the destruction
// of the last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/status.h"

namespace hetcomm::rdma {

struct MemoryRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const MemoryRange&) const = default;
};

class MemoryEvents;

// Each MemoryRegionCache has its own monitor. Not thread-safe.
class MemoryMonitor {
 public:
  // Creates a monitor. Returns kUnsupported if the kernel or the container does not allow it.
  static Result<std::unique_ptr<MemoryMonitor>> create();
  // Unwatches the ranges that are still watched.
  ~MemoryMonitor();
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  // Watches |range|, which consists of whole pages. Returns false if this memory cannot be watched:
  // it belongs to a file, it is shared memory before Linux 5.19, or something other than a monitor
  // watches it. Pages of shared memory that are removed through its descriptor (ftruncate,
  // fallocate) cause no event. Ranges may overlap, even across monitors. Memory in several ranges
  // stays watched until the last of these ranges is unwatched.
  bool watch(const MemoryRange& range);
  // Ends one watch. Call once for each successful watch(). The memory may already be unmapped.
  void unwatch(const MemoryRange& range);

  // Returns true if anything_lost() covers all watched memory that has become free for reuse. Waits
  // up to 0.1 ms for calls that unmap memory. Returns false if one has not returned by then:
  // watched memory may be lost without a report yet. Costs at least one system call.
  bool settle();

  static constexpr size_t kMax = 256;
  struct Lost {
    std::array<MemoryRange, kMax> ranges;
    size_t count = 0;
    bool all = false;  // any memory may be lost; |ranges| lists nothing
  };
  // Returns false if no memory was lost since the last take(). Costs one load.
  bool anything_lost() const;
  // Reports the memory lost since the last take(). This covers all calls that have returned, and
  // everything that was lost before settle() returned true. Some of the memory may belong to other
  // monitors.
  void take(Lost& out);

 private:
  explicit MemoryMonitor(std::shared_ptr<MemoryEvents> events);

  const std::shared_ptr<MemoryEvents> events_;
  std::vector<MemoryRange> watched_;
  uint64_t seen_ = 0;   // the events' sequence number at the last take()
  uint64_t taken_ = 0;  // number of the process's losses that take() has reported
};

}  // namespace hetcomm::rdma
