// BulkQueue holds the puts and gets ("bulks") of one endpoint. Each has a state:
//
//   push -> queued -(last fragment posted)-> posted -(last fragment completed)-> completed -> pop
//
// High-priority bulks are posted before all others. A fragment is the part of a bulk that one work
// request transfers. BulkSender cuts the bulks into fragments.
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
  // Null if the bulk was cancelled or the transfer is free. Fragments of a cancelled bulk that are
  // still in flight use none of its memory.
  Bulk* bulk = nullptr;
  Key key;
  ExtentCursor cursor;     // position of the next byte to post
  uint64_t begun = 0;      // bytes posted
  uint32_t under_way = 0;  // fragments posted but not completed
  Code code = Code::kOk;
  bool get = false;
  bool copied = false;  // the remaining fragments go through send slots
  bool direct = false;  // the device accesses the bulk's own memory
  bool high_priority = false;
  BulkState state = BulkState::kFree;
  Transfer* next = nullptr;
  // The memory regions of posted pieces, by index in the extent list.
  std::vector<std::pair<size_t, MemoryRegion*>> memory_regions;
};

class BulkQueue {
 public:
  explicit BulkQueue(MemoryRegionCache& cache) : cache_(cache) {}
  ~BulkQueue() { drop_all(); }
  BulkQueue(const BulkQueue&) = delete;
  BulkQueue& operator=(const BulkQueue&) = delete;

  Transfer& push(Bulk& bulk, const Key& key, bool get, bool copied);
  // Records a copied put that is about to be posted as one fragment.
  Transfer& push_posted(Bulk& bulk, const Key& key);
  // Returns the transfer from which to cut the next fragment; nullptr if there is none.
  Transfer* front() const { return high_.first != nullptr ? high_.first : normal_.first; }
  // Returns a memory region for extent |index|, the current extent of |transfer|. Does not throw:
  // an error, including kOutOfMemory, is returned for the caller to report.
  Result<MemoryRegion*> memory_region(Transfer& transfer, size_t index) noexcept;
  // Records that |transfer| is fully posted. Completes it once none of its fragments is in flight.
  void all_posted(Transfer& transfer);
  // Records that one fragment of |transfer| has completed.
  void fragment_completed(Transfer& transfer);
  bool has_completed() const { return completed_.first != nullptr; }
  // Removes and returns a completed bulk with its code; nullptr if there is none.
  std::pair<Bulk*, Code> pop_completed();

  static Transfer* of(const Bulk& bulk) {
    return reinterpret_cast<Transfer*>(static_cast<uintptr_t>(bulk.scratch[0]));
  }
  // Removes |bulk|. Returns false without effect if fragments in flight use its memory or write to
  // a region of the peer.
  bool cancel(Bulk& bulk);
  // Drops all transfers. Call after the queue pair is destroyed.
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
