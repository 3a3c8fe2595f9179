// Tells which watched memory was unmapped, moved or thrown away (munmap, mremap, brk, mmap over it,
// madvise), exactly and before the call that did it has returned: the kernel's userfaultfd, of
// which only the events are used. Memory is watched in write-protect mode and never protected, so
// no access ever faults.
//
// The kernel holds the caller of munmap until the event was read. That needs a thread; it takes no
// lock that is ever held over an allocation, and allocates nothing itself, since it could wait for
// its own event otherwise.
//
// The caller is held, but not the addresses: another thread may have mapped them anew before the
// event is there. The kernel counts what is under way from before the memory goes, and says "again"
// to other requests until it is over; settle() asks for that.
//
// One descriptor can watch a piece of memory, so the process has one, and one thread, for all
// monitors. They begin with the first monitor and end with the last.
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
  // Gives up what is still watched.
  ~MemoryMonitor();
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  // Whole pages. False: this memory cannot be watched (of a file, or watched by somebody else than
  // a monitor). Shared memory can be from Linux 5.19 on, but for pages that go by its descriptor
  // (ftruncate, fallocate), of which there is no event. Ranges may overlap; what is in several, of
  // whichever monitors, stays watched until the last of them is given up.
  bool watch(const MemoryRange& range);
  // Once for each watch() that succeeded. The memory may have gone meanwhile.
  void unwatch(const MemoryRange& range);

  // True: whatever of the watched memory is free for others by now, anything_lost() tells. False:
  // somebody who unmaps takes long, and what is watched may be lost without a word yet. Costs a
  // system call.
  bool settle();

  static constexpr size_t kMax = 256;
  struct Lost {
    std::array<MemoryRange, kMax> ranges;
    size_t count = 0;
    bool all = false;  // too many to name
  };
  // False: nothing was lost since the last take(). Costs one load.
  bool anything_lost() const;
  // Gives memory that was lost by calls that have returned, or before settle(). Some may be other
  // monitors' memory.
  void take(Lost& out);

 private:
  explicit MemoryMonitor(std::shared_ptr<MemoryEvents> events);

  const std::shared_ptr<MemoryEvents> events_;
  std::vector<MemoryRange> watched_;
  uint64_t seen_ = 0;   // of the events' sequence
  uint64_t taken_ = 0;  // of all that was ever lost
};

}  // namespace hetcomm::rdma
