#include "src/net/acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "src/net/handshake.h"
#include "src/net/listening_socket.h"
#include "src/net/socket_options.h"
#include "src/net/socket_peer.h"

namespace hetcomm {
namespace {

constexpr int kBacklog = 4096;
constexpr int kAcceptBatch = 64;
constexpr uint64_t kWarningIntervalNs = 60'000'000'000;

// Errors of accept() that say that this process or host is short of something.
bool is_exhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

// One connection that has not proved itself yet.
class Acceptor::Pending final : public Watcher {
 public:
  Pending(Acceptor& owner, StreamSocket socket, uint64_t now)
      : owner_(owner),
        socket_(std::move(socket)),
        handshake_(Handshake::acceptor(socket_.get(), owner.options_.credentials,
                                       owner.options_.role, owner.options_.rank,
                                       owner.options_.any_identity, socket_.tls())),
        start_ns_(now) {}
  ~Pending() {
    if (socket_.valid()) owner_.poller_.remove(socket_.get(), *this);
  }

  Status watch(uint32_t events) { return owner_.poller_.add(socket_.get(), events, *this); }

  void on_events(uint32_t /*events*/) override {
    switch (handshake_.advance()) {
      case Handshake::Step::kWantRead:
        set_events(EPOLLIN);
        return;
      case Handshake::Step::kWantWrite:
        set_events(EPOLLOUT);
        return;
      case Handshake::Step::kDone:
        owner_.finish(*this, {});
        return;
      case Handshake::Step::kFailed:
        owner_.finish(*this, handshake_.error());
        return;
    }
  }

  StreamSocket take_socket() {
    owner_.poller_.remove(socket_.get(), *this);
    return std::move(socket_);
  }
  const Handshake& handshake() const { return handshake_; }
  uint64_t start_ns() const { return start_ns_; }
  std::string name() const { return peer_name(socket_.get()); }

 private:
  void set_events(uint32_t events) {
    if (events == events_) return;
    events_ = events;
    const Status status = owner_.poller_.modify(socket_.get(), events, *this);
    if (!status.ok()) owner_.finish(*this, status);
  }

  Acceptor& owner_;
  StreamSocket socket_;
  Handshake handshake_;
  const uint64_t start_ns_;
  uint32_t events_ = EPOLLIN;
};

Acceptor::Acceptor(Poller& poller, Log& log, Options options, AcceptHandler& handler)
    : poller_(poller), log_(log), options_(std::move(options)), handler_(handler) {}

Result<std::unique_ptr<Acceptor>> Acceptor::create(Poller& poller, Log& log, const Address& address,
                                                   Options options, AcceptHandler& handler) {
  Result<UniqueFd> listener = listen_on(address, kBacklog, options.ports, options.device);
  if (!listener.ok()) return listener.status();
  Result<Address> bound = bound_address(listener->get());
  if (!bound.ok()) return bound.status();
  std::unique_ptr<Acceptor> acceptor(new Acceptor(poller, log, std::move(options), handler));
  // One that is held is known to the poller all the same: forked children close it.
  const uint32_t events = acceptor->options_.held ? 0u : uint32_t{EPOLLIN};
  HETCOMM_RETURN_IF_ERROR(poller.add(listener->get(), events, *acceptor));
  acceptor->listener_ = std::move(listener).value();
  acceptor->address_ = bound.value();
  return acceptor;
}

Acceptor::~Acceptor() {
  pending_.clear();
  if (listener_.valid()) poller_.remove(listener_.get(), *this);
}

Status Acceptor::open(const Credentials& credentials) {
  options_.credentials = credentials;
  options_.held = false;
  return poller_.modify(listener_.get(), EPOLLIN, *this);
}

void Acceptor::on_events(uint32_t /*events*/) {
  if (!options_.held) accept_ready(now_ns());
}

void Acceptor::accept_ready(uint64_t now) {
  for (int i = 0; i < kAcceptBatch; ++i) {
    if (!make_room(now)) return;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      admit(std::move(socket), now);
    } else if (is_exhaustion(errno)) {
      // The connection stays in the listen queue, readable: without a pause this would spin.
      const int error = errno;
      if (now >= next_warning_ns_) {
        next_warning_ns_ = now + kWarningIntervalNs;
        log_.warn("{} cannot accept connections: {}", address_.to_string(),
                  status_from_errno(error, "accept").text());
      }
      pause(now + kExhaustedPauseNs);
      return;
    } else if (errno == EAGAIN) {
      return;
    }
    // Anything else is the fate of that one connection (reset in the queue, a network error).
  }
}

// False when the pending connections are at their limit and all of them are young.
bool Acceptor::make_room(uint64_t now) {
  if (pending_.size() < kMaxPending) return true;
  Pending& oldest = *pending_.front();
  if (now < oldest.start_ns() + kMinPendingNs) {
    pause(oldest.start_ns() + kMinPendingNs);
    return false;
  }
  reject(oldest,
         Status(Code::kOutOfResources, "too many connections have not proved the job secret yet"));
  pending_.pop_front();
  return true;
}

void Acceptor::admit(UniqueFd socket, uint64_t now) {
  if (options_.same_user) {
    if (const Status status = check_same_user(socket.get()); !status.ok()) {
      report_rejection(peer_name(socket.get()), status, true);
      return;
    }
  }
  set_no_delay(socket.get());
  std::unique_ptr<TlsSession> tls;
  if (options_.tls != nullptr) {
    tls = options_.tls->accept(socket.get());
    if (tls == nullptr) {
      log_.warn("{} rejected a connection: no memory for TLS is left", address_.to_string());
      return;
    }
  }
  auto pending =
      std::make_unique<Pending>(*this, StreamSocket(std::move(socket), std::move(tls)), now);
  if (Status status = pending->watch(EPOLLIN); !status.ok()) {
    reject(*pending, status);
    return;
  }
  pending_.push_back(std::move(pending));
}

void Acceptor::pause(uint64_t until) {
  // It stays known to the poller: forked children close it.
  if (resume_ns_ == kForever) (void)poller_.modify(listener_.get(), 0, *this);
  resume_ns_ = until;
}

void Acceptor::resume() {
  if (resume_ns_ == kForever) return;
  if (poller_.modify(listener_.get(), EPOLLIN, *this).ok()) {
    resume_ns_ = kForever;
  } else {
    resume_ns_ = now_ns() + kExhaustedPauseNs;
  }
}

void Acceptor::finish(Pending& pending, const Status& outcome) {
  const auto position = std::find_if(pending_.begin(), pending_.end(),
                                     [&](const auto& entry) { return entry.get() == &pending; });
  const std::unique_ptr<Pending> owned = std::move(*position);
  pending_.erase(position);
  // Room for one more: what a limit had paused goes on.
  resume();
  if (!outcome.ok()) {
    reject(*owned, outcome);
    return;
  }
  handler_.on_accept(owned->take_socket(), owned->handshake().peer());
}

// A stranger that connects and says nothing (a port scan, a health check, a peer that gave up) is
// worth no warning.
void Acceptor::reject(const Pending& pending, const Status& why) {
  report_rejection(pending.name(), why, pending.handshake().peer_spoke());
}

// Each stranger is told of at debug; one line a minute at warn.
void Acceptor::report_rejection(const std::string& name, const Status& why, bool warn) {
  log_.debug("{} rejected a connection from {}: {}", address_.to_string(), name, why.text());
  last_rejection_ = why;
  if (!warn) return;
  ++unreported_;
  const uint64_t now = now_ns();
  if (now < next_warning_ns_) return;
  next_warning_ns_ = now + kWarningIntervalNs;
  log_.warn("{} rejected {} connection{}; the last from {}: {}", address_.to_string(), unreported_,
            unreported_ == 1 ? "" : "s", name, why.text());
  unreported_ = 0;
}

void Acceptor::expire(uint64_t now_ns) {
  while (!pending_.empty() && now_ns >= pending_.front()->start_ns() + kHandshakeTimeoutNs) {
    reject(*pending_.front(),
           Status(Code::kTimedOut, "the peer did not finish the handshake in time"));
    pending_.pop_front();
  }
  if (now_ns >= resume_ns_) resume();
}

uint64_t Acceptor::next_timer_ns() const {
  if (pending_.empty()) return resume_ns_;
  return std::min(resume_ns_, pending_.front()->start_ns() + kHandshakeTimeoutNs);
}

Status last_rejection_of(const std::vector<std::unique_ptr<Acceptor>>& acceptors) {
  for (const auto& acceptor : acceptors) {
    if (!acceptor->last_rejection().ok()) return acceptor->last_rejection();
  }
  return {};
}

}  // namespace hetcomm
