// ReceivePool holds the receive slots of a transport, which are posted to the shared receive queue.
// The slots are parts of slabs of registered memory. Slabs are added when connections need them,
// and are never removed.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/numa_memory.h"
#include "transports/rdma/device.h"

namespace hetcomm::rdma {

// Page-aligned memory for slots, which stays registered until destruction.
class Slab {
 public:
  // Allocates the memory near NUMA node |node|.
  static Result<Slab> create(Device& device, size_t bytes, int node = kAnyNumaNode);
  Slab() = default;
  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&& other) noexcept;
  ~Slab();

  std::byte* data() const { return memory_.get(); }
  uint32_t lkey() const { return mr_->lkey; }

 private:
  const Verbs* verbs_ = nullptr;
  NumaMemory memory_;
  ibv_mr* mr_ = nullptr;
};

class ReceivePool {
 public:
  // Allocates slots near NUMA node |node|.
  ReceivePool(Device& device, uint32_t slot_bytes, int node = kAnyNumaNode)
      : device_(device), slot_bytes_(slot_bytes), node_(node) {}

  // Ensures that at least |count| slots exist. Each is posted, in use, or about to be reposted.
  Status ensure(uint32_t count);
  // Adds slots. Call when the device reports few slots although enough were posted: a broken queue
  // pair may have consumed slots. Returns false if no slots can be added.
  bool replace_lost();
  // Returns whether slots must have been lost, given that the device has reported few slots. |used|
  // is the maximum number of slots that peers can have consumed.
  bool has_lost(uint32_t used) const { return total_ > used + kFew; }

  const std::byte* slot(uint32_t index) const {
    return slabs_[index / kSlabSlots].data() + size_t{index % kSlabSlots} * slot_bytes_;
  }
  bool valid(uint64_t index) const { return index < total_; }
  // Records that the message in slot |index| has been used. The next flush() posts the slot. Never
  // fails, since space for the record is reserved.
  void recycle(uint32_t index) { recycled_.push_back(index); }
  size_t unposted() const { return recycled_.size(); }
  // Posts recycled slots. Returns false if the device refuses them. The transport is then unusable.
  bool flush() { return recycled_.empty() || post(); }

 private:
  static constexpr uint32_t kSlabSlots = 32;
  static constexpr uint32_t kFew = 8;  // slots left in the queue when the device warns
  bool post();
  void warn_when_low();
  Status add_slab();

  Device& device_;
  const uint32_t slot_bytes_;
  const int node_;
  uint32_t total_ = 0;
  std::vector<Slab> slabs_;
  std::vector<uint32_t> recycled_;
};

// Bit that marks the work request ids of receives. The other bits hold the slot index.
inline constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

}  // namespace hetcomm::rdma
