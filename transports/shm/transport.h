// Establishes all shared-memory connections of one job, and polls them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/net/acceptor.h"
#include "src/net/variables.h"
#include "transports/shm/contact.h"
#include "transports/shm/endpoint.h"
#include "transports/shm/setup.h"
#include "transports/transport.h"

namespace hetcomm::shm {

class ShmTransport final : public Transport, public RegionPublisher, private AcceptHandler {
 public:
  static Result<std::unique_ptr<ShmTransport>> create(const TransportEnvironment& environment);
  ~ShmTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  TransportAbilities abilities() override {
    return {.regions = capabilities_.map ? this : nullptr};
  }
  std::vector<std::byte> contact() const override;
  Status start() override { return acceptor_->open(environment_.credentials).annotate("shm"); }
  Status reach(ConstByteSpan contact) const override;
  void connect(const Destination& destination, ConstByteSpan contact) override;
  void cancel_connect(const Destination& destination) override;
  int progress() override;
  bool prepare_sleep(Sleep sleep) override;
  bool may_sleep_on() const override;
  void finish_sleep() override;
  uint64_t next_timer_ns() const override;

  Result<RemoteKey> publish(const Region& region) override { return regions_.add(region); }
  bool withdraw(const RemoteKey& key) override;

  // --- for ShmEndpoint
  PublishedRegions& regions() { return regions_; }
  // Keeps regions that a peer still maps although this side has ended the connection. The other end
  // of |socket| closes when the peer has unmapped them. add() has reserved memory for the entries.
  void add_orphans(UniqueFd socket, SharedRegions regions) {
    orphans_.push_back({std::move(socket), std::move(regions)});
  }
  const TransportEnvironment& environment() const { return environment_; }
  void add(ShmEndpoint& endpoint);
  void remove(ShmEndpoint& endpoint);

 private:
  class Pending;
  explicit ShmTransport(const TransportEnvironment& environment);

  void on_accept(StreamSocket socket, const Hello& peer) override;
  Result<std::unique_ptr<Endpoint>> make_endpoint(int peer, Result<Connection> connection);
  bool same_user_only() const { return environment_.config.text(variable::kShmUsers) == "same"; }
  int run_timers();
  void prune_orphans();

  struct Orphans {
    UniqueFd socket;
    SharedRegions regions;
  };

  TransportEnvironment environment_;
  PublishedRegions regions_;
  std::vector<Orphans> orphans_;
  Capabilities capabilities_;
  SetupContext context_;
  Contact own_;
  std::unique_ptr<Acceptor> acceptor_;
  // Connections being established, in both directions. run_timers() removes finished entries.
  std::vector<std::unique_ptr<Pending>> pending_;
  std::vector<ShmEndpoint*> endpoints_;  // null: removed since the last progress()
  bool has_gaps_ = false;
};

}  // namespace hetcomm::shm
