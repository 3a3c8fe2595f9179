#include "transports/rdma/bulk_queue.h"

#include <algorithm>
#include <new>

namespace hetcomm::rdma {

void BulkQueue::List::push(Transfer& transfer) {
  transfer.next = nullptr;
  (first == nullptr ? first : last->next) = &transfer;
  last = &transfer;
}

void BulkQueue::List::remove(Transfer& transfer) {
  Transfer* before = nullptr;
  for (Transfer* at = first; at != nullptr; before = at, at = at->next) {
    if (at != &transfer) continue;
    (before == nullptr ? first : before->next) = transfer.next;
    if (last == &transfer) last = before;
    transfer.next = nullptr;
    return;
  }
}

inline Transfer& BulkQueue::take_spare(Bulk& bulk, const Key& key, bool get, bool copied) {
  if (spare_ == nullptr) spare_ = all_.emplace_back(std::make_unique<Transfer>()).get();
  Transfer& transfer = *spare_;
  spare_ = transfer.next;
  ++in_use_;
  transfer.bulk = &bulk;
  transfer.key = key;
  transfer.begun = 0;
  transfer.under_way = 0;
  transfer.code = Code::kOk;
  transfer.get = get;
  transfer.copied = copied;
  transfer.direct = false;
  transfer.high_priority = bulk.high_priority;
  bulk.scratch[0] = reinterpret_cast<uintptr_t>(&transfer);
  return transfer;
}

Transfer& BulkQueue::push_posted(Bulk& bulk, const Key& key) {
  Transfer& transfer = take_spare(bulk, key, false, true);
  transfer.state = BulkState::kPosted;
  return transfer;
}

Transfer& BulkQueue::push(Bulk& bulk, const Key& key, bool get, bool copied) {
  Transfer& transfer = take_spare(bulk, key, get, copied);
  transfer.cursor = {};
  transfer.cursor.seek(bulk.local.extents, bulk.local.offset);
  if (bulk.local.length == 0) {
    complete(transfer);
  } else {
    transfer.state = BulkState::kQueued;
    list_of(transfer).push(transfer);
  }
  return transfer;
}

Result<MemoryRegion*> BulkQueue::memory_region(Transfer& transfer, size_t index) noexcept {
  if (!transfer.memory_regions.empty() && transfer.memory_regions.back().first == index) {
    return transfer.memory_regions.back().second;
  }
  try {
    return acquire(transfer, index);
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
}

Result<MemoryRegion*> BulkQueue::acquire(Transfer& transfer, size_t index) {
  // Reserves space first, since nothing may fail once the region is acquired.
  auto& memory_regions = transfer.memory_regions;
  if (memory_regions.size() == memory_regions.capacity()) {
    memory_regions.reserve(std::max<size_t>(4, 2 * memory_regions.size()));
  }
  // The bulk may be one chunk of a larger transfer. It then uses only part of its first and last
  // extents.
  const ExtentView& local = transfer.bulk->local;
  ExtentCursor cursor = transfer.cursor;
  const iovec part = cursor.next(local.extents, local.offset + local.length - cursor.position);
  Result<MemoryRegion*> made =
      cache_.acquire_part(local.extents[index], part, transfer.get ? IBV_ACCESS_LOCAL_WRITE : 0);
  if (made.ok()) memory_regions.emplace_back(index, made.value());
  return made;
}

void BulkQueue::complete(Transfer& transfer) {
  release(transfer);
  if (transfer.bulk == nullptr) {
    free(transfer);
    return;
  }
  transfer.state = BulkState::kCompleted;
  completed_.push(transfer);
}

void BulkQueue::all_posted(Transfer& transfer) {
  list_of(transfer).remove(transfer);
  transfer.state = BulkState::kPosted;
  if (transfer.under_way == 0) complete(transfer);
}

void BulkQueue::fragment_completed(Transfer& transfer) {
  --transfer.under_way;
  if (transfer.under_way == 0 && transfer.state == BulkState::kPosted) complete(transfer);
}

std::pair<Bulk*, Code> BulkQueue::pop_completed() {
  Transfer* transfer = completed_.first;
  if (transfer == nullptr) return {nullptr, Code::kOk};
  completed_.remove(*transfer);
  const std::pair<Bulk*, Code> result(transfer->bulk, transfer->code);
  free(*transfer);
  return result;
}

bool BulkQueue::cancel(Bulk& bulk) {
  Transfer* transfer = of(bulk);
  if (transfer == nullptr || transfer->bulk != &bulk) return true;
  // A copied put no longer reads the bulk's memory. A copied get is written to that memory only by
  // BulkSender::copy_out(), which skips cancelled bulks. A put to a region is different, since
  // nothing at the peer fences the region: its fragments in flight could arrive after later puts
  // over another connection.
  const bool into_region = transfer->key.kind == KeyKind::kRegion && !transfer->get;
  if (transfer->under_way > 0 && (transfer->direct || into_region)) return false;
  bulk.scratch[0] = 0;
  transfer->bulk = nullptr;
  switch (transfer->state) {
    case BulkState::kQueued:
      list_of(*transfer).remove(*transfer);
      transfer->state = BulkState::kPosted;
      if (transfer->under_way == 0) complete(*transfer);
      break;
    case BulkState::kCompleted:
      completed_.remove(*transfer);
      free(*transfer);
      break;
    default:
      break;
  }
  return true;
}

void BulkQueue::release(Transfer& transfer) {
  for (const auto& [index, memory_region] : transfer.memory_regions) cache_.release(memory_region);
  transfer.memory_regions.clear();
}

void BulkQueue::free(Transfer& transfer) {
  release(transfer);
  if (transfer.bulk != nullptr) transfer.bulk->scratch[0] = 0;
  transfer.bulk = nullptr;
  transfer.state = BulkState::kFree;
  transfer.next = spare_;
  spare_ = &transfer;
  --in_use_;
}

void BulkQueue::drop_all() {
  high_ = normal_ = completed_ = {};
  for (const auto& transfer : all_) {
    if (transfer->state != BulkState::kFree) free(*transfer);
  }
}

}  // namespace hetcomm::rdma
