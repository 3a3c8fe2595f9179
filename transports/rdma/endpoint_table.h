// EndpointTable finds the endpoints of a transport by queue pair number, and lists those that have
// work to do.
//
// Idle endpoints need attention in three cases: unsignalled work that nothing will confirm (a
// silent tail), a revocation that may have silently stopped a queue pair, and a broken path. The
// transport calls one function of the table for each case.
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
  // Adds an endpoint. Reserves memory first, so that activate() never fails.
  void add(RdmaEndpoint& endpoint);
  void remove(RdmaEndpoint& endpoint);
  // Returns the endpoint with queue pair |number|; nullptr if there is none.
  RdmaEndpoint* find(uint32_t number) {
    if (last_found_ != nullptr && last_found_->number() == number) return last_found_;
    return look_up(number);
  }
  bool empty() const { return endpoints_.empty(); }
  // Returns the number of endpoints that have not failed; each has a queue pair.
  size_t queue_pairs() const;

  // Lists the endpoint as active until it has neither urgent work nor a silent tail.
  void activate(RdmaEndpoint& endpoint) {
    urgent_ = true;
    if (endpoint.active_index != RdmaEndpoint::kInactive) return;
    endpoint.active_index = active_.size();
    active_.push_back(&endpoint);
  }
  // Calls progress() of the active endpoints if one of them may have urgent work. Returns the
  // number of actions.
  int progress() { return urgent_ ? run_active() : 0; }
  // Calls look_at_tail() of the active endpoints.
  void look_at_tails();
  // Prepares all active endpoints for sleep. Returns false if one has work to do immediately.
  bool prepare_sleep();
  bool has_urgent_work() const;
  uint64_t next_deadline_ns() const;

  // Records that at least one endpoint is suspect (RdmaEndpoint::is_suspect).
  void note_suspect() { has_suspects_ = true; }
  bool has_suspects() const { return has_suspects_; }
  // Breaks the connections of suspects whose queue pair has stopped, and clears suspects whose time
  // has expired.
  void check_suspects(uint64_t now);
  // Probes the peer's device on all idle connections.
  void probe_idle();
  // Breaks connections whose local address no longer exists.
  void check_addresses();
  void break_off_all(std::string_view reason) noexcept;

 private:
  RdmaEndpoint* look_up(uint32_t number);
  int run_active();

  std::vector<RdmaEndpoint*> endpoints_;
  std::unordered_map<uint32_t, RdmaEndpoint*> by_number_;
  RdmaEndpoint* last_found_ = nullptr;
  std::vector<RdmaEndpoint*> active_;  // null: the endpoint has left; run_active() closes the gap
  bool urgent_ = false;                // an active endpoint may have urgent work
  bool has_suspects_ = false;
};

}  // namespace hetcomm::rdma
