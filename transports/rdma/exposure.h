// ExposureTable records the memory that one endpoint has exposed to its peer. On the wire an entry
// is identified by its slot and the slot's generation, so an immediate from the peer finds either
// the intended entry or nothing. A generation is reused only after 2^18 uses of its slot.
#pragma once

#include <cstdint>
#include <vector>

#include "transports/rdma/memory_region_cache.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct Exposure {
  MemoryRegion* memory_region = nullptr;  // null for empty memory and copied targets
  // Address of a put target that could not be registered: the CPU copies fragments to it. Null for
  // all other memory.
  std::byte* copied_to = nullptr;
  uint64_t cookie = 0;
  uint64_t length = 0;
  uint64_t arrived = 0;  // bytes reported by on_put
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

  // Adds |piece|. A target that cannot be registered for lack of resources becomes a copied target,
  // unless it is device memory.
  Result<RemoteKey> add(const iovec& piece, Access access, uint64_t cookie);
  // Returns the live entry that |key| refers to; nullptr if there is none.
  Exposure* find(const RemoteKey& key);
  Exposure* find(uint32_t immediate);
  void remove(Exposure& exposure);
  // Ends the peer's access to |exposure| and removes it. Returns false without effect if the table
  // cannot end the access.
  bool revoke(Exposure& exposure);
  void clear();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t reserve();
  void free(Exposure& exposure);

  MemoryRegionCache& cache_;
  std::vector<Exposure> slots_;
  // Head and tail of the list of unused slots. The slot that has been unused longest is reused
  // first. The list is linked through the slots, so freeing a slot needs no memory.
  uint32_t first_free_ = kNone;
  uint32_t last_free_ = kNone;
};

}  // namespace hetcomm::rdma
