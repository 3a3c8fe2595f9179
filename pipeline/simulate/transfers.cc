#include "pipeline/simulate/transfers.h"

#include <algorithm>

namespace hetcomm::pipeline {
namespace {

// Returns the time that hop |hop| takes for one of the parts that hop |receiver| gets.
uint64_t part_of(const Route& route, size_t hop, size_t receiver) {
  const uint32_t own = route.hops[receiver].slices;
  const uint32_t slices = own == 0 ? route.slices : own;
  return (route.hops[hop].busy_ns + slices - 1) / slices;
}

// The times from the start of a hop until it ends, and until the next hop can start.
struct HopTimes {
  uint64_t length_ns = 0;
  uint64_t next_ns = 0;  // 0 for the last hop
};

// Returns the times of |hop|. |late_ns| is the time from its start until its last part arrives.
HopTimes times_of(const Route& route, size_t hop, uint64_t late_ns) {
  const RouteHop& own = route.hops[hop];
  HopTimes times{.length_ns = own.busy_ns};
  if (late_ns > 0) times.length_ns = std::max(own.busy_ns, late_ns + part_of(route, hop, hop));
  if (hop + 1 == route.hops.size()) return times;
  // A faster hop starts so late that it does not have to wait for a part. Until then, its resources
  // can serve others.
  const RouteHop& next = route.hops[hop + 1];
  const uint64_t part_ns = part_of(route, hop, hop + 1);
  const uint64_t last_part_ns = times.length_ns + part_of(route, hop + 1, hop + 1);
  const uint64_t rest_ns = last_part_ns - std::min(last_part_ns, next.busy_ns);
  times.next_ns = std::max(std::min(part_ns, times.length_ns), rest_ns) + own.latency_ns;
  return times;
}

}  // namespace

uint64_t alone_ns(const Route& route) {
  uint64_t begin_ns = 0;
  uint64_t data_end_ns = 0;
  for (size_t hop = 0; hop < route.hops.size(); ++hop) {
    const HopTimes times = times_of(route, hop, data_end_ns - std::min(data_end_ns, begin_ns));
    data_end_ns = begin_ns + times.length_ns + route.hops[hop].latency_ns;
    begin_ns += times.next_ns;
  }
  return data_end_ns;
}

void Transfers::start(const Route& route, const TransferName& name) {
  auto id = static_cast<uint32_t>(transfers_.size());
  const Transfer transfer{.name = name, .route = &route, .data_end_ns = events_.now()};
  if (free_ids_.empty()) {
    transfers_.push_back(transfer);
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
    transfers_[id] = transfer;
  }
  if (route.hops.empty()) {
    events_.add(0, {.kind = Event::kArrival, .id = id});
  } else {
    line_up({id, 0});
  }
}

void Transfers::on_event(const Event& event) {
  const Step step{event.id, event.hop};
  switch (event.kind) {
    case Event::kHopReady:
      return line_up(step);
    case Event::kHopEnd:
      return end(step);
    default:
      return arrive(event.id);
  }
}

std::vector<uint64_t> Transfers::busy_ns() const {
  std::vector<uint64_t> all;
  for (const Resource& each : resources_) all.push_back(each.busy_ns);
  return all;
}

void Transfers::line_up(Step step) {
  for (const uint32_t each : transfers_[step.id].route->hops[step.hop].resources) {
    resources_[each].line.push_back(step);
  }
  try_to_begin(step);
}

void Transfers::try_to_begin(Step step) {
  const std::vector<uint32_t>& needed = transfers_[step.id].route->hops[step.hop].resources;
  const bool may = std::all_of(needed.begin(), needed.end(), [&](uint32_t each) {
    return !resources_[each].is_busy && resources_[each].line.front() == step;
  });
  if (may) begin(step);
}

void Transfers::begin(Step step) {
  Transfer& transfer = transfers_[step.id];
  const Route& route = *transfer.route;
  const RouteHop& hop = route.hops[step.hop];
  const uint64_t late_ns = step.hop > 0 && transfer.data_end_ns > events_.now()
                               ? transfer.data_end_ns - events_.now()
                               : 0;
  const HopTimes times = times_of(route, step.hop, late_ns);
  for (const uint32_t each : hop.resources) {
    resources_[each].is_busy = true;
    resources_[each].busy_ns += times.length_ns;
  }
  events_.add(times.length_ns, {.kind = Event::kHopEnd, .id = step.id, .hop = step.hop});
  if (step.hop + 1 == route.hops.size()) return;
  transfer.data_end_ns = events_.now() + times.length_ns + hop.latency_ns;
  events_.add(times.next_ns, {.kind = Event::kHopReady, .id = step.id, .hop = step.hop + 1});
}

void Transfers::end(Step step) {
  const Transfer transfer = transfers_[step.id];
  const RouteHop& hop = transfer.route->hops[step.hop];
  for (const uint32_t each : hop.resources) {
    resources_[each].is_busy = false;
    resources_[each].line.pop_front();
  }
  for (const uint32_t each : hop.resources) {
    const Resource& resource = resources_[each];
    if (!resource.is_busy && !resource.line.empty()) try_to_begin(resource.line.front());
  }
  if (step.hop == 0) client_.on_left(transfer.name);
  if (step.hop + 1 < transfer.route->hops.size()) return;
  if (hop.latency_ns == 0) {
    arrive(step.id);
  } else {
    events_.add(hop.latency_ns, {.kind = Event::kArrival, .id = step.id});
  }
}

void Transfers::arrive(uint32_t id) {
  const Transfer transfer = transfers_[id];
  free_ids_.push_back(id);
  if (transfer.route->hops.empty()) client_.on_left(transfer.name);
  client_.on_arrived(transfer.name);
}

}  // namespace hetcomm::pipeline
