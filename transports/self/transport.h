// SelfTransport connects a rank to itself.
#pragma once

#include <vector>

#include "src/system/clock.h"
#include "transports/self/endpoint.h"
#include "transports/transport.h"

namespace hetcomm::self {

class SelfTransport final : public Transport {
 public:
  explicit SelfTransport(const TransportEnvironment& environment);

  const Capabilities& capabilities() const override { return capabilities_; }
  TransportAbilities abilities() override { return {}; }
  std::vector<std::byte> contact() const override { return {}; }
  Status start() override { return {}; }
  Status reach(ConstByteSpan) const override { return {}; }
  // Connects to this rank. For any other |destination|, on_connected reports kNotFound. The
  // endpoint serves as both ends, so on_accepted is not called.
  void connect(const Destination& destination, ConstByteSpan contact) override;
  void cancel_connect(const Destination& destination) override;
  int progress() override;
  bool prepare_sleep(Sleep sleep) override;
  bool may_sleep_on() const override;
  void finish_sleep() override {}
  uint64_t next_timer_ns() const override { return connecting_.empty() ? kForever : 0; }

  // --- for SelfEndpoint
  void add(SelfEndpoint& endpoint) { endpoints_.push_back(&endpoint); }
  void remove(SelfEndpoint& endpoint);

 private:
  TransportEnvironment environment_;
  Capabilities capabilities_;
  std::vector<Destination> connecting_;
  std::vector<SelfEndpoint*> endpoints_;  // null: removed since the last progress()
  bool has_gaps_ = false;
};

}  // namespace hetcomm::self
