// The endpoints of a transport: by the number of their queue pair, and those that have something to
// do.
//
// Some work concerns an endpoint that is idle: its silent tail, a revocation that may have silently
// stopped its queue pair, a cut path. The table does that work when the transport calls for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transports/rdma/endpoint.h"

namespace hetcomm::rdma {

class EndpointTable {
 public:
  // Makes room first, so that activate() never fails.
  void add(RdmaEndpoint& endpoint);
  void remove(RdmaEndpoint& endpoint);
  // Nullptr if no endpoint has this number.
  RdmaEndpoint* find(uint32_t number) {
    if (last_found_ != nullptr && last_found_->number() == number) return last_found_;
    return look_up(number);
  }
  bool empty() const { return endpoints_.empty(); }
  // Endpoints that have not failed: each has a queue pair.
  size_t queue_pairs() const;

  // The endpoint's progress() is called until it has no urgent work.
  void activate(RdmaEndpoint& endpoint) {
    urgent_ = true;
    if (endpoint.active_index != RdmaEndpoint::kInactive) return;
    endpoint.active_index = active_.size();
    active_.push_back(&endpoint);
  }
  // Lets active endpoints make progress. Returns the number of things done.
  int progress() { return urgent_ ? run_active() : 0; }
  // Asks about unsignalled work on active endpoints.
  void look_at_tails();
  // False: an endpoint has something to do at once.
  bool prepare_sleep();
  bool has_urgent_work() const;
  uint64_t next_deadline_ns() const;

  // An endpoint is suspect from now on (RdmaEndpoint::is_suspect).
  void note_suspect() { has_suspects_ = true; }
  bool has_suspects() const { return has_suspects_; }
  // Breaks off suspects whose queue pair has stopped, and trusts those whose time is over.
  void check_suspects(uint64_t now);
  // Asks on all silent connections whether the peer's device answers.
  void probe_idle();
  // Breaks off connections whose local address has gone.
  void check_addresses();
  void break_off_all(std::string_view reason) noexcept;

 private:
  RdmaEndpoint* look_up(uint32_t number);
  int run_active();

  std::vector<RdmaEndpoint*> endpoints_;
  std::unordered_map<uint32_t, RdmaEndpoint*> by_number_;
  RdmaEndpoint* last_found_ = nullptr;
  std::vector<RdmaEndpoint*> active_;  // nullptr: has left; run_active() closes the gap
  bool urgent_ = false;                // an active endpoint has more than a silent tail
  bool has_suspects_ = false;
};

}  // namespace hetcomm::rdma
