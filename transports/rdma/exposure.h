// The memory that one endpoint has exposed to its peer. What names an entry on the wire is its
// slot and the slot's generation, so that an immediate of the peer's finds what it was meant for or
// nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "transports/rdma/memory_region_cache.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct Exposure {
  MemoryRegion* memory_region = nullptr;  // none for empty memory, and for what is copied to
  // A target that could not be registered: fragments are copied to it. Null: the device writes.
  std::byte* copied_to = nullptr;
  uint64_t cookie = 0;
  uint64_t length = 0;
  uint64_t arrived = 0;  // bytes that were reported
  uint32_t generation = 0;
  Access access = Access::kPutTarget;
  bool live = false;
  uint32_t next_free = UINT32_MAX;
};

class ExposureTable {
 public:
  explicit ExposureTable(MemoryRegionCache& cache) : cache_(cache) {}
  ~ExposureTable() { clear(); }
  ExposureTable(const ExposureTable&) = delete;
  ExposureTable& operator=(const ExposureTable&) = delete;

  // A target that cannot be registered is copied to, unless it is memory of a device.
  Result<RemoteKey> add(const iovec& piece, Access access, uint64_t cookie);
  // Nullptr when nothing live is called that.
  Exposure* find(const RemoteKey& key);
  Exposure* find(uint32_t immediate);
  void remove(Exposure& exposure);
  // Removes it, and on return the peer has no access. False: that takes more than this table can
  // do.
  bool revoke(Exposure& exposure);
  void clear();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t reserve();
  void free(Exposure& exposure);

  MemoryRegionCache& cache_;
  std::vector<Exposure> slots_;
  // The list of unused slots: the longest unused is taken first. It runs through the slots, so that
  // none is forgotten for want of memory.
  uint32_t first_free_ = kNone;
  uint32_t last_free_ = kNone;
};

}  // namespace hetcomm::rdma
