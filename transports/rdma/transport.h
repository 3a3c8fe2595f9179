// RdmaTransport fetches completions and events from the device, and passes each to its connection.
// The device is opened for the first connection in either direction, or for the first memory that
// is published or attached. With HETCOMM_RDMA_CONNECT=cm it is opened when the transport is
// created.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transports/rdma/device_trial.h"
#include "transports/rdma/endpoint_table.h"
#include "transports/rdma/pending_connections.h"
#include "transports/rdma/port.h"
#include "transports/rdma/published_regions.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class RdmaTransport final : public Transport,
                            public RegionPublisher,
                            public DeviceAttacher,
                            private PortHandler {
 public:
  // Creates a transport. A non-null |cm| replaces the installed librdmacm.
  static Result<std::unique_ptr<RdmaTransport>> create(const Verbs& verbs, const Cm* cm,
                                                       const TransportEnvironment& environment);
  ~RdmaTransport() override;

  const Capabilities& capabilities() const override { return port_.settings().capabilities; }
  TransportAbilities abilities() override { return {.regions = this, .devices = this}; }
  std::vector<std::byte> contact() const override { return pending_.contact(); }
  Status start() override { return pending_.start(); }
  Status reach(ConstByteSpan contact) const override { return pending_.reach(contact); }
  void connect(const Destination& destination, ConstByteSpan contact) override;
  void cancel_connect(const Destination& destination) override { pending_.cancel(destination); }
  Result<RemoteKey> publish(const Region& region) override;
  bool withdraw(const RemoteKey& key) override;
  Status check_device(const hetcomm::Device& device, HangingCopy* hanging) override;
  Status attach(const DeviceRange& range) override;
  void detach(const std::byte* placeholder) override {
    if (port_.is_open()) port_.memory_regions().detach(placeholder);
  }
  int progress() override;
  bool prepare_sleep(Sleep sleep) override;
  bool may_sleep_on() const override;
  void finish_sleep() override {}
  uint64_t next_timer_ns() const override;

 private:
  enum class Events : uint8_t { kCompletions, kAsync };
  class EventWatcher final : public Watcher {
   public:
    EventWatcher(RdmaTransport& transport, Events kind) : transport_(transport), kind_(kind) {}
    void on_events(uint32_t events) override;

   private:
    RdmaTransport& transport_;
    Events kind_;
  };

  explicit RdmaTransport(const TransportEnvironment& environment);
  Status set_up(const Verbs& verbs, const Cm* cm);
  Status on_port_opened() override;
  void on_port_closing() noexcept override { stop_watching(); }
  void stop_watching() noexcept;
  void on_port_broken(std::string_view reason) noexcept override;

  int poll();
  void handle(const ibv_wc& completion);
  void handle_receive(const ibv_wc& completion);
  void handle_send(const ibv_wc& completion);
  std::string failure_text(const char* what, const ibv_wc& completion) const;
  int run_timers();
  void on_async_events();
  void on_async_event(ibv_event_type type, uint32_t number);
  void check_addresses();

  Port port_;
  EndpointTable endpoints_;
  PublishedRegions published_{port_};
  PendingConnections pending_{port_, endpoints_};
  // The registration method that works for each checked device, by device instance.
  std::vector<std::pair<const void*, DeviceWay>> device_ways_;
  EventWatcher completion_watcher_{*this, Events::kCompletions};
  EventWatcher async_watcher_{*this, Events::kAsync};
  bool watching_ = false;
  uint64_t timers_checked_ns_ = 0;
  uint64_t next_probe_ns_ = 0;
  uint64_t passes_ = 0;
};

}  // namespace hetcomm::rdma
