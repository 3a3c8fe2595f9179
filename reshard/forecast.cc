#include "reshard/forecast.h"

#include <algorithm>
#include <map>
#include <utility>

#include "reshard/capped.h"

namespace hetcomm::reshard {

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
  HopLoad load;
  std::map<int, uint64_t> messages_of;  // sent or received messages, keyed by rank
  uint64_t most = 1;
  for (const auto& [ends, bytes] : messages) {
    for (const int resource : links.route(ends.first, ends.second).resources) {
      uint64_t& sum = load.resource_bytes[resource];
      sum = capped_sum(sum, bytes);
    }
    most = std::max({most, ++messages_of[ends.first], ++messages_of[ends.second]});
  }
  load.message_ns = (most - 1) * kMessageNs;
  return load;
}

void JointForecast::add(const Messages& messages, uint64_t count, uint64_t units, Hop& hop) const {
  for (const auto& [ends, each] : messages) {
    const topology::Route& route = links_->route(ends.first, ends.second);
    const uint64_t bytes = capped_product(each, count);
    for (const int resource : route.resources) {
      hop.carried[resource] = capped_sum(hop.carried[resource], bytes);
    }
    for (const int rank : {ends.first, ends.second}) hop.messages[rank] += units;
    if (route.single_bytes_per_s != 0) {
      hop.limited[ends] = capped_sum(hop.limited[ends], bytes);
    }
    const uint64_t alone =
        topology::transfer_ns(bytes, links_->bytes_per_s(ends.first, ends.second));
    hop.longest_ns = std::max(hop.longest_ns, route.latency_ns + alone);
    hop.bytes = capped_sum(hop.bytes, bytes);
  }
  hop.pairs += messages.size();
}

void JointForecast::add(const MovePlan& plan, uint64_t element_bytes, uint64_t count,
                        uint64_t shared) {
  if (hops_.size() < plan.hops.size()) hops_.resize(plan.hops.size());
  const uint64_t units = std::max<uint64_t>(count * kMessage / shared, 1);
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    add(messages_of(plan, i, element_bytes), count, units, hops_[i]);
  }
}

void JointForecast::add(const JointForecast& other) {
  if (hops_.size() < other.hops_.size()) hops_.resize(other.hops_.size());
  for (size_t i = 0; i < other.hops_.size(); ++i) {
    Hop& hop = hops_[i];
    const Hop& added = other.hops_[i];
    for (const auto& [resource, bytes] : added.carried) {
      hop.carried[resource] = capped_sum(hop.carried[resource], bytes);
    }
    for (const auto& [rank, units] : added.messages) hop.messages[rank] += units;
    for (const auto& [ends, bytes] : added.limited) {
      hop.limited[ends] = capped_sum(hop.limited[ends], bytes);
    }
    hop.longest_ns = std::max(hop.longest_ns, added.longest_ns);
    hop.pairs += added.pairs;
    hop.bytes = capped_sum(hop.bytes, added.bytes);
  }
}

uint64_t JointForecast::busy_ns(int resource, uint64_t bytes) const {
  return topology::transfer_ns(
      bytes, links_->model().resources[static_cast<size_t>(resource)].bytes_per_s);
}

HopForecast JointForecast::forecast_of(const Hop& hop, Sums& sums) const {
  HopForecast result;
  result.messages = hop.pairs;
  result.bytes = hop.bytes;
  result.ns = hop.longest_ns;
  for (const auto& [ends, bytes] : hop.limited) {
    const uint64_t alone =
        topology::transfer_ns(bytes, links_->bytes_per_s(ends.first, ends.second));
    const uint64_t latency_ns = links_->route(ends.first, ends.second).latency_ns;
    result.ns = std::max(result.ns, latency_ns + alone);
  }
  uint64_t busiest = 0;
  for (const auto& [resource, bytes] : hop.carried) {
    sums.carried[resource] = capped_sum(sums.carried[resource], bytes);
    const uint64_t busy = busy_ns(resource, bytes);
    if (busy > busiest) {
      busiest = busy;
      result.slowest_resource = resource;
    }
  }
  uint64_t most = kMessage;
  for (const auto& [rank, units] : hop.messages) {
    most = std::max(most, units);
    if (units > kMessage) sums.messages[rank] += units - kMessage;
  }
  result.ns = std::max(result.ns, busiest) + (most - kMessage) * kMessageNs / kMessage;
  return result;
}

Forecast JointForecast::forecast(uint64_t slices) const {
  Forecast result;
  Sums sums;
  uint64_t longest = 0;
  uint64_t sum = 0;
  for (const Hop& each : hops_) {
    const HopForecast hop = forecast_of(each, sums);
    longest = std::max(longest, hop.ns);
    sum = capped_sum(sum, hop.ns);
    result.hops.push_back(hop);
  }
  result.resource_bytes.resize(links_->model().resources.size());
  uint64_t busiest = 0;
  for (const auto& [resource, bytes] : sums.carried) {
    result.resource_bytes[static_cast<size_t>(resource)] = bytes;
    busiest = std::max(busiest, busy_ns(resource, bytes));
  }
  uint64_t most = 0;
  for (const auto& [rank, units] : sums.messages) most = std::max(most, units);
  busiest += most * kMessageNs / kMessage;
  const uint64_t rest = sum > longest ? sum - longest : 0;
  result.ns = std::max(longest, busiest) + rest / std::max<uint64_t>(slices, 1);
  return result;
}

Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices) {
  JointForecast alone(links);
  alone.add(plan, element_bytes);
  return alone.forecast(slices);
}

}  // namespace hetcomm::reshard
