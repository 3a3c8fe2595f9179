#include "transports/rdma/pending_connections.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "transports/rdma/connect_attempt.h"
#include "transports/rdma/endpoint.h"

namespace hetcomm::rdma {

PendingConnections::PendingConnections(Port& port, EndpointTable& endpoints)
    : port_(port), endpoints_(endpoints) {}

PendingConnections::~PendingConnections() {
  // Arrivals and attempts use the listener and the manager, so they are destroyed first.
  arrivals_.clear();
  attempts_.clear();
  listener_.reset();
}

Status PendingConnections::open(bool use_cm, const Cm* cm) {
  const TransportEnvironment& environment = port_.environment();
  if (use_cm) {
    Result<std::unique_ptr<ConnectionManager>> manager = ConnectionManager::create(
        cm, port_.device(), environment.config, port_.poller(), port_.log(), *this);
    if (!manager.ok()) return manager.status();
    manager_ = std::move(manager).value();
  }
  contact_.ethernet = port_.nic().ethernet;
  contact_.by_cm = manager_ != nullptr;
  for (const Gid& gid : port_.nic().gids) {
    if (is_usable(gid)) contact_.gids.push_back(gid);
  }
  contact_.nic = port_.nic().name();
  Result<std::unique_ptr<NetworkListener>> listener = NetworkListener::create(
      environment.poller, environment.log, environment.config, environment.interfaces, {}, "rdma",
      {.credentials = environment.credentials, .role = Role::kRdma, .rank = environment.rank},
      *this);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  contact_.host = listener_->host();
  return {};
}

Status PendingConnections::start() {
  return listener_->open(port_.environment().credentials).annotate("rdma");
}

bool PendingConnections::is_usable(const Gid& gid) const {
  return manager_ == nullptr || manager_->address_of(gid).has_value();
}

Result<PendingConnections::Way> PendingConnections::way_to(ConstByteSpan bytes) const {
  if (!port_.broken().ok()) return port_.broken();
  Result<Contact> decoded = decode_contact(bytes);
  if (!decoded.ok()) return decoded.status();
  const Nic& nic = port_.nic();
  if (decoded->ethernet != nic.ethernet) {
    return Status(Code::kUnsupported,
                  fmt::format("rdma: {} is {} here, the peer's {} is {}", nic.name(),
                              nic.ethernet ? "Ethernet" : "InfiniBand", decoded->nic,
                              decoded->ethernet ? "Ethernet" : "InfiniBand"));
  }
  if (decoded->by_cm != contact_.by_cm) {
    Status differs(Code::kUnsupported,
                   fmt::format("rdma: HETCOMM_RDMA_CONNECT is {} here and {} at the peer's {}: set "
                               "it alike on all ranks",
                               contact_.by_cm ? "cm" : "exchange",
                               decoded->by_cm ? "cm" : "exchange", decoded->nic));
    // Logged because another transport may connect to the peer, which would hide the mismatch.
    if (!std::exchange(warned_, true)) port_.environment().log.warn("{}", differs.text());
    return differs;
  }
  Way way;
  // Chooses the best GID kind that both sides have, and the two addresses of that kind with the
  // longest common prefix.
  bool found = false;
  size_t most_alike = 0;
  for (const Gid& mine : nic.gids) {
    if (!is_usable(mine) || (found && mine.kind != way.mine.kind)) continue;
    for (const Gid& theirs : decoded->gids) {
      if (theirs.kind != mine.kind) continue;
      const size_t alike = common_prefix_bits(mine.bytes, theirs.bytes);
      if (found && alike <= most_alike) continue;
      way.mine = mine;
      way.peer = theirs.bytes;
      most_alike = alike;
      found = true;
    }
  }
  if (nic.gids.empty()) {
    return Status(Code::kUnsupported, fmt::format("rdma: {} has no address any more", nic.name()));
  }
  if (!found) {
    return Status(Code::kUnsupported,
                  fmt::format("rdma: no kind of address in common: {} here ({}), {} at the peer's "
                              "{}; see HETCOMM_RDMA_GID_INDEX",
                              gid_kind_name(nic.gids.front().kind), nic.name(),
                              gid_kind_name(decoded->gids.front().kind), decoded->nic));
  }
  Result<std::vector<Address>> usable = usable_addresses(contact_.host, decoded->host);
  if (!usable.ok()) return usable.status().annotate("rdma");
  way.addresses = std::move(usable).value();
  return way;
}

void PendingConnections::connect(const Destination& destination, ConstByteSpan contact) {
  // Opening a closed port reads its addresses, which may have changed since the port was found.
  const Status open = port_.broken().ok() ? port_.open() : port_.broken();
  Result<Way> way = open.ok() ? way_to(contact) : Result<Way>(open);
  attempts_.push_back(std::make_unique<ConnectAttempt>(*this, port_, destination, way.status()));
  if (way.ok()) attempts_.back()->start(std::move(way->addresses), way->mine, way->peer);
}

void PendingConnections::cancel(const Destination& destination) {
  std::erase_if(attempts_,
                [&](const auto& attempt) { return attempt->destination() == destination; });
}

std::unique_ptr<Endpoint> PendingConnections::make_endpoint(Connected connected) {
  return std::make_unique<RdmaEndpoint>(port_, endpoints_, std::move(connected));
}

void PendingConnections::finish(ConnectAttempt& attempt,
                                Result<std::unique_ptr<Endpoint>> endpoint) noexcept {
  const auto at = std::find_if(attempts_.begin(), attempts_.end(),
                               [&](const auto& each) { return each.get() == &attempt; });
  const std::unique_ptr<ConnectAttempt> owned = std::move(*at);
  attempts_.erase(at);
  port_.environment().handler.on_connected(owned->destination(), std::move(endpoint));
}

void PendingConnections::on_accept(StreamSocket socket, const Hello& hello) {
  if (hello.source < 0 || hello.source >= port_.environment().rank) {
    port_.log().debug("rdma: refused rank {}: only lower ranks connect", hello.source);
    return;
  }
  const size_t before = arrivals_.size();
  bool started = false;
  try {
    // Before the connection is complete, a peer can send at most as many messages as it has
    // credits. Their completions are put aside.
    port_.completions().reserve_aside((before + 1) * port_.settings().credits);
    arrivals_.push_back(
        std::make_unique<Arrival>(*this, port_, hello.source, std::move(socket).take_fd()));
    started = arrivals_.back()->start(hello.extra);
  } catch (const std::bad_alloc&) {
    port_.log().error("rdma: out of memory: a connection of rank {} was given up", hello.source);
  }
  if (!started && arrivals_.size() > before) arrivals_.pop_back();
}

void PendingConnections::on_request(const CmToken& token,
                                    std::unique_ptr<CmConnection> connection) {
  for (const auto& arrival : arrivals_) {
    if (arrival->awaits(token)) return arrival->take(std::move(connection));
  }
  port_.log().debug("rdma: refused a connection by rdma_cm: no rank is expected with its token");
  connection->refuse({});
}

void PendingConnections::finish(Arrival& arrival, std::unique_ptr<Endpoint> endpoint) noexcept {
  const auto at = std::find_if(arrivals_.begin(), arrivals_.end(),
                               [&](const auto& each) { return each.get() == &arrival; });
  const std::unique_ptr<Arrival> owned = std::move(*at);
  arrivals_.erase(at);
  if (endpoint) {
    port_.environment().handler.on_accepted(owned->peer(), std::move(endpoint));
    return;
  }
  owned->stop();
  port_.discard_arrived(owned->number());
}

bool PendingConnections::owns(uint32_t number) const {
  return std::any_of(arrivals_.begin(), arrivals_.end(),
                     [&](const auto& arrival) { return arrival->number() == number; });
}

size_t PendingConnections::queue_pairs() const {
  return endpoints_.queue_pairs() + attempts_.size() + arrivals_.size();
}

int PendingConnections::run_timers(uint64_t now) {
  listener_->expire(now);
  int done = 0;
  // An upcall may start and cancel attempts, so each iteration looks up the next due attempt again.
  const auto run = [&](auto& list) {
    for (size_t left = list.size(); left > 0; --left) {
      const auto due = std::find_if(list.begin(), list.end(),
                                    [&](const auto& each) { return each->next_timer_ns() <= now; });
      if (due == list.end()) break;
      (*due)->expire(now);
      ++done;
    }
  };
  run(attempts_);
  run(arrivals_);
  return done;
}

uint64_t PendingConnections::next_timer_ns() const {
  uint64_t next = listener_->next_timer_ns();
  for (const auto& attempt : attempts_) next = std::min(next, attempt->next_timer_ns());
  for (const auto& arrival : arrivals_) next = std::min(next, arrival->next_timer_ns());
  return next;
}

}  // namespace hetcomm::rdma
