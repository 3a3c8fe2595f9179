// Matching of receives with messages on one channel of one communicator.
//
// Guarantees: messages of one source are matched in the order in which they arrived here (the pair
// keeps it equal to the order in which they were sent); receives are tried in the order in which
// they were posted. Exact receives cost O(1) whatever is outstanding; receives with wildcards, and
// messages while such receives are posted, walk a list.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/operation.h"
#include "transports/transport.h"

namespace hetcomm {

class MessageReceiver;

// A message that has begun to arrive and is not yet in its receiver's buffer.
struct Incoming {
  // Room for the |length| eager bytes of a message that waits unmatched; false when memory is
  // exhausted.
  bool make_room(BlockPool& pool) HETCOMM_UNDER_BATON {
    bytes = length <= few.size() ? few.data() : static_cast<std::byte*>(pool.take(length));
    return bytes != nullptr;
  }
  void drop_bytes(BlockPool& pool) HETCOMM_UNDER_BATON {
    if (bytes != nullptr && bytes != few.data()) pool.give(bytes, length);
    bytes = nullptr;
  }
  ConstByteSpan payload() const { return {bytes, bytes != nullptr ? length : 0}; }

  Incoming* next_in_bucket;  // set by the match table
  Incoming* previous_in_bucket;
  Incoming* next_arrived = nullptr;
  Incoming* next_arriving;
  Incoming* previous_arrived = nullptr;
  class MatchTable* table;
  bool queued = false;    // in the unexpected queue of |table|
  bool arriving = false;  // eager bytes are missing; in a list of |receiver|
  bool rendezvous = false;
  int32_t source = -1;
  MessageReceiver* receiver = nullptr;  // which made it
  Operation* operation = nullptr;       // matched
  uint64_t tag = 0;
  uint64_t length = 0;
  uint64_t received = 0;       // eager bytes that are here
  uint64_t credit = 0;         // to be given back when the message leaves the queue
  std::byte* bytes = nullptr;  // null: matched, or none are kept here
  uint64_t sender_id = 0;      // of a rendezvous, as the next two, or of a pulled message
  uint64_t rail;
  RemoteKey source_key;
  uint64_t transports = ~uint64_t{0};  // of the sender, that are near the data
  std::array<std::byte, 64> few;       // bytes of a short message
};

class MatchTable {
 public:
  MatchTable();

  // Puts a receive at the end of the queue.
  void post(Operation* receive) HETCOMM_UNDER_BATON {
    if (posted_count_ >= 4 * posted_.size()) [[unlikely]]
      grow_posted();
    receive->links.stamp = ++next_stamp_;
    append(list_of(*receive), receive);
    ++posted_count_;
  }
  // Takes a posted receive out again.
  void remove(Operation* receive) HETCOMM_UNDER_BATON;
  // Takes out and returns the first posted receive that matches, null if none does.
  Operation* match_message(int32_t source, uint64_t tag) HETCOMM_UNDER_BATON {
    if (posted_count_ == 0) return nullptr;
    PostedList& list = posted_[bucket(source, tag)];
    Operation* exact = list.first;
    while (exact != nullptr && (exact->peer != source || exact->tag != tag))
      exact = exact->links.next;
    if (wildcards_.first != nullptr) [[unlikely]]
      return match_wildcards(exact, source, tag);
    if (exact == nullptr) [[unlikely]]
      return nullptr;
    unlink(list, exact);
    --posted_count_;
    return exact;
  }

  // Queues a message that found no receive.
  void add_unexpected(Incoming* message) HETCOMM_UNDER_BATON;
  void remove_unexpected(Incoming* message) HETCOMM_UNDER_BATON;
  // The first queued message that the arguments match (source -1: any), null if none; it stays
  // queued.
  Incoming* find_unexpected(int32_t source, uint64_t tag,
                            uint64_t ignore) const HETCOMM_UNDER_BATON {
    return arrived_.next_arrived == nullptr ? nullptr : search_unexpected(source, tag, ignore);
  }

  size_t posted_count() const HETCOMM_UNDER_BATON { return posted_count_; }
  Incoming* first_unexpected() const HETCOMM_UNDER_BATON { return arrived_.next_arrived; }

 private:
  struct PostedList {
    Operation* first = nullptr;
    Operation* last = nullptr;
  };
  struct UnexpectedList {
    Incoming* first = nullptr;
    Incoming* last = nullptr;
  };
  static bool is_exact(const Operation& receive) {
    return receive.peer >= 0 && receive.ignore == 0;
  }
  size_t bucket(int32_t source, uint64_t tag) const HETCOMM_UNDER_BATON {
    const uint64_t mixed = (tag ^ static_cast<uint64_t>(source) << 40) * 0x9e3779b97f4a7c15u;
    return static_cast<size_t>(mixed >> shift_);
  }
  PostedList& list_of(const Operation& receive) HETCOMM_UNDER_BATON {
    return is_exact(receive) ? posted_[bucket(receive.peer, receive.tag)] : wildcards_;
  }
  static void append(PostedList& list, Operation* receive) {
    receive->links.next = nullptr;
    receive->links.previous = list.last;
    (list.last != nullptr ? list.last->links.next : list.first) = receive;
    list.last = receive;
  }
  static void unlink(PostedList& list, Operation* receive) {
    (receive->links.previous != nullptr ? receive->links.previous->links.next : list.first) =
        receive->links.next;
    (receive->links.next != nullptr ? receive->links.next->links.previous : list.last) =
        receive->links.previous;
    receive->links.next = nullptr;
    receive->links.previous = nullptr;
  }
  Operation* match_wildcards(Operation* exact, int32_t source, uint64_t tag) HETCOMM_UNDER_BATON;
  Incoming* search_unexpected(int32_t source, uint64_t tag,
                              uint64_t ignore) const HETCOMM_UNDER_BATON;
  void grow_posted() HETCOMM_UNDER_BATON;

  unsigned shift_;
  std::vector<PostedList> posted_;
  std::vector<UnexpectedList> unexpected_;
  PostedList wildcards_;
  Incoming arrived_;  // sentinel of the arrival list: next = oldest, previous = newest
  uint64_t next_stamp_ = 0;
  size_t posted_count_ = 0;
};

}  // namespace hetcomm
