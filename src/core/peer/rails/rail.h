// A Rail is one connection of a pair, with its state and measured rates. Callers hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <hetcomm/communicator.h>

#include "src/base/baton_role.h"
#include "src/core/memory/throughput.h"
#include "src/core/peer/rails/rail_ends.h"
#include "src/core/progress/graveyard.h"
#include "transports/transport.h"

namespace hetcomm {

// Returns the estimated time of a typical message, in microseconds. It is used to compare
// connections.
inline double score_of(const Capabilities& capabilities) {
  constexpr double kTypicalMessage = 64 * 1024;
  return capabilities.latency_ns / 1e3 +
         kTypicalMessage * 1e6 /
             static_cast<double>(std::max<uint64_t>(capabilities.bandwidth_bytes_per_s, 1));
}

// A connection takes over messages if its estimate is better by this factor.
inline constexpr double kClearlyBetter = 1.5;

// The pair derives from this class to receive the endpoint's reports.
class Rail : public EndpointHandler, public Mortal {
 public:
  virtual ~Rail() = default;

  Endpoint& endpoint() HETCOMM_UNDER_BATON { return *endpoint_; }
  const Endpoint& endpoint() const HETCOMM_UNDER_BATON { return *endpoint_; }
  const EndpointAbilities& abilities() const HETCOMM_UNDER_BATON { return abilities_; }
  // Returns the endpoint's capabilities. max_payload_bytes may be lower than the endpoint's own
  // limit, because a message that may be lost must fit every connection that may resend it.
  const Capabilities& capabilities() const HETCOMM_UNDER_BATON { return capabilities_; }
  hetcomm_counters_t& counters() HETCOMM_UNDER_BATON { return *counters_; }
  // Returns the rate in the direction of |load|, in bytes per second. The value is an estimate
  // until a rate has been measured.
  double rate_of(const Throughput& load) const HETCOMM_UNDER_BATON {
    return load.rate() > 0 ? std::max(load.rate(), 1.0) : estimate();
  }
  // Returns the rate that the path is expected to carry, in bytes per second.
  double estimate() const HETCOMM_UNDER_BATON {
    const uint64_t rate = std::min(capabilities_.bandwidth_bytes_per_s, expected_rate_);
    return std::max(static_cast<double>(rate), 1.0);
  }
  double score_us() const HETCOMM_UNDER_BATON { return score_of(capabilities_); }
  // Sets the highest rate that the path is expected to carry. It bounds the estimate of rate_of().
  void expect(uint64_t bytes_per_s) HETCOMM_UNDER_BATON { expected_rate_ = bytes_per_s; }
  // Limits later messages to |bytes|.
  void limit_payload(uint32_t bytes) HETCOMM_UNDER_BATON {
    capabilities_.max_payload_bytes = std::min(capabilities_.max_payload_bytes, bytes);
  }
  bool is_open_both_ways() const HETCOMM_UNDER_BATON { return open && open_sent; }

  uint64_t id HETCOMM_GUARDED_BY_BATON =
      0;  // number of the connection on both sides; the lower rank assigns it
  RailEnds ends HETCOMM_GUARDED_BY_BATON;
  const std::string_view kind;                  // transport kind; rails of one kind share bulk data
  const RailMasks kin;                          // all transports of this kind, on both sides
  bool known HETCOMM_GUARDED_BY_BATON = false;  // |id| is valid
  bool dropped HETCOMM_GUARDED_BY_BATON = false;    // abandoned, waits to be destroyed
  bool retiring HETCOMM_GUARDED_BY_BATON = false;   // one side has announced it as unused
  bool open HETCOMM_GUARDED_BY_BATON = false;       // the peer's kOpen has arrived
  bool open_sent HETCOMM_GUARDED_BY_BATON = false;  // this side's kOpen was sent
  bool leaving HETCOMM_GUARDED_BY_BATON = false;    // the peer may close this connection
  Throughput sending HETCOMM_GUARDED_BY_BATON;
  Throughput receiving HETCOMM_GUARDED_BY_BATON;

 protected:
  Rail(std::unique_ptr<Endpoint> endpoint, const RailEnds& its_ends,
       std::string_view transport_kind, const RailMasks& all_of_kind, hetcomm_counters_t* counters)
      : ends(its_ends),
        kind(transport_kind),
        kin(all_of_kind),
        endpoint_(std::move(endpoint)),
        capabilities_(endpoint_->capabilities()),
        counters_(counters),
        abilities_(endpoint_->abilities()) {}

 private:
  std::unique_ptr<Endpoint> endpoint_;
  Capabilities capabilities_;
  uint64_t expected_rate_ HETCOMM_GUARDED_BY_BATON = UINT64_MAX;
  hetcomm_counters_t* counters_;
  const EndpointAbilities abilities_;
};

}  // namespace hetcomm
