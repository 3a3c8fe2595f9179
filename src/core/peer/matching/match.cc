#include "src/core/peer/matching/match.h"

#include <utility>

namespace hetcomm {
namespace {

// A search that skips more than this many messages builds an index for later searches with its
// mask.
constexpr uint64_t kMaxWalked = 32;
// The number of tables of receives with wildcards above which an empty table is removed.
constexpr size_t kMaxIdleTables = 8;
constexpr size_t kHooksAtOnce = 64;

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

// Returns the table for receives with |mask|. If there is none, reuses an empty table or adds one.
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
  --posted_count_;
  if (mask == MatchMask{}) {
    exact_.remove(*receive);
    return;
  }
  ReceiveTable& table = wild_for(mask);
  table.remove(*receive);
  // Each search for a receive with wildcards visits all tables, so an empty surplus table is
  // removed.
  if (table.count() > 0 || wild_.size() <= kMaxIdleTables) return;
  if (&table != &wild_.back()) table = std::move(wild_.back());
  wild_.pop_back();
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
  hook_of(message) = {nullptr, list.last};
  (list.last != nullptr ? hook_of(*list.last).next : list.first) = &message;
  list.last = &message;
}

void MessageTable::append(Incoming& message) {
  lists_.make_room(count_, [this](List& old) HETCOMM_UNDER_BATON { move(old); });
  append(lists_.at(mask_.hash(message.source, message.tag)), message);
  ++count_;
}

void MessageTable::remove(Incoming& message) {
  List& list = lists_.at(mask_.hash(message.source, message.tag));
  const auto [next, previous] = hook_of(message);
  (previous != nullptr ? hook_of(*previous).next : list.first) = next;
  (next != nullptr ? hook_of(*next).previous : list.last) = previous;
  --count_;
}

Incoming* MessageTable::find(int32_t source, uint64_t tag, uint64_t* steps) const {
  if (count_ == 0) return nullptr;
  Incoming* each = lists_.at(mask_.hash(source, tag)).first;
  for (; each != nullptr && !accepts(mask_, source, tag, *each); ++*steps) {
    each = hook_of(*each).next;
  }
  return each;
}

void MessageTable::move(List& old) {
  for (Incoming* each = old.first; each != nullptr;) {
    Incoming* const next = hook_of(*each).next;
    append(lists_.at(mask_.hash(each->source, each->tag)), *each);
    each = next;
  }
}

void MatchTable::add_unexpected(Incoming* message) {
  unexpected_.append(*message);
  message->next_arrived = nullptr;
  message->previous_arrived = arrived_.previous_arrived;
  arrived_.previous_arrived->next_arrived = message;
  arrived_.previous_arrived = message;
  message->queued = true;
  message->table = this;
  if (has_indexes_) [[unlikely]]
    add_to_indexes(*message);
}

void MatchTable::remove_unexpected(Incoming* message) {
  unexpected_.remove(*message);
  message->previous_arrived->next_arrived = message->next_arrived;
  (message->next_arrived != nullptr ? message->next_arrived->previous_arrived
                                    : arrived_.previous_arrived) = message->previous_arrived;
  message->queued = false;
  if (has_indexes_) [[unlikely]]
    remove_from_indexes(*message);
}

Incoming* MatchTable::search_unexpected(int32_t source, uint64_t tag, uint64_t ignore) {
  const MatchMask mask{source < 0, ignore};
  if (mask == unexpected_.mask()) return unexpected_.find(source, tag, &steps_);
  for (std::optional<Index>& each : indexes_) {
    if (!each || mask != each->table.mask()) continue;
    each->last_search = ++searches_;
    return each->table.find(source, tag, &steps_);
  }
  Incoming* message = arrived_.next_arrived;
  uint64_t walked = 0;
  while (message != nullptr && !accepts(mask, source, tag, *message)) {
    message = message->next_arrived;
    ++walked;
  }
  steps_ += walked;
  if (walked > kMaxWalked) make_index(mask);
  return message;
}

// --- indexes of unexpected messages ---------------------------------------------

// Returns an unused element of |indexes_|, or the one with the least recently used index.
std::optional<MatchTable::Index>& MatchTable::room_for_index() {
  std::optional<Index>* oldest = &indexes_.front();
  for (std::optional<Index>& each : indexes_) {
    if (!each) return each;
    if (each->last_search < (*oldest)->last_search) oldest = &each;
  }
  return *oldest;
}

void MatchTable::make_index(const MatchMask& mask) {
  std::optional<Index>& index = room_for_index();
  try {
    for (Incoming* each = arrived_.next_arrived; each != nullptr && !has_indexes_;
         each = each->next_arrived) {
      take_index_hooks(*each);
    }
    has_indexes_ = true;
    index.emplace(static_cast<size_t>(&index - indexes_.data()), mask, ++searches_);
    for (Incoming* each = arrived_.next_arrived; each != nullptr; each = each->next_arrived) {
      index->table.append(*each);
      ++steps_;
    }
  } catch (const std::bad_alloc&) {
    drop_indexes();  // searches walk the list again
  }
}

void MatchTable::take_index_hooks(Incoming& message) {
  if (free_index_hooks_ == nullptr) {
    index_hooks_.push_back(std::make_unique<Incoming::IndexHooks[]>(kHooksAtOnce));
    for (size_t i = 0; i < kHooksAtOnce; ++i) {
      Incoming::IndexHooks& made = index_hooks_.back()[i];
      made.next_free = std::exchange(free_index_hooks_, &made);
    }
  }
  message.index_hooks = std::exchange(free_index_hooks_, free_index_hooks_->next_free);
}

void MatchTable::add_to_indexes(Incoming& message) {
  try {
    take_index_hooks(message);
  } catch (const std::bad_alloc&) {
    drop_indexes();  // searches walk the list again
    return;
  }
  for (std::optional<Index>& each : indexes_) {
    if (each) each->table.append(message);  // the table has lists, so this does not fail
  }
}

void MatchTable::remove_from_indexes(Incoming& message) {
  for (std::optional<Index>& each : indexes_) {
    if (each) each->table.remove(message);
  }
  message.index_hooks->next_free = std::exchange(free_index_hooks_, message.index_hooks);
  if (arrived_.next_arrived == nullptr) drop_unused_indexes();
}

void MatchTable::drop_indexes() {
  for (std::optional<Index>& each : indexes_) each.reset();
  has_indexes_ = false;
  index_hooks_.clear();
  free_index_hooks_ = nullptr;
}

// Drops the indexes that have not been searched since the queue was last empty. They would only
// make messages more expensive. Called when the last unexpected message has been removed.
void MatchTable::drop_unused_indexes() {
  has_indexes_ = false;
  for (std::optional<Index>& each : indexes_) {
    if (each && each->last_search <= searches_when_idle_) each.reset();
    has_indexes_ = has_indexes_ || each;
  }
  searches_when_idle_ = searches_;
  if (has_indexes_ && index_hooks_.size() == 1) return;
  index_hooks_.clear();
  free_index_hooks_ = nullptr;
}

}  // namespace hetcomm
