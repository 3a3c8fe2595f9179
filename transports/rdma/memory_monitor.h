// Reports exactly which watched memory was unmapped, moved or thrown away (munmap, mremap, brk,
// mmap over it, madvise), before the call that did it has returned. It uses only the events of the
// kernel's userfaultfd. Memory is watched in write-protect mode and never protected, so no access
// ever faults.
//
// The kernel holds the caller of munmap until the event was read, which needs a thread. The thread
// takes no lock that is ever held during an allocation, and allocates nothing itself, since it
// could wait for its own event otherwise.
//
// The caller is held, but not the addresses: another thread may have mapped them again before the
// event is there. The kernel counts changes in progress from before the memory goes, and answers
// "again" to other requests until they are over. settle() checks that.
//
// Only one descriptor can watch a piece of memory, so the process has one descriptor, and one
// thread, for all monitors. They begin with the first monitor and end with the last.
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

// One user's view of the events; not for several threads at a time.
class MemoryMonitor {
 public:
  // kUnsupported where the kernel or the container does not allow it.
  static Result<std::unique_ptr<MemoryMonitor>> create();
  // Gives up the ranges that are still watched.
  ~MemoryMonitor();
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  // |range| is whole pages. False: this memory cannot be watched. It belongs to a file, or
  // something other than a monitor watches it. Shared memory can be watched from Linux 5.19 on,
  // except that pages that go by its descriptor (ftruncate, fallocate) cause no event. Ranges may
  // overlap, also those of several monitors. Memory in several ranges stays watched until the last
  // of them is given up.
  bool watch(const MemoryRange& range);
  // Call once for each watch() that succeeded. The memory may have gone since.
  void unwatch(const MemoryRange& range);

  // True: anything_lost() covers all watched memory that is free for others by now. False: a call
  // that unmaps takes long, and watched memory may be lost without a report yet. Costs a system
  // call.
  bool settle();

  static constexpr size_t kMax = 256;
  struct Lost {
    std::array<MemoryRange, kMax> ranges;
    size_t count = 0;
    bool all = false;  // too many to name
  };
  // False: nothing was lost since the last take(). Costs one load.
  bool anything_lost() const;
  // Reports memory that was lost by calls that have returned, or before settle(). Some may be other
  // monitors' memory.
  void take(Lost& out);

 private:
  explicit MemoryMonitor(std::shared_ptr<MemoryEvents> events);

  const std::shared_ptr<MemoryEvents> events_;
  std::vector<MemoryRange> watched_;
  uint64_t seen_ = 0;   // of the events' sequence
  uint64_t taken_ = 0;  // of all losses ever
};

}  // namespace hetcomm::rdma
