#include "src/bootstrap/last_replies.h"

#include <utility>

namespace hetcomm {

void LastReplies::keep(int32_t rank, std::vector<std::byte> request, const Frame& reply) {
  forget(rank);
  const auto known = ranks_of_.find(reply);
  if (known != ranks_of_.end()) {
    ++known->second;
  } else {
    if (reply->size() > max_bytes_ - bytes_) return;
    bytes_ += reply->size();
    ranks_of_[reply] = 1;
  }
  replies_[rank] = {.request = std::move(request), .frame = reply};
}

Frame LastReplies::find(int32_t rank, const std::vector<std::byte>& request) const {
  const auto found = replies_.find(rank);
  if (found == replies_.end() || found->second.request != request) return nullptr;
  return found->second.frame;
}

void LastReplies::forget(int32_t rank) {
  const auto found = replies_.find(rank);
  if (found == replies_.end()) return;
  const auto known = ranks_of_.find(found->second.frame);
  replies_.erase(found);
  if (--known->second > 0) return;
  bytes_ -= known->first->size();
  ranks_of_.erase(known);
}

}  // namespace hetcomm
