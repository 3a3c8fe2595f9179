#include "transports/tcp/bulk_queue.h"

#include <algorithm>

namespace hetcomm::tcp {
namespace {

// The use of the words in Bulk::scratch while the bulk is in the queue.
enum ScratchWord : size_t { kFramedBytes, kExtent, kWithin, kStateAndFrames };

enum class BulkState : uint64_t { kNowhere, kQueued, kFramed, kCompleted };

constexpr uint64_t kStateMask = 7;
constexpr uint64_t kOneFrame = 8;

BulkState state(const Bulk& bulk) {
  return static_cast<BulkState>(bulk.scratch[kStateAndFrames] & kStateMask);
}
void set_state(Bulk& bulk, BulkState state) {
  uint64_t& word = bulk.scratch[kStateAndFrames];
  word = (word & ~kStateMask) | static_cast<uint64_t>(state);
}
bool has_frames_under_way(const Bulk& bulk) { return bulk.scratch[kStateAndFrames] >= kOneFrame; }

ExtentCursor load_cursor(const Bulk& bulk) {
  return {.position = bulk.local.offset + bulk.scratch[kFramedBytes],
          .within = bulk.scratch[kWithin],
          .index = static_cast<size_t>(bulk.scratch[kExtent])};
}
void store_cursor(Bulk& bulk, const ExtentCursor& cursor) {
  bulk.scratch[kFramedBytes] = cursor.position - bulk.local.offset;
  bulk.scratch[kExtent] = cursor.index;
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
    set_state(bulk, BulkState::kCompleted);
    completed_.push(bulk);
    return;
  }
  ExtentCursor cursor;
  cursor.seek(bulk.local.extents, bulk.local.offset);
  store_cursor(bulk, cursor);
  set_state(bulk, BulkState::kQueued);
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
  cursor_.advance(bulk_->local.extents, out.length);
  out.end = cursor_;
  offset_ += out.length;
  if (out.length == left) start(bulk_->next);
  return true;
}

void BulkQueue::commit(const PutFrame& frame) {
  Bulk& bulk = *frame.bulk;
  store_cursor(bulk, frame.end);
  bulk.scratch[kStateAndFrames] += kOneFrame;
  if (bulk.scratch[kFramedBytes] < bulk.local.length) return;
  list_of(bulk).pop();
  set_state(bulk, BulkState::kFramed);
}

void BulkQueue::frame_sent(Bulk& bulk) {
  bulk.scratch[kStateAndFrames] -= kOneFrame;
  if (has_frames_under_way(bulk) || state(bulk) != BulkState::kFramed) return;
  set_state(bulk, BulkState::kCompleted);
  completed_.push(bulk);
}

Bulk* BulkQueue::pop_completed() {
  Bulk* bulk = completed_.pop();
  if (bulk != nullptr) set_state(*bulk, BulkState::kNowhere);
  return bulk;
}

void BulkQueue::remove(Bulk& bulk) {
  if (state(bulk) == BulkState::kQueued) list_of(bulk).remove(bulk);
  if (state(bulk) == BulkState::kCompleted) completed_.remove(bulk);
  bulk.scratch = {};
}

void BulkQueue::drop_unsent() {
  for (List* list : {&high_, &normal_}) {
    while (Bulk* bulk = list->pop()) bulk->scratch = {};
  }
}

}  // namespace hetcomm::tcp
