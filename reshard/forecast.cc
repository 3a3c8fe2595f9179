#include "reshard/forecast.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hetcomm::reshard {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // sums do not overflow

uint64_t capped_sum(uint64_t one, uint64_t other) {
  return std::min(one + std::min(other, kMaxBytes), kMaxBytes);
}

uint64_t capped_product(uint64_t one, uint64_t other) {
  return one == 0 || other <= kMaxBytes / one ? one * other : kMaxBytes;
}

}  // namespace

Messages messages_of(const MovePlan& plan, size_t hop, uint64_t element_bytes) {
  Messages messages;
  for (const Move& move : plan.hops[hop].moves) {
    const std::pair<int, int> ends(plan.from(hop).parts[move.from].rank,
                                   plan.hops[hop].to.parts[move.to].rank);
    if (ends.first != ends.second) messages[ends] += move.box.elements() * element_bytes;
  }
  return messages;
}

HopLoad load_of(const Messages& messages, const Links& links) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // sums do not overflow
  HopLoad load;
  std::map<int, uint64_t> messages_of;  // sent or received, by rank
  uint64_t most = 1;
  for (const auto& [ends, bytes] : messages) {
    for (const int resource : links.route(ends.first, ends.second).resources) {
      uint64_t& sum = load.resource_bytes[resource];
      sum = std::min(sum + std::min(bytes, kMaxBytes), kMaxBytes);
    }
    most = std::max({most, ++messages_of[ends.first], ++messages_of[ends.second]});
  }
  load.message_ns = (most - 1) * kMessageNs;
  return load;
}

void JointForecast::add(const MovePlan& plan, uint64_t element_bytes, uint64_t count,
                        uint64_t shared) {
  if (hops_.size() < plan.hops.size()) hops_.resize(plan.hops.size());
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    for (const auto& [ends, bytes] : messages_of(plan, i, element_bytes)) {
      Transfer& transfer = hops_[i][ends];
      transfer.bytes = capped_sum(transfer.bytes, capped_product(bytes, count));
      transfer.messages += std::max<uint64_t>(count * kMessage / shared, 1);
    }
  }
}

void JointForecast::add(const JointForecast& other) {
  if (hops_.size() < other.hops_.size()) hops_.resize(other.hops_.size());
  for (size_t i = 0; i < other.hops_.size(); ++i) {
    for (const auto& [ends, added] : other.hops_[i]) {
      Transfer& transfer = hops_[i][ends];
      transfer.bytes = capped_sum(transfer.bytes, added.bytes);
      transfer.messages += added.messages;
    }
  }
}

HopForecast JointForecast::forecast_of(const Hop& transfers, Sums& sums) const {
  const auto& resources = links_->model().resources;
  HopForecast hop;
  std::map<int, uint64_t> carried;      // by resource
  std::map<int, uint64_t> messages_of;  // sent or received, by rank
  uint64_t most = kMessage;
  for (const auto& [ends, transfer] : transfers) {
    const topology::Route& route = links_->route(ends.first, ends.second);
    const uint64_t alone =
        topology::transfer_ns(transfer.bytes, links_->bytes_per_s(ends.first, ends.second));
    hop.ns = std::max(hop.ns, route.latency_ns + alone);
    hop.bytes = capped_sum(hop.bytes, transfer.bytes);
    for (const int resource : route.resources) {
      carried[resource] = capped_sum(carried[resource], transfer.bytes);
    }
    for (const int rank : {ends.first, ends.second}) {
      most = std::max(most, messages_of[rank] += transfer.messages);
    }
  }
  for (const auto& [rank, messages] : messages_of) {
    if (messages > kMessage) sums.messages[rank] += messages - kMessage;
  }
  hop.messages = transfers.size();
  uint64_t busiest = 0;
  for (const auto& [resource, bytes] : carried) {
    const auto index = static_cast<size_t>(resource);
    sums.resource_bytes[index] = capped_sum(sums.resource_bytes[index], bytes);
    const uint64_t busy = topology::transfer_ns(bytes, resources[index].bytes_per_s);
    if (busy > busiest) {
      busiest = busy;
      hop.slowest_resource = resource;
    }
  }
  hop.ns = std::max(hop.ns, busiest) + (most - kMessage) * kMessageNs / kMessage;
  return hop;
}

Forecast JointForecast::forecast(uint64_t slices) const {
  const auto& resources = links_->model().resources;
  Forecast result;
  Sums sums;
  sums.resource_bytes.resize(resources.size());
  uint64_t longest = 0;
  uint64_t sum = 0;
  for (const Hop& transfers : hops_) {
    const HopForecast hop = forecast_of(transfers, sums);
    longest = std::max(longest, hop.ns);
    sum += hop.ns;
    result.hops.push_back(hop);
  }
  uint64_t busiest = 0;
  for (size_t i = 0; i < resources.size(); ++i) {
    busiest =
        std::max(busiest, topology::transfer_ns(sums.resource_bytes[i], resources[i].bytes_per_s));
  }
  uint64_t most = 0;
  for (const auto& [rank, messages] : sums.messages) most = std::max(most, messages);
  busiest += most * kMessageNs / kMessage;
  result.ns = std::max(longest, busiest) + (sum - longest) / std::max<uint64_t>(slices, 1);
  result.resource_bytes = std::move(sums.resource_bytes);
  return result;
}

Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices) {
  JointForecast alone(links);
  alone.add(plan, element_bytes);
  return alone.forecast(slices);
}

}  // namespace hetcomm::reshard
