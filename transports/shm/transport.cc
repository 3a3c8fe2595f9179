#include "transports/shm/transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "src/net/connector.h"
#include "src/net/socket_peer.h"
#include "src/system/clock.h"
#include "src/system/membarrier.h"
#include "src/system/random.h"
#include "src/system/variables.h"
#include "transports/shm/contact.h"
#include "transports/shm/variables.h"
#include "transports/shm/wake.h"

namespace hetcomm::shm {
namespace {

// Returns the configured sizes, clamped and rounded to a valid geometry.
Geometry geometry_from(const Config& config) {
  Geometry geometry;
  const uint64_t ring = config.number(variable::kShmRingBytes);
  geometry.ring_bytes = std::bit_ceil(std::clamp(ring, kMinRingBytes, kMaxRingBytes));
  const uint64_t most = std::min<uint64_t>(kMaxChunkBytes, geometry.ring_bytes / 4);
  const uint64_t chunk =
      std::clamp<uint64_t>(config.number(variable::kShmChunk), kMinChunkBytes, most);
  geometry.chunk_bytes = static_cast<uint32_t>(chunk / kRingAlign * kRingAlign);
  return geometry;
}

Result<std::string> random_socket_name() {
  std::array<std::byte, 16> bytes{};
  HETCOMM_RETURN_IF_ERROR(fill_random(bytes));
  std::string name = "hetcomm-";
  for (const std::byte byte : bytes) name += fmt::format("{:02x}", std::to_integer<int>(byte));
  return name;
}

}  // namespace

// A connection being established. The initiator connects, proves its identity (Connector) and sends
// an offer. The acceptor's Acceptor checks the peer, and then the acceptor waits for the offer.
class ShmTransport::Pending final : public ConnectHandler, public SetupHandler {
 public:
  Pending(ShmTransport& transport, const Destination& peer, bool initiator)
      : transport_(transport), peer_(peer), initiator_(initiator) {
    // A busy peer answers only when it next makes progress, so the time limit is that of an
    // operation.
    deadline_ns_ = deadline_after(transport.environment_.now_ns,
                                  transport.environment_.config.number(variable::kTimeout));
  }

  void connect(const Contact& target) {
    peer_ring_bytes_ = target.ring_bytes;
    const TransportEnvironment& environment = transport_.environment_;
    Hello hello = make_hello(environment.credentials, Role::kShm, environment.rank, peer_.rank);
    connector_ =
        Connector::create(environment.poller, {Address::local(target.socket)},
                          environment.credentials.secret, std::move(hello), deadline_ns_, *this);
    if (transport_.same_user_only()) connector_->require_same_user();
  }
  void fail_later(Status why) { failure_ = std::move(why); }
  void accept(UniqueFd socket) { begin_setup(std::move(socket)); }

  // Cancels the work in progress, without an upcall.
  void cancel() {
    finished_ = true;
    connector_.reset();
    setup_.reset();
  }
  bool finished() const { return finished_; }
  const Destination& peer() const { return peer_; }
  bool initiator() const { return initiator_; }

  int expire(uint64_t now) {
    if (finished_) return 0;
    if (!failure_.ok()) {
      finish(failure_);
    } else if (connector_ != nullptr) {
      connector_->expire(now);
    } else if (now >= deadline_ns_) {
      finish(Status(Code::kTimedOut, "shm: peer did not answer in time"));
    }
    return finished_ ? 1 : 0;
  }
  uint64_t next_timer_ns() const {
    if (finished_ || !failure_.ok()) return 0;
    return connector_ != nullptr ? connector_->next_timer_ns() : deadline_ns_;
  }

  void on_connect(Result<StreamSocket> socket) override {
    connector_.reset();
    if (!socket.ok()) {
      if (socket.status().code() == Code::kPermissionDenied) {
        transport_.environment_.log.warn_once(fmt::format("shm: {}", socket.status().text()));
      }
      finish(socket.status().annotate("shm"));
    } else {
      begin_setup(std::move(socket).value().take_fd());
    }
  }
  void on_setup(Setup&, Result<Connection> connection) override { finish(std::move(connection)); }

 private:
  void begin_setup(UniqueFd socket) {
    peer_name_ = peer_name(socket.get());
    const SetupContext& context = transport_.context_;
    Result<std::unique_ptr<Setup>> setup =
        initiator_ ? Setup::offer(std::move(socket), context, peer_ring_bytes_, *this)
                   : Setup::await_offer(std::move(socket), context, *this);
    if (!setup.ok()) {
      finish(setup.status());
    } else {
      setup_ = std::move(setup).value();
    }
  }

  void finish(Result<Connection> connection) {
    cancel();
    Result<std::unique_ptr<Endpoint>> endpoint =
        transport_.make_endpoint(peer_.rank, std::move(connection));
    const TransportEnvironment& environment = transport_.environment_;
    if (!endpoint.ok() && (!initiator_ || endpoint.status().code() == Code::kInvalidArgument)) {
      environment.log.warn("shm: connection with rank {} ({}) refused: {}", peer_.rank, peer_name_,
                           endpoint.status().text());
    }
    if (initiator_) {
      environment.handler.on_connected(peer_, std::move(endpoint));
    } else if (endpoint.ok()) {
      environment.handler.on_accepted(peer_.rank, std::move(endpoint).value());
    }
  }

  ShmTransport& transport_;
  const Destination peer_;
  bool initiator_;
  uint64_t peer_ring_bytes_ = 0;
  std::string peer_name_;  // the peer's process and user
  bool finished_ = false;
  uint64_t deadline_ns_ = 0;
  Status failure_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<Setup> setup_;
};

ShmTransport::ShmTransport(const TransportEnvironment& environment)
    : environment_(environment), context_{environment.poller,
                                          geometry_from(environment.config),
                                          register_global_membarrier(),
                                          {},
                                          {},
                                          environment.inside_node} {
  capabilities_ = shm_capabilities(environment.config, context_.geometry);
  if (environment.config.text(variable::kShmBulk) == "copy") {
    context_.reading = Status(Code::kUnsupported, "HETCOMM_SHM_BULK=copy");
  }
}

ShmTransport::~ShmTransport() = default;

Result<std::unique_ptr<ShmTransport>> ShmTransport::create(
    const TransportEnvironment& environment) {
  const Geometry geometry = geometry_from(environment.config);
  HETCOMM_RETURN_IF_ERROR(ConnectionMemory::check_support(geometry));
  std::unique_ptr<ShmTransport> transport(new ShmTransport(environment));
  HETCOMM_RETURN_IF_ERROR(fill_random(transport->context_.nonce));
  Result<std::string> name = random_socket_name();
  if (!name.ok()) return name.status();
  transport->own_ =
      Contact::of_this_process(std::move(name).value(), transport->context_.geometry.ring_bytes);
  Acceptor::Options options;
  options.credentials = environment.credentials;
  options.role = Role::kShm;
  options.rank = environment.rank;
  options.held = true;
  options.same_user = transport->same_user_only();
  Result<std::unique_ptr<Acceptor>> acceptor =
      Acceptor::create(environment.poller, environment.log, Address::local(transport->own_.socket),
                       options, *transport);
  if (!acceptor.ok()) return acceptor.status().annotate("shm");
  transport->acceptor_ = std::move(acceptor).value();
  return transport;
}

std::vector<std::byte> ShmTransport::contact() const { return own_.encode(); }

Status ShmTransport::reach(ConstByteSpan contact) const {
  Result<Contact> peer = Contact::decode(contact);
  if (!peer.ok()) return peer.status();
  return try_reach(own_, *peer);
}

// --- connections -----------------------------------------------------------------------------

void ShmTransport::connect(const Destination& destination, ConstByteSpan contact) {
  auto pending = std::make_unique<Pending>(*this, destination, true);
  Result<Contact> known = Contact::decode(contact);
  if (known.ok()) {
    pending->connect(*known);
  } else {
    pending->fail_later(known.status());
  }
  pending_.push_back(std::move(pending));
}

void ShmTransport::cancel_connect(const Destination& destination) {
  for (const auto& pending : pending_) {
    if (pending->initiator() && pending->peer() == destination) pending->cancel();
  }
}

void ShmTransport::on_accept(StreamSocket socket, const Hello& hello) {
  const int peer = hello.source;
  if (peer < 0 || peer >= environment_.size || peer == environment_.rank) {
    environment_.log.warn("shm: connection from rank {} refused: no such peer", peer);
    return;
  }
  // A peer that starts again has abandoned its earlier attempt.
  for (const auto& pending : pending_) {
    if (!pending->initiator() && pending->peer().rank == peer) pending->cancel();
  }
  pending_.push_back(std::make_unique<Pending>(*this, Destination{.rank = peer}, false));
  Pending& pending = *pending_.back();
  pending.accept(std::move(socket).take_fd());
}

Result<std::unique_ptr<Endpoint>> ShmTransport::make_endpoint(int peer,
                                                              Result<Connection> connection) {
  if (!connection.ok()) return connection.status();
  Result<std::unique_ptr<ShmEndpoint>> endpoint =
      ShmEndpoint::create(*this, peer, std::move(connection).value());
  if (!endpoint.ok()) return endpoint.status();
  environment_.log.debug("{}", (*endpoint)->describe());
  return std::unique_ptr<Endpoint>(std::move(endpoint).value());
}

int ShmTransport::run_timers() {
  const uint64_t now = environment_.now_ns;
  int done = 0;
  acceptor_->expire(now);
  prune_orphans();
  // Iterates by index, since upcalls can start further connections.
  // NOLINTNEXTLINE(modernize-loop-convert)
  for (size_t i = 0; i < pending_.size(); ++i) done += pending_[i]->expire(now);
  std::erase_if(pending_, [](const auto& pending) { return pending->finished(); });
  return done;
}

uint64_t ShmTransport::next_timer_ns() const {
  uint64_t next = acceptor_->next_timer_ns();
  for (const auto& pending : pending_) next = std::min(next, pending->next_timer_ns());
  return next;
}

// --- progress --------------------------------------------------------------------------------

void ShmTransport::add(ShmEndpoint& endpoint) {
  prune_orphans();
  // Each endpoint that ends can add one entry.
  orphans_.reserve(orphans_.size() + endpoints_.size() + 1);
  endpoints_.push_back(&endpoint);
}

void ShmTransport::remove(ShmEndpoint& endpoint) {
  const auto at = std::find(endpoints_.begin(), endpoints_.end(), &endpoint);
  if (at == endpoints_.end()) return;
  *at = nullptr;
  has_gaps_ = true;
}

// Removes the entries whose peer has closed its end of the socket.
void ShmTransport::prune_orphans() {
  std::erase_if(orphans_, [](const Orphans& each) {
    std::array<char, 64> dropped;
    ssize_t got = 0;
    while ((got = recv(each.socket.get(), dropped.data(), dropped.size(), MSG_DONTWAIT)) > 0) {
    }
    return got == 0 || errno != EAGAIN;
  });
}

bool ShmTransport::withdraw(const RemoteKey& key) {
  const uint64_t id = PublishedRegions::id_of(key);
  regions_.close(id);
  bool reached = false;
  for (ShmEndpoint* const endpoint : endpoints_) {
    reached = (endpoint != nullptr && endpoint->ask_to_let_go(id)) || reached;
  }
  prune_orphans();
  for (const Orphans& each : orphans_) {
    reached = each.regions.contains(id) || reached;
  }
  if (!reached) regions_.erase(id);
  return !reached;
}

int ShmTransport::progress() {
  int done = 0;
  if (!pending_.empty() || environment_.now_ns >= acceptor_->next_timer_ns()) [[unlikely]] {
    done += run_timers();
  }
  if (has_gaps_) {
    std::erase(endpoints_, nullptr);
    has_gaps_ = false;
  }
  // Iterates by index, since upcalls can add and remove endpoints.
  // NOLINTNEXTLINE(modernize-loop-convert)
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (endpoints_[i] != nullptr && !endpoints_[i]->idle()) done += endpoints_[i]->progress();
  }
  return done;
}

bool ShmTransport::prepare_sleep(Sleep sleep) {
  bool fence = false;
  bool barrier = false;
  for (ShmEndpoint* const endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    endpoint->announce_sleep();
    (endpoint->peer_fences() ? fence : barrier) = true;
  }
  if (fence || sleep == Sleep::kShort) std::atomic_thread_fence(std::memory_order_seq_cst);
  if (barrier && sleep == Sleep::kLong && !global_membarrier()) return false;
  return std::none_of(endpoints_.begin(), endpoints_.end(), [](ShmEndpoint* endpoint) {
    return endpoint != nullptr && endpoint->has_work();
  });
}

bool ShmTransport::may_sleep_on() const {
  return std::all_of(endpoints_.begin(), endpoints_.end(), [](ShmEndpoint* endpoint) {
    return endpoint == nullptr || endpoint->may_sleep_on();
  });
}

void ShmTransport::finish_sleep() {
  for (ShmEndpoint* const endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->end_sleep();
  }
}

}  // namespace hetcomm::shm
