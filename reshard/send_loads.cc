#include "reshard/send_loads.h"

#include <algorithm>

namespace hetcomm::reshard {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // sums do not overflow

uint64_t sum_of(uint64_t one, uint64_t other) {
  return std::min(one + std::min(other, kMaxBytes), kMaxBytes);
}

}  // namespace

SendLoads::SendLoads(const Links* links) : links_(links) {
  if (links != nullptr) bytes_of_resources_.resize(links->model().resources.size());
}

SendLoads::Cost SendLoads::cost(int from, int to, uint64_t bytes) const {
  Cost cost;
  if (from == to) return cost;
  const auto sender = static_cast<size_t>(from);
  if (sender < bytes_of_ranks_.size()) cost.sent_bytes = bytes_of_ranks_[sender];
  cost.reach = Reach::kNetwork;
  if (links_ == nullptr) return cost;
  if (links_->location(from).host == links_->location(to).host) cost.reach = Reach::kHost;
  const topology::Route& route = links_->route(from, to);
  cost.end_ns = topology::transfer_ns(bytes, links_->bytes_per_s(from, to));
  for (const int resource : route.resources) {
    const auto index = static_cast<size_t>(resource);
    const uint64_t busy = topology::transfer_ns(sum_of(bytes_of_resources_[index], bytes),
                                                links_->model().resources[index].bytes_per_s);
    cost.end_ns = std::max(cost.end_ns, busy);
    cost.busy_ns = sum_of(cost.busy_ns, busy);
  }
  cost.end_ns += route.latency_ns;
  return cost;
}

void SendLoads::add(int from, int to, uint64_t bytes) {
  if (from == to) return;
  const auto sender = static_cast<size_t>(from);
  if (sender >= bytes_of_ranks_.size()) bytes_of_ranks_.resize(sender + 1);
  bytes_of_ranks_[sender] = sum_of(bytes_of_ranks_[sender], bytes);
  if (links_ == nullptr) return;
  for (const int resource : links_->route(from, to).resources) {
    uint64_t& sum = bytes_of_resources_[static_cast<size_t>(resource)];
    sum = sum_of(sum, bytes);
  }
}

}  // namespace hetcomm::reshard
