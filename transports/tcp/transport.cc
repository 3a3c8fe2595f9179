#include "transports/tcp/transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "src/net/handshake.h"
#include "src/net/listening_socket.h"
#include "src/net/socket_options.h"
#include "src/net/variables.h"
#include "src/system/clock.h"
#include "src/system/random.h"

namespace hetcomm::tcp {
namespace {

// Timers run for seconds, so checking them in each progress() would be wasteful.
constexpr uint64_t kTimerIntervalNs = 10'000'000;

}  // namespace

// --- set-up ----------------------------------------------------------------------------------

TcpTransport::TcpTransport(const TransportEnvironment& environment,
                           std::shared_ptr<const TlsContext> tls)
    : environment_(environment),
      tls_(std::move(tls)),
      settings_(read_settings(environment.config, tls_ != nullptr)),
      buffers_(environment.buffer_node),
      scratch_(allocate_near(kScratchBytes, environment.buffer_node)) {
  if (scratch_ == nullptr) throw std::bad_alloc();
}

TcpTransport::~TcpTransport() = default;

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(
    const TransportEnvironment& environment) {
  Result<std::shared_ptr<const TlsContext>> tls =
      TlsContext::create(environment.config, environment.log);
  if (!tls.ok()) return tls.status();
  std::unique_ptr<TcpTransport> transport(new TcpTransport(environment, std::move(tls).value()));
  HETCOMM_RETURN_IF_ERROR(transport->listen());
  return transport;
}

Status TcpTransport::listen() {
  const BoundNic* const nic = environment_.nic;
  Result<std::unique_ptr<NetworkListener>> listener = NetworkListener::create(
      environment_.poller, environment_.log, environment_.config, environment_.interfaces,
      nic != nullptr ? std::string_view(nic->interface) : std::string_view(), "tcp",
      {.credentials = environment_.credentials,
       .role = Role::kTcp,
       .rank = environment_.rank,
       .tls = tls_,
       .device = nic != nullptr && nic->shares_subnet ? nic->interface : std::string()},
      *this);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  if (nic != nullptr) {
    for (const Address& each : listener_->host().addresses) {
      if (!each.is_loopback()) local_end_.addresses.push_back(each.with_port(0));
    }
    if (nic->shares_subnet) local_end_.device = nic->interface;
  }
  for (size_t i = 0; i < listener_->interfaces().size(); ++i) {
    environment_.log.info("tcp: listening on {} ({}, which {})",
                          listener_->host().addresses[i].to_string(), listener_->interfaces()[i],
                          environment_.config.text(variable::kInterface).empty()
                              ? "is up; HETCOMM_INTERFACE names none"
                              : "HETCOMM_INTERFACE names");
  }
  return {};
}

void TcpTransport::set_socket_buffers(int fd) const {
  const int size = settings_.socket_buffer;
  if (size == 0) return;
  // Best effort: the kernel may cap these sizes.
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

// --- making connections ----------------------------------------------------------------------

std::vector<std::byte> TcpTransport::contact() const { return encode_contact(listener_->host()); }

Status TcpTransport::start() { return listener_->open(environment_.credentials).annotate("tcp"); }

Result<std::vector<Address>> TcpTransport::reachable(ConstByteSpan contact) const {
  Result<ListeningHost> decoded = decode_contact(contact);
  if (!decoded.ok()) return decoded.status();
  Result<std::vector<Address>> usable = usable_addresses(listener_->host(), *decoded);
  if (!usable.ok()) return usable.status().annotate("tcp");
  return usable;
}

Status TcpTransport::reach(ConstByteSpan contact) const { return reachable(contact).status(); }

void TcpTransport::connect(const Destination& destination, ConstByteSpan contact) {
  StreamName name;
  Result<std::vector<Address>> known = reachable(contact);
  Status status = known.status();
  if (status.ok()) status = fill_random(name.connection);
  std::vector<Address> addresses;
  if (status.ok()) addresses = std::move(known).value();
  begin(destination, name, std::move(addresses), status, nullptr);
}

void TcpTransport::open_stream(TcpEndpoint& endpoint, size_t index) {
  for (const Connecting& each : connecting_) {
    if (each.endpoint == &endpoint && each.attempt->name().index == index) return;
  }
  const StreamName name{.connection = endpoint.name().id, .index = static_cast<uint8_t>(index)};
  begin({.rank = endpoint.name().peer}, name, {endpoint.peer_address()}, {}, &endpoint);
}

void TcpTransport::begin(const Destination& destination, const StreamName& name,
                         std::vector<Address> addresses, Status refused, TcpEndpoint* endpoint) {
  // Connections within this host use no network interface.
  const bool same_host = environment_.nic != nullptr && !addresses.empty() &&
                         (addresses.front().is_loopback() || is_local(addresses.front()));
  connecting_.push_back({std::make_unique<ConnectAttempt>(
                             ConnectAttempt::Context{environment_, tls_, settings_.detection_ns,
                                                     same_host ? anywhere_ : local_end_},
                             *this, destination, name, std::move(addresses), std::move(refused)),
                         endpoint});
  timers_checked_ns_ = 0;
  try {
    connecting_.back().attempt->start();
  } catch (const std::bad_alloc&) {
    connecting_.pop_back();  // start() has failed, so the attempt will report nothing
    throw;
  }
}

void TcpTransport::cancel_connect(const Destination& destination) {
  std::erase_if(connecting_, [&](const Connecting& each) {
    return each.endpoint == nullptr && each.attempt->destination() == destination;
  });
}

void TcpTransport::cancel_streams(const TcpEndpoint& endpoint) {
  std::erase_if(connecting_, [&](const Connecting& each) { return each.endpoint == &endpoint; });
}

bool TcpTransport::is_opening_stream(const TcpEndpoint& endpoint) const {
  return std::any_of(connecting_.begin(), connecting_.end(),
                     [&](const Connecting& each) { return each.endpoint == &endpoint; });
}

void TcpTransport::on_attempt_ended(ConnectAttempt& attempt, Result<StreamSocket> socket) {
  const auto position =
      std::find_if(connecting_.begin(), connecting_.end(),
                   [&](const Connecting& each) { return each.attempt.get() == &attempt; });
  const Connecting ended = std::move(*position);
  connecting_.erase(position);
  if (ended.endpoint != nullptr) {
    if (socket.ok()) {
      ended.endpoint->attach(attempt.name().index, std::move(socket).value());
    } else {
      ended.endpoint->stream_unavailable(socket.status());
    }
    return;
  }
  const Destination& destination = attempt.destination();
  if (!socket.ok()) {
    environment_.handler.on_connected(destination, socket.status().annotate("tcp"));
    return;
  }
  const ConnectionName name{
      .peer = destination.rank, .id = attempt.name().connection, .initiator = true};
  std::unique_ptr<Endpoint> endpoint =
      std::make_unique<TcpEndpoint>(*this, name, std::move(socket).value());
  environment_.handler.on_connected(destination, std::move(endpoint));
}

void TcpTransport::on_accept(StreamSocket socket, const Hello& hello) {
  const std::optional<StreamName> name = decode_stream_name(hello.extra);
  if (hello.source < 0 || hello.source >= environment_.rank || !name) {
    environment_.log.debug("tcp: refused a stream of rank {}: {}", hello.source,
                           name ? "only lower ranks connect" : "malformed stream name");
  } else if (name->index == 0) {
    accept_messages(hello.source, name->connection, std::move(socket));
  } else {
    accept_bulk(hello.source, *name, std::move(socket));
  }
}

void TcpTransport::accept_messages(int peer, const ConnectionId& id, StreamSocket socket) {
  if (find(id, peer) != nullptr) {
    environment_.log.debug("tcp: refused a second message stream of rank {}", peer);
    return;
  }
  const ConnectionName name{.peer = peer, .id = id};
  auto endpoint = std::make_unique<TcpEndpoint>(*this, name, std::move(socket));
  for (EarlyStream& early : early_) {
    if (early.peer != peer || early.name.connection != id) continue;
    endpoint->attach(early.name.index, std::move(early.socket));
  }
  std::erase_if(early_, [](const EarlyStream& early) { return !early.socket.valid(); });
  environment_.handler.on_accepted(peer, std::move(endpoint));
}

void TcpTransport::accept_bulk(int peer, const StreamName& name, StreamSocket socket) {
  TcpEndpoint* endpoint = find(name.connection, peer);
  if (endpoint == nullptr) {
    if (early_.size() == kMaxEarly) early_.erase(early_.begin());
    early_.push_back({name, peer, std::move(socket), now_ns() + kHandshakeTimeoutNs});
  } else if (!endpoint->name().initiator) {
    endpoint->attach(name.index, std::move(socket));
  }
}

TcpEndpoint* TcpTransport::find(const ConnectionId& id, int peer) {
  const auto at = std::find_if(endpoints_.begin(), endpoints_.end(), [&](const TcpEndpoint* entry) {
    return entry->name().peer == peer && entry->name().id == id;
  });
  return at == endpoints_.end() ? nullptr : *at;
}

void TcpTransport::add_endpoint(TcpEndpoint& endpoint) {
  // Reserves memory now, so that activate() cannot fail. Within one pass an endpoint can become
  // active again after it has left the list, so it may need two entries.
  active_.reserve(active_.size() + 2 * (endpoints_.size() + 1));
  endpoints_.push_back(&endpoint);
}

void TcpTransport::remove_endpoint(TcpEndpoint& endpoint) {
  cancel_streams(endpoint);
  std::erase(endpoints_, &endpoint);
  if (endpoint.active_index != TcpEndpoint::kInactive) active_[endpoint.active_index] = nullptr;
}

// --- progress --------------------------------------------------------------------------------

void TcpTransport::activate(TcpEndpoint& endpoint) {
  if (endpoint.active_index != TcpEndpoint::kInactive) return;
  endpoint.active_index = active_.size();
  active_.push_back(&endpoint);
}

int TcpTransport::progress() {
  int done = hot_.poll();
  if (!active_.empty()) done += run_active();
  if (environment_.now_ns >= timers_checked_ns_) done += run_timers();
  return done;
}

int TcpTransport::run_active() {
  int done = 0;
  const size_t count = active_.size();  // endpoints activated later wait for the next pass
  for (size_t i = 0; i < count; ++i) {
    TcpEndpoint* endpoint = active_[i];
    if (endpoint == nullptr) continue;
    done += endpoint->progress();
    if (endpoint->has_work()) continue;
    endpoint->active_index = TcpEndpoint::kInactive;
    active_[i] = nullptr;
  }
  size_t kept = 0;
  for (TcpEndpoint* endpoint : active_) {
    if (endpoint == nullptr) continue;
    endpoint->active_index = kept;
    active_[kept++] = endpoint;
  }
  active_.resize(kept);
  return done;
}

int TcpTransport::run_timers() {
  const uint64_t now = environment_.now_ns;
  timers_checked_ns_ = now + kTimerIntervalNs;
  listener_->expire(now);
  std::erase_if(early_, [now](const EarlyStream& early) { return now >= early.expires_ns; });
  watch_paths(now);
  // An upcall can start and cancel attempts, so each iteration looks up the next due attempt again.
  int done = 0;
  for (size_t left = connecting_.size(); left > 0; --left) {
    const auto due =
        std::find_if(connecting_.begin(), connecting_.end(),
                     [&](const Connecting& each) { return each.attempt->next_timer_ns() <= now; });
    if (due == connecting_.end()) break;
    due->attempt->expire(now);
    ++done;
  }
  return done;
}

// Checks the paths only while data may be unacknowledged.
void TcpTransport::watch_paths(uint64_t now) {
  if (!watch_paths_) {
    watch_at_ns_ = kForever;
  } else if (watch_at_ns_ == kForever) {
    watch_at_ns_ = now + PathWatch::interval_ns(detection_ns());
  } else if (now >= watch_at_ns_) {
    watch_at_ns_ = now + PathWatch::interval_ns(detection_ns());
    watch_paths_ = false;
    // The loop uses an index because an upcall can create or destroy endpoints.
    // NOLINTNEXTLINE(modernize-loop-convert)
    for (size_t i = 0; i < endpoints_.size(); ++i) {
      const size_t count = endpoints_.size();
      if (endpoints_[i]->watch_path()) watch_paths_ = true;
      // If the upcall has destroyed an endpoint, the loop may skip another one, which is then
      // checked after the next interval.
      if (endpoints_.size() < count) watch_paths_ = true;
    }
  }
}

bool TcpTransport::prepare_sleep(Sleep) {
  timers_checked_ns_ = 0;
  bool may_sleep = true;
  for (TcpEndpoint* endpoint : active_) {
    if (endpoint != nullptr && !endpoint->prepare_sleep()) may_sleep = false;
  }
  return may_sleep;
}

bool TcpTransport::may_sleep_on() const {
  return std::none_of(active_.begin(), active_.end(), [](const TcpEndpoint* endpoint) {
    return endpoint != nullptr && endpoint->has_work();
  });
}

uint64_t TcpTransport::next_timer_ns() const {
  uint64_t next = listener_->next_timer_ns();
  for (const Connecting& each : connecting_) next = std::min(next, each.attempt->next_timer_ns());
  if (watch_paths_) {
    const uint64_t in_an_interval = now() + PathWatch::interval_ns(detection_ns());
    next = std::min({next, watch_at_ns_, in_an_interval});
  }
  for (const TcpEndpoint* endpoint : active_) {
    if (endpoint != nullptr) next = std::min(next, endpoint->deadline_ns());
  }
  return next;
}

}  // namespace hetcomm::tcp
