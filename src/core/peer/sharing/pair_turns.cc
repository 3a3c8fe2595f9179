#include "src/core/peer/sharing/pair_turns.h"

#include <algorithm>
#include <new>
#include <utility>

#include "src/base/baton_role.h"

namespace hetcomm {

void PairTurns::add(ListedPair& pair) {
  for (auto* list : {&pairs_, &updates_, &acknowledgements_, &copying_}) {
    if (list->capacity() == pairs_.size()) list->reserve(2 * pairs_.size() + 1);
  }
  pairs_.push_back(&pair);
}

void PairTurns::clear() {
  engine_.work_left(-static_cast<int64_t>(acknowledgements_.size()));
  for (auto* list : {&pairs_, &updates_, &acknowledgements_, &copying_}) list->clear();
}

void PairTurns::acknowledgement_due(ListedPair& pair) {
  if (!engine_.threaded()) {
    update_due(pair);
    return;
  }
  if (std::exchange(pair.listed.acknowledgement, true)) return;
  if (acknowledgements_.empty()) acknowledgements_pass_ = pass_;
  acknowledgements_.push_back(&pair);
  engine_.work_left(1);
}

void PairTurns::copies_due(ListedPair& pair) {
  if (std::find(copying_.begin(), copying_.end(), &pair) == copying_.end()) {
    copying_.push_back(&pair);
  }
}

int PairTurns::run() {
  int moved = 0;
  if (!copying_.empty()) {
    std::erase_if(copying_,
                  [](ListedPair* pair) HETCOMM_UNDER_BATON { return !pair->copy_some(); });
    ++moved;
  }
  if (!acknowledgements_.empty() && acknowledgements_pass_ != pass_) {
    for (ListedPair* pair : acknowledgements_) {
      pair->listed.acknowledgement = false;
      update_due(*pair);
    }
    engine_.work_left(-static_cast<int64_t>(acknowledgements_.size()));
    acknowledgements_.clear();
  }
  while (!updates_.empty()) {
    ListedPair* pair = updates_.back();
    updates_.pop_back();
    pair->listed.update = false;
    try {
      pair->send_update();
    } catch (const std::bad_alloc&) {
      pair->out_of_memory();
    }
  }
  return moved;
}

void PairTurns::tick(uint64_t now_ns) {
  if (now_ns < next_timer_ns_) return;
  next_timer_ns_ = kForever;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    try {
      pairs_[i]->tick(now_ns);
    } catch (const std::bad_alloc&) {
      pairs_[i]->out_of_memory();
    }
  }
  for (const ListedPair* pair : pairs_) note_timer(pair->next_timer_ns());
}

}  // namespace hetcomm
