// Memory regions over user memory, kept for reuse where that is safe.
//
// Safe means that the cache notices when the memory goes away. A memory region pins pages, and
// memory that is unmapped and mapped again has other pages. The device would then write to pages
// that no one sees. The mechanism is MemoryMonitor (userfaultfd events). Memory that it cannot
// watch, or all memory where the kernel does not allow it, is registered for each operation and
// released after it: slower, never wrong. Hooks on malloc and munmap are not used, since they miss
// calls that do not go through them.
//
// A memory region covers exactly the range that was asked for, so a peer that has its key reaches
// nothing else. Idle ones are dropped, the least recently used first, beyond |limit_bytes|. After
// fork() the child must not use the context. The parent's memory regions stay right, since the
// kernel copies pinned pages for the child at once (before Linux 5.12: ibv_fork_init).
//
// Memory of devices is named by its placeholder (DeviceRange). For this side's own use, one memory
// region covers all of it as long as it is attached. Memory that peers get keys of is registered
// exactly, and kept until detach(), before which it does not go away.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "src/base/mix64.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/log.h"
#include "transports/rdma/device_registration.h"
#include "transports/rdma/memory_monitor.h"
#include "transports/rdma/verbs.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class MemoryRegion {
 public:
  uint32_t lkey() const { return mr_->lkey; }
  uint32_t rkey() const { return mr_->rkey; }
  // The address by which work requests and keys name |byte| of it.
  uint64_t address_of(const void* byte) const { return reinterpret_cast<uint64_t>(byte) + shift_; }

 private:
  friend class MemoryRegionCache;
  struct Id {
    uint64_t address = 0;
    uint64_t length = 0;
    int access = 0;
    bool operator==(const Id&) const = default;
  };
  struct Hash {
    size_t operator()(const Id& id) const {
      return mix64(mix64(mix64(0, id.address), id.length), static_cast<uint64_t>(id.access));
    }
  };
  Id id_;
  ibv_mr* mr_ = nullptr;
  uint64_t shift_ = 0;  // modulo 2^64; 0 for host memory
  uint32_t users_ = 0;
  bool cached_ = false;
  bool watched_ = false;
  std::list<MemoryRegion>::iterator self_;
};

// ibv_reg_mr with helpful error texts: RLIMIT_MEMLOCK and so on.
Result<ibv_mr*> register_memory(const Verbs& verbs, ibv_pd* pd, void* address, uint64_t length,
                                int access);

class MemoryRegionCache {
 public:
  // |limit_bytes| 0: nothing is kept. |strict|: memory regions that a peer may have a key of are
  // neither kept nor shared between users.
  MemoryRegionCache(const Verbs& verbs, ibv_pd* pd, uint64_t limit_bytes, bool strict, Log& log);
  ~MemoryRegionCache();
  MemoryRegionCache(const MemoryRegionCache&) = delete;
  MemoryRegionCache& operator=(const MemoryRegionCache&) = delete;

  // Valid until release(), which comes as often as acquire() succeeded.
  Result<MemoryRegion*> acquire(const void* address, uint64_t length, int access);
  // Acquires |part| of |whole|. It covers all of |whole| if that can be kept, since the other parts
  // follow. Otherwise it covers only |part|, since each part is pinned and released separately.
  Result<MemoryRegion*> acquire_part(const iovec& whole, const iovec& part, int access);
  void release(MemoryRegion* region);
  // Releases |region|. After the return no peer reaches the memory by it. False: nothing was done,
  // since others use it too, or the device does not release it.
  bool revoke(MemoryRegion* region);

  // True: the processor may copy bytes of |extents|, which cannot be registered for the reason
  // |why|. The first time is logged.
  bool may_copy(const Status& why, Extents extents);

  // Makes a memory region that is not kept. The caller ends it.
  Result<Registered> register_alone(const void* address, uint64_t length, int access);

  Status attach(const DeviceRange& range, DeviceWay way);
  // No part of it is acquired.
  void detach(const std::byte* placeholder);
  // True: one of |extents| is memory of a device.
  bool has_device(Extents extents) const;

  size_t kept() const { return known_.size(); }
  bool watching() const { return monitor_ != nullptr; }

 private:
  using List = std::list<MemoryRegion>;
  struct Attached {
    DeviceRange range;
    DeviceWay way = DeviceWay::kPlain;
    MemoryRegion whole;
  };
  static MemoryRange pages_of(const MemoryRegion::Id& id);
  MemoryRegion* find(const MemoryRegion::Id& id);
  MemoryRegion* use(const MemoryRegion::Id& id);
  bool begin_keeping(const MemoryRegion::Id& id, const Attached* device);
  Result<MemoryRegion*> add(const MemoryRegion::Id& id, const Attached* device, bool keep);
  Result<MemoryRegion*> try_add(const MemoryRegion::Id& id, const Attached* device, bool keep);
  void stop_keeping(const MemoryRegion::Id& id, const Attached* device);
  void forget_lost();
  void forget(MemoryRegion& region);
  void end(MemoryRegion& region, List& list);
  void drop(MemoryRegion& region, List& list);
  void trim(uint64_t room_bytes);
  Attached* find_device(const void* address, uint64_t length) const;
  Result<Registered> make(const MemoryRegion::Id& id, const Attached* device);

  const Verbs& verbs_;
  ibv_pd* pd_;
  Log& log_;
  bool told_of_copying_ = false;
  const uint64_t limit_bytes_;
  const bool strict_;
  // The kernel did not allow more to be registered at a time, even with nothing idle.
  uint64_t most_bytes_ = UINT64_MAX;
  uint64_t cached_bytes_ = 0;
  List all_;   // in use, or not kept
  List idle_;  // cached and unused; most recently used first
  std::unordered_map<MemoryRegion::Id, MemoryRegion*, MemoryRegion::Hash> known_;
  std::unique_ptr<MemoryMonitor> monitor_;
  std::map<uint64_t, std::unique_ptr<Attached>> devices_;  // by the placeholder's begin
};

}  // namespace hetcomm::rdma
