#include "transports/tcp/transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/net/handshake.h"
#include "src/net/socket_options.h"
#include "transports/tcp/connect_attempt.h"

namespace hetcomm::tcp {
namespace {

constexpr uint32_t kMinChunk = 512;
constexpr uint64_t kMaxSocketBuffer = 1u << 30;
// Timers are a matter of seconds; looking at them in every progress() would be a waste.
constexpr uint64_t kTimerIntervalNs = 10'000'000;
constexpr uint32_t kLatencyNs = 10'000;
constexpr uint64_t kBandwidth = 4'000'000'000;

}  // namespace

Settings read_settings(const Config& config, bool tls) {
  Settings settings;
  const uint64_t streams = config.number(Variable::kTcpStreams);
  settings.auto_streams = streams == 0;
  settings.streams = std::clamp<size_t>(streams, 1, kMaxBulkStreams);
  settings.chunk = static_cast<uint32_t>(
      std::clamp<uint64_t>(config.number(Variable::kTcpChunk), kMinChunk, kMaxPutBytes));
  settings.socket_buffer =
      static_cast<int>(std::min(config.number(Variable::kTcpSocketBuffer), kMaxSocketBuffer));
  settings.detection_ns = std::max(config.number(Variable::kDetectionTime), kMinDetectionNs);
  Capabilities& capabilities = settings.capabilities;
  capabilities.put = true;
  capabilities.target_sees_put = true;
  capabilities.protected_in_transit = tls;
  capabilities.max_payload_bytes = kMaxMessageBytes;
  capabilities.eager_limit_bytes = config.number(Variable::kTcpEager);
  capabilities.chunk_bytes = settings.chunk;
  capabilities.latency_ns = kLatencyNs;
  capabilities.bandwidth_bytes_per_s = kBandwidth;
  return settings;
}

// --- set-up ----------------------------------------------------------------------------------

TcpTransport::TcpTransport(const TransportEnvironment& environment,
                           std::shared_ptr<const TlsContext> tls)
    : environment_(environment),
      tls_(std::move(tls)),
      settings_(read_settings(environment.config, tls_ != nullptr)),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(kScratchBytes)) {}

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
  Result<std::unique_ptr<NetworkListener>> listener = NetworkListener::create(
      environment_.poller, environment_.log, environment_.config, environment_.route, "tcp",
      {.credentials = environment_.credentials,
       .role = Role::kTcp,
       .rank = environment_.rank,
       .tls = tls_},
      *this);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  for (size_t i = 0; i < listener_->interfaces().size(); ++i) {
    environment_.log.info("tcp: listening on {} ({}, which {})",
                          listener_->place().addresses[i].to_string(), listener_->interfaces()[i],
                          environment_.config.text(Variable::kInterface).empty()
                              ? "is up; HETCOMM_INTERFACE names none"
                              : "HETCOMM_INTERFACE names");
  }
  return {};
}

void TcpTransport::set_socket_buffers(int fd) const {
  const int size = settings_.socket_buffer;
  if (size == 0) return;
  // Best effort: the kernel may cap them.
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

// --- making connections ----------------------------------------------------------------------

std::vector<std::byte> TcpTransport::descriptor() const {
  return encode_descriptor(listener_->place());
}

Status TcpTransport::start() { return listener_->open(environment_.credentials).annotate("tcp"); }

Result<std::vector<Address>> TcpTransport::reachable(ConstByteSpan descriptor) const {
  Result<ListeningPlace> decoded = decode_descriptor(descriptor);
  if (!decoded.ok()) return decoded.status();
  Result<std::vector<Address>> usable = usable_addresses(listener_->place(), *decoded);
  if (!usable.ok()) return usable.status().annotate("tcp");
  return usable;
}

Status TcpTransport::reach(ConstByteSpan descriptor) const {
  return reachable(descriptor).status();
}

void TcpTransport::connect(int peer, ConstByteSpan descriptor) {
  StreamName name;
  Result<std::vector<Address>> target = reachable(descriptor);
  Status status = target.status();
  if (status.ok()) status = fill_random(name.connection);
  std::vector<Address> addresses;
  if (status.ok()) addresses = std::move(target).value();
  begin(std::make_unique<ConnectAttempt>(*this, peer, name, std::move(addresses), status));
}

void TcpTransport::open_stream(TcpEndpoint& endpoint, size_t index) {
  for (const auto& attempt : attempts_) {
    if (attempt->endpoint() == &endpoint && attempt->name().index == index) return;
  }
  const StreamName name{.connection = endpoint.name().id, .index = static_cast<uint8_t>(index)};
  auto attempt = std::make_unique<ConnectAttempt>(*this, endpoint.name().peer, name,
                                                  std::vector{endpoint.peer_address()}, Status());
  attempt->set_endpoint(endpoint);
  begin(std::move(attempt));
}

void TcpTransport::begin(std::unique_ptr<ConnectAttempt> attempt) {
  ConnectAttempt& started = *attempt;
  attempts_.push_back(std::move(attempt));
  timers_checked_ns_ = 0;
  try {
    started.start(environment_);
  } catch (const std::bad_alloc&) {
    attempts_.pop_back();  // one that never began never ends
    throw;
  }
}

void TcpTransport::cancel_connect(int peer) {
  std::erase_if(attempts_, [&](const auto& attempt) {
    return attempt->endpoint() == nullptr && attempt->peer() == peer;
  });
}

void TcpTransport::cancel_streams(const TcpEndpoint& endpoint) {
  std::erase_if(attempts_, [&](const auto& attempt) { return attempt->endpoint() == &endpoint; });
}

bool TcpTransport::is_opening_stream(const TcpEndpoint& endpoint) const {
  return std::any_of(attempts_.begin(), attempts_.end(),
                     [&](const auto& attempt) { return attempt->endpoint() == &endpoint; });
}

void TcpTransport::finish(ConnectAttempt& attempt, Result<StreamSocket> socket) {
  const auto position = std::find_if(attempts_.begin(), attempts_.end(),
                                     [&](const auto& entry) { return entry.get() == &attempt; });
  const std::unique_ptr<ConnectAttempt> owned = std::move(*position);
  attempts_.erase(position);
  if (TcpEndpoint* endpoint = owned->endpoint(); endpoint != nullptr) {
    if (socket.ok()) {
      endpoint->attach(owned->name().index, std::move(socket).value());
    } else {
      endpoint->stream_unavailable(socket.status());
    }
    return;
  }
  if (!socket.ok()) {
    environment_.handler.on_connected(owned->peer(), socket.status().annotate("tcp"));
    return;
  }
  const ConnectionName name{
      .peer = owned->peer(), .id = owned->name().connection, .initiator = true};
  std::unique_ptr<Endpoint> endpoint =
      std::make_unique<TcpEndpoint>(*this, name, std::move(socket).value());
  environment_.handler.on_connected(name.peer, std::move(endpoint));
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
  // Room first, so that activate() does not fail: in a pass each endpoint may become active again
  // after it has left the list.
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
  const size_t count = active_.size();  // what becomes active meanwhile has its turn next time
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
  // An upcall may start and cancel attempts: ask for the next due one until there is none.
  int done = 0;
  for (size_t left = attempts_.size(); left > 0; --left) {
    const auto due = std::find_if(attempts_.begin(), attempts_.end(), [&](const auto& attempt) {
      return attempt->next_timer_ns() <= now;
    });
    if (due == attempts_.end()) break;
    (*due)->expire(environment_);
    ++done;
  }
  return done;
}

// While anything may be unacknowledged, and not at all otherwise.
void TcpTransport::watch_paths(uint64_t now) {
  if (!watch_paths_) {
    watch_at_ns_ = kForever;
  } else if (watch_at_ns_ == kForever) {
    watch_at_ns_ = now + PathWatch::interval_ns(detection_ns());
  } else if (now >= watch_at_ns_) {
    watch_at_ns_ = now + PathWatch::interval_ns(detection_ns());
    watch_paths_ = false;
    // By index: an upcall may make endpoints. NOLINTNEXTLINE(modernize-loop-convert)
    for (size_t i = 0; i < endpoints_.size(); ++i) {
      if (endpoints_[i]->watch_path()) watch_paths_ = true;
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
  for (const auto& attempt : attempts_) next = std::min(next, attempt->next_timer_ns());
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
