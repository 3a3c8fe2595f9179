#include "reshard/forecast.h"

#include <algorithm>
#include <map>
#include <utility>

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

Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices) {
  const auto& resources = links.model().resources;
  Forecast result;
  result.resource_bytes.resize(resources.size());
  uint64_t longest = 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Messages messages = messages_of(plan, i, element_bytes);
    const HopLoad load = load_of(messages, links);
    HopForecast hop;
    for (const auto& [ends, bytes] : messages) {
      const topology::Route& route = links.route(ends.first, ends.second);
      const uint64_t alone =
          topology::transfer_ns(bytes, links.bytes_per_s(ends.first, ends.second));
      hop.ns = std::max(hop.ns, route.latency_ns + alone);
      hop.bytes += bytes;
    }
    hop.messages = messages.size();
    uint64_t busiest = 0;
    for (const auto& [resource, carried] : load.resource_bytes) {
      const auto index = static_cast<size_t>(resource);
      result.resource_bytes[index] += carried;
      const uint64_t busy = topology::transfer_ns(carried, resources[index].bytes_per_s);
      if (busy > busiest) {
        busiest = busy;
        hop.slowest_resource = resource;
      }
    }
    hop.ns = std::max(hop.ns, busiest) + load.message_ns;
    longest = std::max(longest, hop.ns);
    sum += hop.ns;
    result.hops.push_back(hop);
  }
  result.ns = longest + (sum - longest) / std::max<uint64_t>(slices, 1);
  return result;
}

}  // namespace hetcomm::reshard
