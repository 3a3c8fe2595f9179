// BulkQueue holds accepted bulk operations of one kind in processing order: high priority first,
// then in order of arrival.
//
// The list is linked through Bulk::next and the progress of each bulk is stored in Bulk::scratch,
// so accepting a bulk allocates nothing.
#pragma once

#include <bit>
#include <cstdint>

#include "src/base/extent_cursor.h"
#include "transports/transport.h"

namespace hetcomm::shm {

// Loads the position in the local memory, which is stored in the first three words of
// Bulk::scratch. The fourth word is free for the user of the queue.
inline ExtentCursor load_cursor(const Bulk& bulk) {
  return std::bit_cast<ExtentCursor>(
      std::array<uint64_t, 3>{bulk.scratch[0], bulk.scratch[1], bulk.scratch[2]});
}
inline void store_cursor(Bulk& bulk, const ExtentCursor& cursor) {
  const auto words = std::bit_cast<std::array<uint64_t, 3>>(cursor);
  std::copy(words.begin(), words.end(), bulk.scratch.begin());
}

class BulkQueue {
 public:
  bool empty() const { return lists_[0].head == nullptr && lists_[1].head == nullptr; }
  Bulk& front() const { return *(lists_[0].head != nullptr ? lists_[0].head : lists_[1].head); }

  void push(Bulk& bulk) {
    List& list = lists_[bulk.high_priority ? 0 : 1];
    bulk.next = nullptr;
    (list.head == nullptr ? list.head : list.tail->next) = &bulk;
    list.tail = &bulk;
  }
  // Removes |bulk| from any position. Returns false if it is not in the queue.
  bool remove(Bulk& bulk) {
    List& list = lists_[bulk.high_priority ? 0 : 1];
    Bulk* previous = nullptr;
    for (Bulk* at = list.head; at != nullptr; previous = at, at = at->next) {
      if (at != &bulk) continue;
      (previous == nullptr ? list.head : previous->next) = bulk.next;
      if (list.tail == &bulk) list.tail = previous;
      return true;
    }
    return false;
  }
  void clear() { lists_ = {}; }

 private:
  struct List {
    Bulk* head = nullptr;
    Bulk* tail = nullptr;
  };
  std::array<List, 2> lists_;
};

}  // namespace hetcomm::shm
