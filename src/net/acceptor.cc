#include "src/net/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
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
// To make room, a connection can be dropped once it has taken this many times as long as the
// slowest recent proof.
constexpr uint64_t kSlownessAllowed = 4;

// Returns whether an error of accept() means that this process or host is short of a resource.
bool is_exhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

// One connection whose peer has not proved the secret yet.
class Acceptor::Pending final : public Watcher {
 public:
  Pending(Acceptor& owner, StreamSocket socket, uint64_t now)
      : owner_(owner),
        socket_(std::move(socket)),
        name_(peer_name(socket_.get())),
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
  const std::string& name() const { return name_; }
  // Returns whether the peer has sent something that is still unread.
  bool has_input() const {
    char byte = 0;
    return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  }

 private:
  void set_events(uint32_t events) {
    if (events == events_) return;
    events_ = events;
    const Status status = owner_.poller_.modify(socket_.get(), events, *this);
    if (!status.ok()) owner_.finish(*this, status);
  }

  Acceptor& owner_;
  StreamSocket socket_;
  const std::string name_;  // read early: a closed connection has no peer name
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
  return adopt(poller, log, std::move(listener).value(), std::move(options), handler);
}

Result<std::unique_ptr<Acceptor>> Acceptor::adopt(Poller& poller, Log& log, UniqueFd listener,
                                                  Options options, AcceptHandler& handler) {
  Result<Address> bound = bound_address(listener.get());
  if (!bound.ok()) return bound.status();
  std::unique_ptr<Acceptor> acceptor(new Acceptor(poller, log, std::move(options), handler));
  if (acceptor->options_.exhausted) acceptor->spare_.reset(eventfd(0, EFD_CLOEXEC));
  // A held listener is still registered with the poller, so that forked children close it.
  const uint32_t events = acceptor->options_.held ? 0u : uint32_t{EPOLLIN};
  HETCOMM_RETURN_IF_ERROR(poller.add(listener.get(), events, *acceptor));
  acceptor->listener_ = std::move(listener);
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
      note_no_shortage();
      admit(std::move(socket), now);
    } else if (is_exhaustion(errno)) {
      note_shortage(errno, now);
      return;
    } else if (errno == EAGAIN) {
      note_no_shortage();
      return;
    }
    // Any other error concerns only that connection (reset in the queue, a network error).
  }
}

// Pauses accepting and returns false if the pending connections are at their limit and none of them
// can be dropped.
bool Acceptor::make_room(uint64_t now) {
  if (pending_.size() < options_.max_pending || drop_silent(now)) return true;
  // If the oldest connection is old enough, it was kept for its unread input, which this round of
  // events handles.
  const uint64_t old_enough_ns = pending_.front()->start_ns() + min_pending_ns();
  pause(std::max(old_enough_ns, now + kExhaustedPauseNs));
  return false;
}

uint64_t Acceptor::min_pending_ns() const {
  return std::clamp(kSlownessAllowed * slowest_ns_, kMinPendingNs, kMaxMinPendingNs);
}

// Drops the oldest connection that has had min_pending_ns() and has no unread input. Returns false
// if there is none.
bool Acceptor::drop_silent(uint64_t now) {
  const uint64_t least_ns = min_pending_ns();
  for (auto at = pending_.begin(); at != pending_.end(); ++at) {
    if (now < (*at)->start_ns() + least_ns) return false;
    if ((*at)->has_input()) continue;
    const std::unique_ptr<Pending> dropped = std::move(*at);
    pending_.erase(at);
    reject(*dropped, Status(Code::kOutOfResources,
                            "too many connections have not proved the job secret yet"));
    return true;
  }
  return false;
}

bool Acceptor::someone_waits() const {
  pollfd listener{.fd = listener_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&listener, 1, 0) > 0;
}

void Acceptor::note_no_shortage() {
  exhausted_since_ns_ = kForever;
  turning_away_ = false;
}

// If a connection is waiting, warns, drops a silent connection and pauses accepting. Without the
// pause, the waiting connection would keep the listening socket readable, and polling would spin.
// After kExhaustedLimitNs also turns clients away, if Options::exhausted is set.
void Acceptor::note_shortage(int error, uint64_t now) {
  // accept4() reports a lack of descriptors even if no connection is waiting.
  if (!someone_waits()) return note_no_shortage();
  if (exhausted_since_ns_ == kForever) exhausted_since_ns_ = now;
  if (now >= next_warning_ns_) {
    next_warning_ns_ = now + kWarningIntervalNs;
    log_.warn("{} cannot accept connections: {}", address_.to_string(),
              status_from_errno(error, "accept").text());
  }
  (void)drop_silent(now);
  if (options_.exhausted && now >= deadline_after(exhausted_since_ns_, kExhaustedLimitNs)) {
    turning_away_ = true;
    turn_away();
  }
  pause(now + kExhaustedPauseNs);
}

// Accepts waiting connections one after another on the spare descriptor. Sends each of them
// Options::exhausted, and closes it.
void Acceptor::turn_away() {
  const std::vector<std::byte> answer =
      encode_end(options_.credentials.identity, *options_.exhausted);
  spare_.reset();
  for (int i = 0; i < kAcceptBatch; ++i) {
    const UniqueFd socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) break;
    // Closing with unread bytes would reset the connection, and the answer could be lost.
    std::array<std::byte, 1024> unread;
    [[maybe_unused]] ssize_t ignored =
        ::recv(socket.get(), unread.data(), unread.size(), MSG_DONTWAIT);
    ignored = ::send(socket.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(socket.get(), SHUT_WR);
  }
  spare_.reset(eventfd(0, EFD_CLOEXEC));
}

void Acceptor::admit(UniqueFd socket, uint64_t now) {
  if (options_.same_user) {
    if (const Status status = check_same_user(socket.get()); !status.ok()) {
      report_rejection({.peer = peer_name(socket.get()), .why = status, .spoke = true});
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
  // The listener stays registered with the poller, so that forked children close it.
  if (resume_ns_ == kForever) (void)poller_.modify(listener_.get(), 0, *this);
  resume_ns_ = until;
}

void Acceptor::resume() {
  if (resume_ns_ == kForever) return;
  // The shortage is over if no client is waiting.
  if (!someone_waits()) note_no_shortage();
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
  // A slot is free again. Resumes accepting if the limit had paused it.
  resume();
  if (!outcome.ok()) {
    reject(*owned, outcome);
    return;
  }
  const uint64_t took_ns = now_ns() - owned->start_ns();
  slowest_ns_ = std::max(took_ns, slowest_ns_ - slowest_ns_ / 16);
  handler_.on_accept(owned->take_socket(), owned->handshake().peer());
}

// Reports a connection that the caller drops.
void Acceptor::reject(const Pending& pending, const Status& why) {
  const Handshake& handshake = pending.handshake();
  report_rejection({.peer = pending.name(),
                    .claimed_rank = handshake.has_claim()
                                        ? std::optional<int32_t>(handshake.peer().source)
                                        : std::nullopt,
                    .why = why,
                    .denial = handshake.denial(),
                    .spoke = handshake.peer_spoke()});
}

// Logs each rejection at debug, and passes it to Options::rejections. Without that handler, also
// logs at most one line per minute at warn. A stranger that sends nothing (a port scan, a health
// check) causes no warning.
void Acceptor::report_rejection(const Rejection& rejection) {
  const std::string& name = rejection.peer;
  const Status& why = rejection.why;
  log_.debug("{} rejected a connection from {}: {}", address_.to_string(), name, why.text());
  last_rejection_ = why;
  if (options_.rejections != nullptr) {
    options_.rejections->on_rejection(rejection);
    return;
  }
  // A peer that disconnected (kPeerLost) causes no warning either.
  if (!rejection.spoke || why.code() == Code::kPeerLost) return;
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
