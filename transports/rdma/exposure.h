// The memory that one endpoint has exposed to its peer. Its slot and the slot's generation name an
// entry on the wire, so that an immediate from the peer finds the intended entry or nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "transports/rdma/memory_region_cache.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct Exposure {
  MemoryRegion* memory_region = nullptr;  // null for empty memory, and for copied targets
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
  // Nullptr when the name is that of nothing live.
  Exposure* find(const RemoteKey& key);
  Exposure* find(uint32_t immediate);
  void remove(Exposure& exposure);
  // Removes |exposure|. After the return the peer has no access. False: this table cannot ensure
  // that.
  bool revoke(Exposure& exposure);
  void clear();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t reserve();
  void free(Exposure& exposure);

  MemoryRegionCache& cache_;
  std::vector<Exposure> slots_;
  // The list of unused slots: the longest unused is taken first. It runs through the slots, so that
  // none is lost for lack of memory.
  uint32_t first_free_ = kNone;
  uint32_t last_free_ = kNone;
};

}  // namespace hetcomm::rdma
