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

Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices) {
  const auto& resources = links.model().resources;
  Forecast result;
  result.resource_bytes.resize(resources.size());
  uint64_t longest = 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Messages messages = messages_of(plan, i, element_bytes);
    HopForecast hop;
    std::map<int, uint64_t> messages_of;  // messages sent or received, by rank
    std::vector<uint64_t> carried(resources.size());
    for (const auto& [ends, bytes] : messages) {
      const topology::Route& route = links.route(ends.first, ends.second);
      const uint64_t alone =
          topology::transfer_ns(bytes, links.bytes_per_s(ends.first, ends.second));
      hop.ns = std::max(hop.ns, route.latency_ns + alone);
      hop.bytes += bytes;
      ++messages_of[ends.first];
      ++messages_of[ends.second];
      for (const int resource : route.resources) {
        carried[static_cast<size_t>(resource)] += bytes;
      }
    }
    hop.messages = messages.size();
    uint64_t busiest = 0;
    for (size_t r = 0; r < resources.size(); ++r) {
      result.resource_bytes[r] += carried[r];
      const uint64_t busy = topology::transfer_ns(carried[r], resources[r].bytes_per_s);
      if (busy > busiest) {
        busiest = busy;
        hop.slowest_resource = static_cast<int>(r);
      }
    }
    uint64_t most = 1;
    for (const auto& [rank, count] : messages_of) most = std::max(most, count);
    hop.ns = std::max(hop.ns, busiest) + (most - 1) * kMessageNs;
    longest = std::max(longest, hop.ns);
    sum += hop.ns;
    result.hops.push_back(hop);
  }
  result.ns = longest + (sum - longest) / std::max<uint64_t>(slices, 1);
  return result;
}

}  // namespace hetcomm::reshard
