#include "src/core/job/paths/pair_table.h"

#include <algorithm>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/room.h"

namespace hetcomm {

Pair& PairTable::make(int rank) {
  std::unique_ptr<Pair>& made = pairs_[static_cast<size_t>(rank)];
  make_room(active_);
  auto pair = std::make_unique<Pair>(services_, rank, peers_.class_of(rank).credit);
  services_.turns.add(*pair);
  active_.push_back(pair.get());
  made = std::move(pair);
  if (!status(rank).ok()) made->lose(status(rank));
  return *made;
}

void PairTable::clear() {
  pairs_.clear();
  active_.clear();
}

bool PairTable::any_live_sender(const CommunicatorBase& communicator) const {
  const std::vector<int>& ranks = communicator.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) HETCOMM_UNDER_BATON {
    return (rank != services_.terms.rank || ranks.size() == 1) && status(rank).ok();
  });
}

bool PairTable::all_senders_live(const CommunicatorBase& communicator) const {
  const std::vector<int>& ranks = communicator.ranks();
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int rank) HETCOMM_UNDER_BATON { return status(rank).ok(); });
}

Status PairTable::loss_in(const CommunicatorBase& communicator) const {
  for (const int rank : communicator.ranks()) {
    if (!status(rank).ok()) return status(rank);
  }
  return {};
}

bool PairTable::flushed() const {
  return std::all_of(active_.begin(), active_.end(),
                     [](const Pair* pair) HETCOMM_UNDER_BATON { return pair->flushed(); });
}

void PairTable::ask_for_acknowledgements() {
  for (Pair* pair : active_) pair->traffic().ask_for_acknowledgement();
}

void PairTable::out_of_memory() {
  for (size_t i = 0; i < active_.size(); ++i) active_[i]->out_of_memory();
}

}  // namespace hetcomm
