#include "transports/rdma/completion_inbox.h"

#include <new>

namespace hetcomm::rdma {

bool CompletionInbox::grow() {
  try {
    inbox_.reserve(2 * inbox_.size() + kBatch);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void CompletionInbox::make_room_for(uint32_t number) {
  const auto aside = static_cast<size_t>(std::count_if(
      aside_.begin(), aside_.end(), [&](const ibv_wc& each) { return each.qp_num == number; }));
  inbox_.reserve(inbox_.size() + aside + kBatch);
}

void CompletionInbox::bring_back(uint32_t number) {
  const auto is_of_it = [&](const ibv_wc& each) { return each.qp_num == number; };
  auto at = inbox_.begin() + static_cast<ptrdiff_t>(next_);
  for (const ibv_wc& each : aside_) {
    if (is_of_it(each)) at = inbox_.insert(at, each) + 1;
  }
  std::erase_if(aside_, is_of_it);
}

}  // namespace hetcomm::rdma
