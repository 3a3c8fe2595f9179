// The memory that one endpoint has exposed to its peer. What names an entry on the wire is its
// slot and the slot's generation, so that an immediate of the peer's finds what it was meant for or
// nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transports/rdma/registration_cache.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct Exposure {
  Registration* registration = nullptr;  // none for empty memory
  uint64_t cookie = 0;
  uint64_t length = 0;
  uint64_t arrived = 0;  // bytes that were reported
  uint32_t generation = 0;
  Access access = Access::kPutTarget;
  bool live = false;
};

class ExposureTable {
 public:
  explicit ExposureTable(RegistrationCache& cache) : cache_(cache) {}
  ~ExposureTable() { clear(); }
  ExposureTable(const ExposureTable&) = delete;
  ExposureTable& operator=(const ExposureTable&) = delete;

  Result<RemoteKey> add(const iovec& piece, Access access, uint64_t cookie);
  // Nullptr when nothing live is called that.
  Exposure* find(const RemoteKey& key);
  Exposure* find(uint32_t immediate);
  void remove(Exposure& exposure);
  // The same, and on return the peer has no access. False: that takes more than this table can do.
  bool revoke(Exposure& exposure);
  void clear();

 private:
  void free(Exposure& exposure);

  RegistrationCache& cache_;
  std::vector<Exposure> slots_;
  std::deque<uint32_t> free_;  // the longest unused is taken first
};

}  // namespace hetcomm::rdma
