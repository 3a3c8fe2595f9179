#include "transports/tcp/bulk_queue.h"

#include <algorithm>

namespace hetcomm::tcp {
namespace {

// What Bulk::scratch holds while the bulk is here.
enum Slot : size_t { kFramedBytes, kSegment, kWithin, kPlaceAndFrames };

enum class Place : uint64_t { kNowhere, kQueued, kFramed, kCompleted };

constexpr uint64_t kPlaceMask = 7;
constexpr uint64_t kOneFrame = 8;

Place place(const Bulk& bulk) {
  return static_cast<Place>(bulk.scratch[kPlaceAndFrames] & kPlaceMask);
}
void set_place(Bulk& bulk, Place place) {
  uint64_t& word = bulk.scratch[kPlaceAndFrames];
  word = (word & ~kPlaceMask) | static_cast<uint64_t>(place);
}
bool has_frames_under_way(const Bulk& bulk) { return bulk.scratch[kPlaceAndFrames] >= kOneFrame; }

SegmentCursor load_cursor(const Bulk& bulk) {
  return {.position = bulk.local.offset + bulk.scratch[kFramedBytes],
          .within = bulk.scratch[kWithin],
          .index = static_cast<size_t>(bulk.scratch[kSegment])};
}
void store_cursor(Bulk& bulk, const SegmentCursor& cursor) {
  bulk.scratch[kFramedBytes] = cursor.position - bulk.local.offset;
  bulk.scratch[kSegment] = cursor.index;
  bulk.scratch[kWithin] = cursor.within;
}

}  // namespace

void BulkQueue::List::push(Bulk& bulk) {
  bulk.next = nullptr;
  (first == nullptr ? first : last->next) = &bulk;
  last = &bulk;
}

Bulk* BulkQueue::List::pop() {
  Bulk* bulk = first;
  if (bulk == nullptr) return nullptr;
  first = bulk->next;
  bulk->next = nullptr;
  return bulk;
}

void BulkQueue::List::remove(Bulk& bulk) {
  Bulk* before = nullptr;
  for (Bulk* at = first; at != nullptr; before = at, at = at->next) {
    if (at != &bulk) continue;
    (before == nullptr ? first : before->next) = bulk.next;
    if (last == &bulk) last = before;
    bulk.next = nullptr;
    return;
  }
}

void BulkQueue::push(Bulk& bulk) {
  bulk.scratch = {};
  if (bulk.local.length == 0) {
    set_place(bulk, Place::kCompleted);
    completed_.push(bulk);
    return;
  }
  SegmentCursor cursor;
  cursor.seek(bulk.local.segments, bulk.local.offset);
  store_cursor(bulk, cursor);
  set_place(bulk, Place::kQueued);
  list_of(bulk).push(bulk);
}

BulkQueue::Preview::Preview(const BulkQueue& queue) : normal_(queue.normal_.first) {
  start(queue.high_.first);
}

void BulkQueue::Preview::start(Bulk* bulk) {
  if (bulk == nullptr) bulk = std::exchange(normal_, nullptr);
  bulk_ = bulk;
  if (bulk == nullptr) return;
  cursor_ = load_cursor(*bulk);
  offset_ = bulk->scratch[kFramedBytes];
}

bool BulkQueue::Preview::next(uint32_t max_length, PutFrame& out) {
  if (bulk_ == nullptr) return false;
  const uint64_t left = bulk_->local.length - offset_;
  out.bulk = bulk_;
  out.offset = offset_;
  out.length = static_cast<uint32_t>(std::min<uint64_t>(max_length, left));
  out.start = cursor_;
  cursor_.advance(bulk_->local.segments, out.length);
  out.end = cursor_;
  offset_ += out.length;
  if (out.length == left) start(bulk_->next);
  return true;
}

void BulkQueue::commit(const PutFrame& frame) {
  Bulk& bulk = *frame.bulk;
  store_cursor(bulk, frame.end);
  bulk.scratch[kPlaceAndFrames] += kOneFrame;
  if (bulk.scratch[kFramedBytes] < bulk.local.length) return;
  list_of(bulk).pop();
  set_place(bulk, Place::kFramed);
}

void BulkQueue::frame_sent(Bulk& bulk) {
  bulk.scratch[kPlaceAndFrames] -= kOneFrame;
  if (has_frames_under_way(bulk) || place(bulk) != Place::kFramed) return;
  set_place(bulk, Place::kCompleted);
  completed_.push(bulk);
}

Bulk* BulkQueue::pop_completed() {
  Bulk* bulk = completed_.pop();
  if (bulk != nullptr) set_place(*bulk, Place::kNowhere);
  return bulk;
}

void BulkQueue::remove(Bulk& bulk) {
  if (place(bulk) == Place::kQueued) list_of(bulk).remove(bulk);
  if (place(bulk) == Place::kCompleted) completed_.remove(bulk);
  bulk.scratch = {};
}

void BulkQueue::drop_unsent() {
  for (List* list : {&high_, &normal_}) {
    while (Bulk* bulk = list->pop()) bulk->scratch = {};
  }
}

}  // namespace hetcomm::tcp
