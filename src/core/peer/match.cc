#include "src/core/peer/match.h"

#include <bit>

namespace hetcomm {
namespace {

constexpr size_t kFirstBuckets = 64;

bool accepts(const Operation& receive, int32_t source, uint64_t tag) {
  return (receive.peer < 0 || receive.peer == source) &&
         ((receive.tag ^ tag) & ~receive.ignore) == 0;
}

unsigned shift_for(size_t buckets) { return 64 - static_cast<unsigned>(std::countr_zero(buckets)); }

}  // namespace

MatchTable::MatchTable() : shift_(shift_for(kFirstBuckets)) {
  arrived_.next_arrived = nullptr;
  arrived_.previous_arrived = &arrived_;
}

void MatchTable::remove(Operation* receive) {
  unlink(list_of(*receive), receive);
  --posted_count_;
}

// |exact| is the first exact receive that matches.
Operation* MatchTable::match_wildcards(Operation* exact, int32_t source, uint64_t tag) {
  Operation* wild = wildcards_.first;
  while (wild != nullptr && !accepts(*wild, source, tag)) wild = wild->links.next;
  Operation* found = exact;
  if (exact == nullptr || (wild != nullptr && wild->links.stamp < exact->links.stamp)) found = wild;
  if (found != nullptr) remove(found);
  return found;
}

// Both tables share one bucket function, so they grow together; lists keep their order because
// entries are moved oldest first.
void MatchTable::grow_posted() {
  const size_t size = posted_.empty() ? kFirstBuckets : posted_.size() * 8;
  std::vector<PostedList> old(size);
  std::vector<UnexpectedList> unexpected(size);  // nothing has changed if there is no memory
  old.swap(posted_);
  unexpected_.swap(unexpected);
  shift_ = shift_for(size);
  for (PostedList& list : old) {
    while (list.first != nullptr) {
      Operation* receive = list.first;
      unlink(list, receive);
      append(posted_[bucket(receive->peer, receive->tag)], receive);
    }
  }
  for (Incoming* message = arrived_.next_arrived; message != nullptr;
       message = message->next_arrived) {
    UnexpectedList& list = unexpected_[bucket(message->source, message->tag)];
    message->next_in_bucket = nullptr;
    message->previous_in_bucket = list.last;
    (list.last != nullptr ? list.last->next_in_bucket : list.first) = message;
    list.last = message;
  }
}

void MatchTable::add_unexpected(Incoming* message) {
  if (unexpected_.empty()) grow_posted();
  UnexpectedList& list = unexpected_[bucket(message->source, message->tag)];
  message->next_in_bucket = nullptr;
  message->previous_in_bucket = list.last;
  (list.last != nullptr ? list.last->next_in_bucket : list.first) = message;
  list.last = message;

  message->next_arrived = nullptr;
  message->previous_arrived = arrived_.previous_arrived;
  arrived_.previous_arrived->next_arrived = message;
  arrived_.previous_arrived = message;
  message->queued = true;
  message->table = this;
}

void MatchTable::remove_unexpected(Incoming* message) {
  UnexpectedList& list = unexpected_[bucket(message->source, message->tag)];
  (message->previous_in_bucket != nullptr ? message->previous_in_bucket->next_in_bucket
                                          : list.first) = message->next_in_bucket;
  (message->next_in_bucket != nullptr ? message->next_in_bucket->previous_in_bucket : list.last) =
      message->previous_in_bucket;
  message->previous_arrived->next_arrived = message->next_arrived;
  (message->next_arrived != nullptr ? message->next_arrived->previous_arrived
                                    : arrived_.previous_arrived) = message->previous_arrived;
  message->queued = false;
}

Incoming* MatchTable::search_unexpected(int32_t source, uint64_t tag, uint64_t ignore) const {
  if (source >= 0 && ignore == 0) {
    Incoming* message = unexpected_[bucket(source, tag)].first;
    while (message != nullptr && (message->source != source || message->tag != tag)) {
      message = message->next_in_bucket;
    }
    return message;
  }
  Incoming* message = arrived_.next_arrived;
  while (message != nullptr &&
         ((source >= 0 && message->source != source) || ((message->tag ^ tag) & ~ignore) != 0)) {
    message = message->next_arrived;
  }
  return message;
}

}  // namespace hetcomm
