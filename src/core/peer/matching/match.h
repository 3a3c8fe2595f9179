// A MatchTable matches receives with messages on one channel of one communicator.
//
// Guarantees: messages from one source are matched in order of arrival, which the pair keeps equal
// to the order of sending. Receives are tried in the order in which they were posted. The cost of a
// receive or a message does not grow with the number of outstanding ones. It grows with the number
// of different masks that the posted receives have. A mask says whether any source is accepted, and
// which bits of the tag are ignored. A search of the unexpected messages has this cost only while
// such searches use at most MatchTable::kMaxIndexes different masks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/id_chains.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/operation_queue.h"
#include "transports/transport.h"

namespace hetcomm {

// An IncomingOwner creates Incoming objects, and keeps those of unmatched messages
// (transfer/message_receiver.h).
class IncomingOwner {
 protected:
  ~IncomingOwner() = default;
};

// An Incoming is a message that has begun to arrive and is not yet in its receiver's buffer.
struct Incoming {
  // Allocates space for the |length| eager bytes of an unmatched message. Returns false if out of
  // memory.
  bool make_room(BlockPool& pool) HETCOMM_UNDER_BATON {
    bytes = length <= few.size() ? few.data() : static_cast<std::byte*>(pool.take(length));
    return bytes != nullptr;
  }
  void drop_bytes(BlockPool& pool) HETCOMM_UNDER_BATON {
    if (bytes != nullptr && bytes != few.data()) pool.give(bytes, length);
    bytes = nullptr;
  }
  ConstByteSpan payload() const { return {bytes, bytes != nullptr ? length : 0}; }

  // The message's hook in one list of a MessageTable.
  struct ListHook {
    Incoming* next;
    Incoming* previous;
  };
  // The message's hooks in the indexes of a MatchTable. The table owns this object.
  struct IndexHooks {
    static constexpr size_t kCount = 4;
    std::array<ListHook, kCount> hooks;
    IndexHooks* next_free;
  };
  ListHook hook;            // set by the match table
  IndexHooks* index_hooks;  // set while the match table has indexes
  Incoming* next_arrived = nullptr;
  Incoming* next_arriving;
  Incoming* previous_arrived = nullptr;
  IdLink<Incoming> id_link;  // set for a message that was announced
  class MatchTable* table;
  bool queued = false;    // is in the unexpected queue of |table|
  bool arriving = false;  // lacks eager bytes, and is in a list of |owner|
  bool rendezvous = false;
  int32_t source = -1;
  IncomingOwner* owner = nullptr;
  Operation* operation = nullptr;  // the matched operation
  uint64_t tag = 0;
  uint64_t length = 0;
  uint64_t received = 0;       // eager bytes that have arrived
  uint64_t credit = 0;         // bytes of credit to return when the message leaves the queue
  std::byte* bytes = nullptr;  // eager bytes; null: the message is matched or keeps none
  // The sender's id for a rendezvous, or for a message that could not be pulled; otherwise 0.
  uint64_t sender_id = 0;
  // For a rendezvous: the connection and the key with which the receiver can read the data.
  uint64_t rail;
  RemoteKey source_key;
  uint64_t transports = ~uint64_t{0};  // the sender's transports near the data
  std::array<std::byte, 64> few;       // holds the bytes of a short message
};

// A MatchMask specifies which parts of a message a receive compares.
struct MatchMask {
  bool any_source = false;
  uint64_t ignore = 0;  // bits of the tag to ignore

  bool operator==(const MatchMask&) const = default;
  static MatchMask of(const Operation& receive) { return {receive.peer < 0, receive.ignore}; }
  // Returns a hash that is equal for messages and receives that may match.
  uint64_t hash(int32_t source, uint64_t tag) const {
    constexpr uint64_t kTagFactor = 0x9e3779b97f4a7c15u;
    constexpr uint64_t kSourceFactor = 0xd6e8feb86659fd93u;
    return (tag & ~ignore) * kTagFactor +
           (any_source ? 0 : static_cast<uint64_t>(source)) * kSourceFactor;
  }
};

// HashedLists holds lists of one kind of object, indexed by the highest bits of a hash. There are
// at least a quarter as many lists as objects, unless memory is exhausted.
template <typename List>
class HashedLists {
 public:
  HashedLists() = default;
  HashedLists(const HashedLists&) = delete;
  HashedLists& operator=(const HashedLists&) = delete;
  HashedLists(HashedLists&&) noexcept = default;
  HashedLists& operator=(HashedLists&&) noexcept = default;

  // Requires an earlier call of make_room().
  List& at(uint64_t hash) { return lists_[hash >> shift_]; }
  const List& at(uint64_t hash) const { return lists_[hash >> shift_]; }
  // Adds lists if there are too few for another object besides |count|. Then calls move(list) for
  // each old list, which moves its objects to the new lists. The order within lists is kept, since
  // each new list is filled from one old list. Throws std::bad_alloc if the first lists cannot be
  // allocated.
  template <typename Move>
  void make_room(size_t count, Move&& move) HETCOMM_UNDER_BATON {
    if (count >= kMaxListLength * lists_.size()) [[unlikely]]
      grow(move);
  }

 private:
  static constexpr size_t kMaxListLength = 4;
  static constexpr size_t kFirst = 64;
  static constexpr unsigned kGrowthBits = 3;

  template <typename Move>
  [[gnu::noinline]] void grow(Move& move) HETCOMM_UNDER_BATON {
    std::vector<List> old;
    if (lists_.empty()) {
      lists_.resize(kFirst);
      shift_ = kFirstShift;
      return;
    }
    try {
      old.resize(lists_.size() << kGrowthBits);
    } catch (const std::bad_alloc&) {
      return;  // the lists become longer than intended
    }
    old.swap(lists_);
    shift_ -= kGrowthBits;
    for (List& list : old) move(list);
  }

  static constexpr unsigned kFirstShift = 64 - 6;
  static_assert(uint64_t{kFirst} << (kFirstShift - 1) == uint64_t{1} << 63);
  std::vector<List> lists_;
  unsigned shift_ = kFirstShift;
};

// A ReceiveTable holds the posted receives that compare the same parts of a message.
class ReceiveTable {
 public:
  explicit ReceiveTable(const MatchMask& mask) : mask_(mask) {}

  const MatchMask& mask() const { return mask_; }
  size_t count() const { return count_; }
  // Appends |receive|. If this throws std::bad_alloc, nothing has changed.
  void append(Operation& receive) HETCOMM_UNDER_BATON {
    lists_.make_room(count_, [this](OperationQueue& old) HETCOMM_UNDER_BATON { move(old); });
    lists_.at(hash_of(receive)).push_back(receive);
    ++count_;
  }
  void remove(Operation& receive) HETCOMM_UNDER_BATON {
    lists_.at(hash_of(receive)).remove(receive);
    --count_;
  }
  // Returns the first receive that matches a message from |source| with |tag|, or null. Requires
  // that the table is not empty.
  Operation* find(int32_t source, uint64_t tag) const HETCOMM_UNDER_BATON {
    return first_in(lists_.at(mask_.hash(source, tag)), source, tag);
  }
  // Same as find(), but also removes the receive.
  Operation* take(int32_t source, uint64_t tag) HETCOMM_UNDER_BATON {
    OperationQueue& list = lists_.at(mask_.hash(source, tag));
    Operation* const found = first_in(list, source, tag);
    if (found == nullptr) [[unlikely]]
      return nullptr;
    list.remove(*found);
    --count_;
    return found;
  }
  // Reuses the table for another mask. Requires that it is empty.
  void set_mask(const MatchMask& mask) HETCOMM_UNDER_BATON { mask_ = mask; }

 private:
  uint64_t hash_of(const Operation& receive) const { return mask_.hash(receive.peer, receive.tag); }
  Operation* first_in(const OperationQueue& list, int32_t source,
                      uint64_t tag) const HETCOMM_UNDER_BATON {
    Operation* each = list.empty() ? nullptr : &list.front();
    while (each != nullptr && ((!mask_.any_source && each->peer != source) ||
                               ((each->tag ^ tag) & ~mask_.ignore) != 0)) {
      each = each->links.next;
    }
    return each;
  }
  void move(OperationQueue& old) HETCOMM_UNDER_BATON;

  MatchMask mask_;
  size_t count_ = 0;
  HashedLists<OperationQueue> lists_;
};

// A MessageTable holds unexpected messages, indexed by the parts that receives with one mask
// compare. The lists link Incoming::hook, or entry |index| of Incoming::index_hooks.
class MessageTable {
 public:
  static constexpr size_t kNoIndex = Incoming::IndexHooks::kCount;
  MessageTable(size_t index, const MatchMask& mask) : index_(index), mask_(mask) {}
  MessageTable(const MessageTable&) = delete;
  MessageTable& operator=(const MessageTable&) = delete;

  const MatchMask& mask() const { return mask_; }
  // Adds |message|. If this throws std::bad_alloc, nothing has changed.
  void append(Incoming& message) HETCOMM_UNDER_BATON;
  void remove(Incoming& message) HETCOMM_UNDER_BATON;
  // Returns the oldest message that matches |source| and |tag|, or null. Adds to |*steps| the
  // number of messages that the search passed over.
  Incoming* find(int32_t source, uint64_t tag, uint64_t* steps) const HETCOMM_UNDER_BATON;

 private:
  struct List {
    Incoming* first = nullptr;
    Incoming* last = nullptr;
  };
  Incoming::ListHook& hook_of(Incoming& message) const {
    return index_ == kNoIndex ? message.hook : message.index_hooks->hooks[index_];
  }
  void append(List& list, Incoming& message) const;
  void move(List& old) HETCOMM_UNDER_BATON;

  const size_t index_;
  const MatchMask mask_;
  size_t count_ = 0;
  HashedLists<List> lists_;
};

class MatchTable {
 public:
  static constexpr size_t kMaxIndexes = Incoming::IndexHooks::kCount;

  MatchTable() { arrived_.previous_arrived = &arrived_; }
  MatchTable(const MatchTable&) = delete;
  MatchTable& operator=(const MatchTable&) = delete;

  // Puts a receive at the end of the queue. If this throws std::bad_alloc, nothing has changed.
  void post(Operation* receive) HETCOMM_UNDER_BATON {
    const MatchMask mask = MatchMask::of(*receive);
    receive->links.stamp = ++next_stamp_;
    (mask == MatchMask{} ? exact_ : wild_for(mask)).append(*receive);
    ++posted_count_;
  }
  // Removes a posted receive.
  void remove(Operation* receive) HETCOMM_UNDER_BATON;
  // Removes and returns the first posted receive that matches, or null.
  Operation* match_message(int32_t source, uint64_t tag) HETCOMM_UNDER_BATON {
    if (posted_count_ == 0) return nullptr;
    if (posted_count_ != exact_.count()) [[unlikely]]
      return match_wildcards(source, tag);
    Operation* const found = exact_.take(source, tag);
    if (found != nullptr) [[likely]]
      --posted_count_;
    return found;
  }

  // Queues a message that found no receive. If this throws std::bad_alloc, nothing has changed.
  void add_unexpected(Incoming* message) HETCOMM_UNDER_BATON;
  void remove_unexpected(Incoming* message) HETCOMM_UNDER_BATON;
  // Returns the first queued message that the arguments match, or null. A negative |source| matches
  // any source. The message stays queued.
  Incoming* find_unexpected(int32_t source, uint64_t tag, uint64_t ignore) HETCOMM_UNDER_BATON {
    return arrived_.next_arrived == nullptr ? nullptr : search_unexpected(source, tag, ignore);
  }

  size_t posted_count() const HETCOMM_UNDER_BATON { return posted_count_; }
  Incoming* first_unexpected() const HETCOMM_UNDER_BATON { return arrived_.next_arrived; }
  // Returns the total work of all searches so far, in steps. A step is one message that a search
  // skipped or added to an index, or one table of wildcard receives that was searched for a
  // message.
  uint64_t steps() const HETCOMM_UNDER_BATON { return steps_; }

 private:
  // An additional index of the unexpected messages, for searches with a mask that would otherwise
  // skip many messages.
  struct Index {
    Index(size_t number, const MatchMask& mask, uint64_t search)
        : table(number, mask), last_search(search) {}
    MessageTable table;
    uint64_t last_search;  // number of the last search that used this index
  };

  ReceiveTable& wild_for(const MatchMask& mask) HETCOMM_UNDER_BATON;
  Operation* match_wildcards(int32_t source, uint64_t tag) HETCOMM_UNDER_BATON;
  Incoming* search_unexpected(int32_t source, uint64_t tag, uint64_t ignore) HETCOMM_UNDER_BATON;
  std::optional<Index>& room_for_index() HETCOMM_UNDER_BATON;
  void make_index(const MatchMask& mask) HETCOMM_UNDER_BATON;
  void take_index_hooks(Incoming& message) HETCOMM_UNDER_BATON;
  void add_to_indexes(Incoming& message) HETCOMM_UNDER_BATON;
  void remove_from_indexes(Incoming& message) HETCOMM_UNDER_BATON;
  void drop_indexes() HETCOMM_UNDER_BATON;
  void drop_unused_indexes() HETCOMM_UNDER_BATON;

  ReceiveTable exact_{MatchMask{}};
  size_t posted_count_ = 0;
  uint64_t next_stamp_ = 0;
  std::vector<ReceiveTable> wild_;  // one for each mask in use, and empty ones
  MessageTable unexpected_{MessageTable::kNoIndex, MatchMask{}};
  Incoming arrived_;  // sentinel of the arrival list: next = oldest, previous = newest
  std::array<std::optional<Index>, kMaxIndexes> indexes_;
  bool has_indexes_ = false;
  uint64_t searches_ = 0;            // searches that have used or made an index
  uint64_t searches_when_idle_ = 0;  // |searches_| when the queue last became empty
  std::vector<std::unique_ptr<Incoming::IndexHooks[]>> index_hooks_;
  Incoming::IndexHooks* free_index_hooks_ = nullptr;  // hooks that no message uses
  uint64_t steps_ = 0;
};

}  // namespace hetcomm
