// The rdma transport: the device with its queues, connections being made, and what all connections
// share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/net/network_listener.h"
#include "transports/rdma/connection_manager.h"
#include "transports/rdma/device.h"
#include "transports/rdma/device_memory.h"
#include "transports/rdma/endpoint.h"
#include "transports/rdma/memory_region_cache.h"
#include "transports/rdma/receive_pool.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

// Configuration as this transport uses it: checked and clamped.
struct Settings {
  ConnectionSettings connection;
  uint32_t credits = 0;              // receives for each peer
  uint32_t slot_bytes = 0;           // of each
  uint64_t fragment_bytes = 0;       // largest work request of a bulk
  uint64_t max_in_flight_bytes = 0;  // of bulks under way on one connection
  uint64_t cache_bytes = 0;
  bool strict_keys = false;  // memory regions that peers have keys of are not kept
  uint32_t connections = 0;
  Capabilities capabilities;
};
Settings read_settings(const Config& config);
// Whether connections are to be made by rdma_cm.
bool by_cm(const Config& config);

class ConnectAttempt;
class Arrival;

class RdmaTransport final : public Transport,
                            public RegionPublisher,
                            public DeviceAttacher,
                            public AcceptHandler,
                            public CmListener {
 public:
  // |cm|: in place of the installed librdmacm.
  static Result<std::unique_ptr<RdmaTransport>> create(const Verbs& verbs, const Cm* cm,
                                                       const TransportEnvironment& environment);
  ~RdmaTransport() override;

  const Capabilities& capabilities() const override { return settings_.capabilities; }
  TransportAbilities abilities() override { return {.regions = this, .devices = this}; }
  std::vector<std::byte> descriptor() const override;
  Status start() override;
  Status reach(ConstByteSpan descriptor) const override;
  void connect(int peer, ConstByteSpan descriptor) override;
  void cancel_connect(int peer) override;
  Result<RemoteKey> publish(const Region& region) override;
  bool withdraw(const RemoteKey& key) override;
  Status check_device(const hetcomm::Device& device) override;
  Status attach(const DeviceRange& range) override;
  void detach(const std::byte* window) override;
  int progress() override;
  bool prepare_sleep(Sleep sleep) override;
  bool may_sleep_on() const override;
  void finish_sleep() override {}
  uint64_t next_timer_ns() const override;

  void on_accept(StreamSocket socket, const Hello& hello) override;
  void on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) override;
  void on_listener_lost(const Status& why) override;

  // --- for endpoints, attempts and arrivals
  const TransportEnvironment& environment() const { return environment_; }
  Poller& poller() { return environment_.poller; }
  Log& log() { return environment_.log; }
  const Settings& settings() const { return settings_; }
  const Nic& nic() const { return device_->nic(); }
  // At this moment, whatever events have said.
  bool has_address(const Gid& gid) const { return device_->gid_at(gid.index) == gid.bytes; }
  MemoryRegionCache& memory_regions() { return *memory_regions_; }
  // Nullptr: connections are made by exchange.
  ConnectionManager* manager() { return manager_.get(); }
  void add_endpoint(RdmaEndpoint& endpoint);
  void remove_endpoint(RdmaEndpoint& endpoint);
  // Its progress() is called until it has no urgent work.
  void activate(RdmaEndpoint& endpoint);
  // Whether all receives that were used are there for peers again.
  bool receives_posted() const { return receives_->unposted() == 0; }
  // One of the endpoints is suspect from now on.
  void suspect() { suspects_ = true; }
  // Stops the endpoint's queue pair and takes all its completions. Bounded in time; no upcalls.
  void quiesce(RdmaEndpoint& endpoint);

  // A queue pair with receives behind it.
  Result<std::unique_ptr<QueuePair>> make_queue_pair();
  Parameters parameters_of(const QueuePair& pair, const Gid& mine, const GidBytes& peer) const;
  // The outcome of an attempt, which ends with it. Who is told fails for nothing.
  void finish(ConnectAttempt& attempt, Result<std::unique_ptr<Endpoint>> endpoint) noexcept;
  // The same for an arrival; nullptr: nothing came of it.
  void finish(Arrival& arrival, std::unique_ptr<Endpoint> endpoint) noexcept;

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
  struct Target {
    std::vector<Address> addresses;
    Gid mine;
    GidBytes peer{};
  };
  struct Published {
    RemoteKey key;
    ibv_mr* mr = nullptr;
  };

  explicit RdmaTransport(const TransportEnvironment& environment);
  Status set_up(const Verbs& verbs, const Cm* cm);
  Status listen();
  Status watch_events();
  Result<Target> target_of(ConstByteSpan descriptor) const;
  // Connections can be made by it.
  bool is_usable(const Gid& gid) const;
  size_t queue_pairs() const;

  int poll();
  size_t fetch();
  bool make_room_for_batch();
  void handle(const ibv_wc& completion);
  void handle_receive(const ibv_wc& completion);
  void handle_send(const ibv_wc& completion);
  std::string failure_text(const char* what, const ibv_wc& completion) const;
  RdmaEndpoint* find(uint32_t number);
  void post_receives();
  int run_active();
  void look_at_tails();
  int run_timers();
  void on_completion_event();
  void on_async_events();
  void on_async_event(ibv_event_type type, uint32_t number);
  void check_addresses();
  void check_suspects(uint64_t now);
  void probe_idle(uint64_t now);
  void break_all(std::string_view reason) noexcept;

  const TransportEnvironment environment_;
  Settings settings_;
  Status broken_;  // the device or its queues have failed
  std::unique_ptr<Device> device_;
  std::unique_ptr<ReceivePool> receives_;
  std::unique_ptr<MemoryRegionCache> memory_regions_;
  std::unique_ptr<ConnectionManager> manager_;
  Descriptor descriptor_;
  std::unique_ptr<NetworkListener> listener_;
  EventWatcher completion_watcher_{*this, Events::kCompletions};
  EventWatcher async_watcher_{*this, Events::kAsync};
  bool armed_ = false;  // the next completion makes an event

  std::vector<ibv_wc> inbox_;  // fetched; from next_ on not handled
  size_t next_ = 0;
  std::vector<ibv_wc> early_;  // of queue pairs whose connection is not complete
  uint64_t timers_checked_ns_ = 0;
  bool suspects_ = false;
  uint64_t next_probe_ns_ = 0;

  mutable bool told_ = false;  // that a peer makes connections in another way

  std::vector<Published> published_;
  std::vector<std::pair<const void*, DeviceWay>> device_ways_;  // by instance; of what is reached
  std::vector<RdmaEndpoint*> endpoints_;
  std::unordered_map<uint32_t, RdmaEndpoint*> by_number_;
  RdmaEndpoint* last_ = nullptr;       // found
  std::vector<RdmaEndpoint*> active_;  // nullptr: has left; closed up by run_active
  bool urgent_ = false;                // one of them has more than a silent tail
  uint64_t passes_ = 0;
  std::vector<std::unique_ptr<ConnectAttempt>> attempts_;
  std::vector<std::unique_ptr<Arrival>> arrivals_;
};

}  // namespace hetcomm::rdma
