#include "src/core/peer/match.h"

namespace hetcomm {
namespace {

// A search that walks along more messages makes an index for searches like it.
constexpr uint64_t kMostWalked = 32;

bool accepts(const MatchMask& mask, int32_t source, uint64_t tag, const Incoming& message) {
  return (mask.any_source || message.source == source) && ((message.tag ^ tag) & ~mask.ignore) == 0;
}

}  // namespace

// --- posted receives ----------------------------------------------------------

void ReceiveTable::move(OperationQueue& old) {
  while (!old.empty()) {
    Operation& receive = old.front();
    old.remove(receive);
    lists_.at(hash_of(receive)).push_back(receive);
  }
}

// The table for receives with |mask|, which stays empty until one is appended.
ReceiveTable& MatchTable::wild_for(const MatchMask& mask) {
  ReceiveTable* unused = nullptr;
  for (ReceiveTable& each : wild_) {
    if (each.mask() == mask) return each;
    if (each.count() == 0) unused = &each;
  }
  if (unused == nullptr) return wild_.emplace_back(mask);
  unused->set_mask(mask);
  return *unused;
}

void MatchTable::remove(Operation* receive) {
  const MatchMask mask = MatchMask::of(*receive);
  (mask == MatchMask{} ? exact_ : wild_for(mask)).remove(*receive);
  --posted_count_;
}

Operation* MatchTable::match_wildcards(int32_t source, uint64_t tag) {
  Operation* found = exact_.count() > 0 ? exact_.find(source, tag) : nullptr;
  for (const ReceiveTable& each : wild_) {
    if (each.count() == 0) continue;
    ++steps_;
    Operation* const wild = each.find(source, tag);
    if (wild == nullptr) continue;
    if (found == nullptr || wild->links.stamp < found->links.stamp) found = wild;
  }
  if (found != nullptr) remove(found);
  return found;
}

// --- unexpected messages ------------------------------------------------------

void MessageTable::append(List& list, Incoming& message) const {
  message.places[place_] = {nullptr, list.last};
  (list.last != nullptr ? list.last->places[place_].next : list.first) = &message;
  list.last = &message;
}

void MessageTable::append(Incoming& message) {
  lists_.make_room(count_, [this](List& old) HETCOMM_UNDER_BATON { move(old); });
  append(lists_.at(mask_.hash(message.source, message.tag)), message);
  ++count_;
}

void MessageTable::remove(Incoming& message) {
  List& list = lists_.at(mask_.hash(message.source, message.tag));
  const auto [next, previous] = message.places[place_];
  (previous != nullptr ? previous->places[place_].next : list.first) = next;
  (next != nullptr ? next->places[place_].previous : list.last) = previous;
  --count_;
}

Incoming* MessageTable::find(int32_t source, uint64_t tag, uint64_t* steps) const {
  if (count_ == 0) return nullptr;
  Incoming* each = lists_.at(mask_.hash(source, tag)).first;
  for (; each != nullptr && !accepts(mask_, source, tag, *each); ++*steps) {
    each = each->places[place_].next;
  }
  return each;
}

void MessageTable::move(List& old) {
  for (Incoming* each = old.first; each != nullptr;) {
    Incoming* const next = each->places[place_].next;
    append(lists_.at(mask_.hash(each->source, each->tag)), *each);
    each = next;
  }
}

void MatchTable::add_unexpected(Incoming* message) {
  unexpected_.append(*message);
  if (index_) [[unlikely]]
    index_->append(*message);  // it has lists
  message->next_arrived = nullptr;
  message->previous_arrived = arrived_.previous_arrived;
  arrived_.previous_arrived->next_arrived = message;
  arrived_.previous_arrived = message;
  message->queued = true;
  message->table = this;
}

void MatchTable::remove_unexpected(Incoming* message) {
  unexpected_.remove(*message);
  if (index_) [[unlikely]]
    index_->remove(*message);
  message->previous_arrived->next_arrived = message->next_arrived;
  (message->next_arrived != nullptr ? message->next_arrived->previous_arrived
                                    : arrived_.previous_arrived) = message->previous_arrived;
  message->queued = false;
  if (index_ && arrived_.next_arrived == nullptr) [[unlikely]]
    index_.reset();
}

Incoming* MatchTable::search_unexpected(int32_t source, uint64_t tag, uint64_t ignore) {
  const MatchMask mask{source < 0, ignore};
  if (mask == unexpected_.mask()) return unexpected_.find(source, tag, &steps_);
  if (index_ && mask == index_->mask()) return index_->find(source, tag, &steps_);
  Incoming* message = arrived_.next_arrived;
  uint64_t walked = 0;
  while (message != nullptr && !accepts(mask, source, tag, *message)) {
    message = message->next_arrived;
    ++walked;
  }
  steps_ += walked;
  if (walked > kMostWalked) make_index(mask);
  return message;
}

// It costs about as much as the walk that led to it.
void MatchTable::make_index(const MatchMask& mask) {
  index_.emplace(1, mask);
  try {
    for (Incoming* each = arrived_.next_arrived; each != nullptr; each = each->next_arrived) {
      index_->append(*each);
    }
  } catch (const std::bad_alloc&) {
    index_.reset();  // searches walk on
  }
}

}  // namespace hetcomm
