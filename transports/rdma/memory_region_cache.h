// MemoryRegionCache creates memory regions over user memory, and caches them for reuse where that
// is safe.
//
// Reuse is safe if the cache is notified when memory disappears. A memory region pins pages, and
// memory that is unmapped and mapped again has different pages. The device would then write to
// pages that the process no longer maps. MemoryMonitor (userfaultfd events) reports lost memory to
// the cache. Memory that cannot be watched is registered for each operation and released after it,
// which is slower but always correct. If the kernel does not allow watching, this applies to all
// memory. Hooks on malloc and munmap are not used, since they miss calls that bypass them.
//
// A memory region whose key is given to peers covers exactly the requested range, so peers can
// access nothing else. When cached regions exceed |limit_bytes|, idle ones are dropped, least
// recently used first.
//
// After fork() the child must not use the context. The parent's memory regions remain correct,
// since the kernel immediately copies pinned pages for the child. Before Linux 5.12, ibv_fork_init
// protects them instead.
//
// Device memory is identified by its placeholder (DeviceRange). While it is attached, one memory
// region covers all of it for local access. Other regions of device memory may be cached until
// detach(), since device memory does not disappear before that.
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
  // Returns the address of |byte| for work requests and keys.
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
  uint64_t shift_ = 0;  // added to an address of this process, modulo 2^64; 0 for host memory
  uint32_t users_ = 0;
  bool cached_ = false;
  bool watched_ = false;
  std::list<MemoryRegion>::iterator self_;
};

// Calls ibv_reg_mr. If memory or a limit is exhausted, the text of the failure explains
// RLIMIT_MEMLOCK.
Result<ibv_mr*> register_memory(const Verbs& verbs, ibv_pd* pd, void* address, uint64_t length,
                                int access);

class MemoryRegionCache {
 public:
  // If |limit_bytes| is 0, nothing is cached. If |strict| is true, memory regions whose keys peers
  // may hold are neither cached nor shared between users.
  MemoryRegionCache(const Verbs& verbs, ibv_pd* pd, uint64_t limit_bytes, bool strict, Log& log);
  ~MemoryRegionCache();
  MemoryRegionCache(const MemoryRegionCache&) = delete;
  MemoryRegionCache& operator=(const MemoryRegionCache&) = delete;

  // Returns a memory region that is valid until release(). Each successful acquire() needs one
  // release().
  Result<MemoryRegion*> acquire(const void* address, uint64_t length, int access);
  // Acquires |part| of |whole|. The region covers all of |whole| if that is device memory or can be
  // cached, since the other parts are usually acquired next. Otherwise the region covers only
  // |part|, since each part is pinned and released separately.
  Result<MemoryRegion*> acquire_part(const iovec& whole, const iovec& part, int access);
  void release(MemoryRegion* region);
  // Releases |region|. Returns true if no peer can access the memory through it any longer. Returns
  // false without effect if the region has other users or the device does not release it.
  bool revoke(MemoryRegion* region);

  // Returns whether the CPU may copy the bytes of |extents|, which could not be registered for the
  // reason |why|. Logs the first such case.
  bool may_copy(const Status& why, Extents extents);

  // Creates a memory region that is not cached. The caller destroys it.
  Result<Registered> register_alone(const void* address, uint64_t length, int access);

  Status attach(const DeviceRange& range, DeviceWay way);
  // Detaches the device memory at |placeholder|. All regions acquired in it must have been
  // released.
  void detach(const std::byte* placeholder);
  // Returns whether any of |extents| is device memory.
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
  // Longest extent that acquire_part() still tries to register as a whole. Lowered when the
  // kernel refuses an extent even though no region is idle.
  uint64_t most_bytes_ = UINT64_MAX;
  uint64_t cached_bytes_ = 0;
  List all_;   // in use
  List idle_;  // cached but unused; most recently used first
  std::unordered_map<MemoryRegion::Id, MemoryRegion*, MemoryRegion::Hash> known_;
  std::unique_ptr<MemoryMonitor> monitor_;
  std::map<uint64_t, std::unique_ptr<Attached>> devices_;  // by the placeholder's start
};

}  // namespace hetcomm::rdma
