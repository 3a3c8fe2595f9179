#include "reshard/send_loads.h"

#include <algorithm>
#include <cstddef>

#include "reshard/capped.h"

namespace hetcomm::reshard {
namespace {

void repeat(std::vector<uint64_t>& sums, const std::vector<uint64_t>& before, uint64_t times) {
  for (size_t i = 0; i < sums.size(); ++i) {
    const uint64_t old = i < before.size() ? before[i] : 0;
    sums[i] = capped_sum(old, capped_product(sums[i] - old, times));
  }
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
  const std::vector<int>& resources = links_->route(from, to).resources;
  const Links::Location& end = links_->location(to);
  const topology::LinkHost& host = links_->model().hosts[static_cast<size_t>(end.host)];
  // A route ends with the resources of the receiver's NIC.
  size_t counted = resources.size();
  if (links_->location(from).host == end.host) {
    cost.reach = Reach::kHost;
  } else {
    counted -= std::min(counted, host.nics[static_cast<size_t>(end.nic)].in.size());
  }
  cost.end_ns = topology::transfer_ns(bytes, links_->bytes_per_s(from, to));
  for (size_t i = 0; i < counted; ++i) {
    const auto index = static_cast<size_t>(resources[i]);
    const uint64_t busy = topology::transfer_ns(capped_sum(bytes_of_resources_[index], bytes),
                                                links_->model().resources[index].bytes_per_s);
    cost.end_ns = std::max(cost.end_ns, busy);
    cost.busy_ns = capped_sum(cost.busy_ns, busy);
  }
  cost.end_ns += links_->route(from, to).latency_ns;
  return cost;
}

void SendLoads::add(int from, int to, uint64_t bytes) {
  if (from == to) return;
  const auto sender = static_cast<size_t>(from);
  if (sender >= bytes_of_ranks_.size()) bytes_of_ranks_.resize(sender + 1);
  bytes_of_ranks_[sender] = capped_sum(bytes_of_ranks_[sender], bytes);
  if (links_ == nullptr) return;
  for (const int resource : links_->route(from, to).resources) {
    uint64_t& sum = bytes_of_resources_[static_cast<size_t>(resource)];
    sum = capped_sum(sum, bytes);
  }
}

void SendLoads::repeat_since(const SendLoads& before, uint64_t times) {
  repeat(bytes_of_ranks_, before.bytes_of_ranks_, times);
  repeat(bytes_of_resources_, before.bytes_of_resources_, times);
}

}  // namespace hetcomm::reshard
