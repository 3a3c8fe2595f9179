#include "transports/rdma/endpoint_table.h"

#include <algorithm>

namespace hetcomm::rdma {

void EndpointTable::add(RdmaEndpoint& endpoint) {
  // Within one pass an endpoint may become active again after it has left the list, so the list may
  // need two entries for it.
  endpoints_.reserve(endpoints_.size() + 1);
  active_.reserve(active_.size() + 2 * (endpoints_.size() + 1));
  by_number_.insert_or_assign(endpoint.number(), &endpoint);
  endpoints_.push_back(&endpoint);
}

void EndpointTable::remove(RdmaEndpoint& endpoint) {
  std::erase(endpoints_, &endpoint);
  if (const auto at = by_number_.find(endpoint.number());
      at != by_number_.end() && at->second == &endpoint) {
    by_number_.erase(at);
  }
  if (last_found_ == &endpoint) last_found_ = nullptr;
  if (endpoint.active_index != RdmaEndpoint::kInactive) active_[endpoint.active_index] = nullptr;
}

RdmaEndpoint* EndpointTable::look_up(uint32_t number) {
  const auto at = by_number_.find(number);
  if (at == by_number_.end()) return nullptr;
  last_found_ = at->second;
  return last_found_;
}

size_t EndpointTable::queue_pairs() const {
  return static_cast<size_t>(
      std::count_if(endpoints_.begin(), endpoints_.end(),
                    [](const RdmaEndpoint* each) { return each->pair() != nullptr; }));
}

int EndpointTable::run_active() {
  int done = 0;
  bool urgent = false;
  urgent_ = false;
  const size_t count = active_.size();  // endpoints activated later wait for the next pass
  for (size_t i = 0; i < count; ++i) {
    RdmaEndpoint* endpoint = active_[i];
    if (endpoint == nullptr) continue;
    done += endpoint->progress();
    if (active_[i] != endpoint) continue;
    if (endpoint->has_urgent_work()) {
      urgent = true;
      continue;
    }
    if (endpoint->has_silent_tail()) continue;
    endpoint->active_index = RdmaEndpoint::kInactive;
    active_[i] = nullptr;
  }
  urgent_ = urgent_ || urgent;
  // Removes the gaps at the end first. Usually there are no others.
  while (!active_.empty() && active_.back() == nullptr) active_.pop_back();
  if (active_.size() < 2) return done;
  size_t kept = 0;
  for (RdmaEndpoint* endpoint : active_) {
    if (endpoint == nullptr) continue;
    endpoint->active_index = kept;
    active_[kept++] = endpoint;
  }
  active_.resize(kept);
  return done;
}

void EndpointTable::look_at_tails() {
  // A device failure in this loop activates other endpoints, so the vector may grow.
  for (size_t i = 0, count = active_.size(); i < count; ++i) {
    if (active_[i] != nullptr) active_[i]->look_at_tail();
  }
}

bool EndpointTable::prepare_sleep() {
  bool may_sleep = true;
  // A device failure in this loop activates other endpoints, so the vector may grow.
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i] != nullptr && !active_[i]->prepare_sleep()) may_sleep = false;
  }
  return may_sleep;
}

bool EndpointTable::has_urgent_work() const {
  return std::any_of(active_.begin(), active_.end(), [](const RdmaEndpoint* endpoint) {
    return endpoint != nullptr && endpoint->has_urgent_work();
  });
}

uint64_t EndpointTable::next_deadline_ns() const {
  uint64_t next = kForever;
  for (const RdmaEndpoint* endpoint : active_) {
    if (endpoint != nullptr) next = std::min(next, endpoint->deadline_ns());
  }
  return next;
}

void EndpointTable::check_suspects(uint64_t now) {
  has_suspects_ = false;
  for (RdmaEndpoint* endpoint : endpoints_) {
    if (!endpoint->is_suspect()) continue;
    if (endpoint->has_broken_in_silence()) {
      endpoint->break_off(
          "the queue pair is in the error state: the peer read memory that was revoked, or "
          "the device failed");
    } else if (now < endpoint->suspect_until_ns()) {
      has_suspects_ = true;
    } else {
      endpoint->trust();
    }
  }
}

void EndpointTable::probe_idle() {
  for (RdmaEndpoint* endpoint : endpoints_) endpoint->probe();
}

void EndpointTable::check_addresses() {
  for (RdmaEndpoint* endpoint : endpoints_) {
    const QueuePair* pair = endpoint->pair();
    if (pair != nullptr && !pair->has_address())
      endpoint->break_off("the address of this side's port has gone");
  }
}

void EndpointTable::break_off_all(std::string_view reason) noexcept {
  for (RdmaEndpoint* endpoint : endpoints_) endpoint->break_off(reason);
}

}  // namespace hetcomm::rdma
