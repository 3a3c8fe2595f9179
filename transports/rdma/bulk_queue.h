// The puts and gets of one endpoint, and the state of each:
//
//   push -> queued -(last fragment posted)-> posted -(last fragment completed)-> completed -> pop
//
// High priority comes first. A fragment is a work request; BulkSender cuts them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/extent_cursor.h"
#include "transports/rdma/memory_region_cache.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

enum class BulkState : uint8_t { kFree, kQueued, kPosted, kCompleted };

struct Transfer {
  Bulk* bulk = nullptr;  // nullptr: cancelled; fragments in flight use send slots only
  Key key;
  ExtentCursor cursor;     // the next byte to be posted
  uint64_t begun = 0;      // bytes posted
  uint32_t under_way = 0;  // fragments posted and not completed
  Code code = Code::kOk;
  bool get = false;
  bool copied = false;  // fragments from here on go through send slots
  bool direct = false;  // the device was given the bulk's own memory
  bool high_priority = false;
  BulkState state = BulkState::kFree;
  Transfer* next = nullptr;
  // The memory regions of pieces that were posted, by index in the extent list.
  std::vector<std::pair<size_t, MemoryRegion*>> memory_regions;
};

class BulkQueue {
 public:
  explicit BulkQueue(MemoryRegionCache& cache) : cache_(cache) {}
  ~BulkQueue() { drop_all(); }
  BulkQueue(const BulkQueue&) = delete;
  BulkQueue& operator=(const BulkQueue&) = delete;

  Transfer& push(Bulk& bulk, const Key& key, bool get, bool copied);
  // Notes a copied put that is about to be posted as one fragment.
  Transfer& push_posted(Bulk& bulk, const Key& key);
  // The transfer that the next fragment is cut from; nullptr if there is none.
  Transfer* front() const { return high_.first != nullptr ? high_.first : normal_.first; }
  // Returns the memory region of the current piece of |transfer|. The caller reports a failure,
  // lack of memory included.
  Result<MemoryRegion*> memory_region(Transfer& transfer, size_t index) noexcept;
  // Notes that all of |transfer| is posted. Completes it when nothing is in flight.
  void all_posted(Transfer& transfer);
  // Notes that one fragment of |transfer| has completed.
  void fragment_completed(Transfer& transfer);
  bool has_completed() const { return completed_.first != nullptr; }
  // Nullptr if there is none.
  std::pair<Bulk*, Code> pop_completed();

  static Transfer* of(const Bulk& bulk) {
    return reinterpret_cast<Transfer*>(static_cast<uintptr_t>(bulk.scratch[0]));
  }
  // Takes the bulk out. False: fragments in flight still use its memory, or a region of the peer.
  bool cancel(Bulk& bulk);
  // Call after the queue pair is gone.
  void drop_all();
  bool idle() const { return in_use_ == 0; }

 private:
  struct List {
    Transfer* first = nullptr;
    Transfer* last = nullptr;
    void push(Transfer& transfer);
    void remove(Transfer& transfer);
  };
  Transfer& take_spare(Bulk& bulk, const Key& key, bool get, bool copied);
  List& list_of(const Transfer& transfer) { return transfer.high_priority ? high_ : normal_; }
  Result<MemoryRegion*> acquire(Transfer& transfer, size_t index);
  void complete(Transfer& transfer);
  void release(Transfer& transfer);
  void free(Transfer& transfer);

  MemoryRegionCache& cache_;
  List high_;
  List normal_;
  List completed_;
  size_t in_use_ = 0;
  std::vector<std::unique_ptr<Transfer>> all_;
  Transfer* spare_ = nullptr;
};

}  // namespace hetcomm::rdma
