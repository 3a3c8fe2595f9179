#include "src/net/connector.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/core.h>

#include "src/net/handshake.h"
#include "src/net/socket_options.h"
#include "src/net/socket_peer.h"

namespace hetcomm {
namespace {

constexpr uint64_t kRetryNs = 5'000'000;

// Returns the weight of a failure. A heavier one is a better explanation for the lack of a
// connection.
int weight(Code code) {
  switch (code) {
    case Code::kPermissionDenied:
      return 3;
    case Code::kUnsupported:
      return 2;
    case Code::kOutOfResources:
    case Code::kOutOfMemory:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

Connector::Connector(Poller& poller, ConnectHandler& handler)
    : poller_(poller), handler_(handler) {}

std::unique_ptr<Connector> Connector::create(Poller& poller, std::vector<Address> candidates,
                                             const Secret& secret, Hello hello,
                                             uint64_t deadline_ns, ConnectHandler& handler,
                                             std::shared_ptr<const TlsContext> tls, LocalEnd from) {
  std::unique_ptr<Connector> connector(new Connector(poller, handler));
  connector->candidates_ = std::move(candidates);
  connector->secret_ = secret;
  connector->hello_ = std::move(hello);
  connector->deadline_ns_ = deadline_ns;
  connector->tls_ = std::move(tls);
  connector->from_ = std::move(from);
  connector->start_next(now_ns());
  return connector;
}

Connector::~Connector() { close_socket(); }

void Connector::close_socket() {
  if (socket_.valid()) poller_.remove(socket_.get(), *this);
  handshake_.reset();
  socket_.reset();
  retry_ns_ = kForever;
}

// Returns the time limit of the next attempt: an equal share of the remaining time for each of the
// remaining candidates, or kHandshakeTimeoutNs if there is no deadline.
uint64_t Connector::attempt_share(uint64_t now) const {
  if (deadline_ns_ == kForever) return kHandshakeTimeoutNs;
  const uint64_t left = deadline_ns_ > now ? deadline_ns_ - now : 0;
  return left / (candidates_.size() - next_candidate_);
}

void Connector::start_next(uint64_t now) {
  while (next_candidate_ < candidates_.size()) {
    attempt_deadline_ns_ = deadline_after(now, attempt_share(now));
    const Status status = start_attempt(candidates_[next_candidate_]);
    if (status.ok()) return;
    attempt_failed(status);
  }
  exhausted_ = true;
}

Status Connector::start_attempt(const Address& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return status_from_errno(errno, "socket");
  std::unique_ptr<TlsSession> tls;
  if (tls_ != nullptr) {
    tls = tls_->connect(fd.get());
    if (tls == nullptr) return Status(Code::kOutOfMemory, "no memory for TLS");
  }
  socket_ = StreamSocket(std::move(fd), std::move(tls));
  set_no_delay(socket_.get());
  HETCOMM_RETURN_IF_ERROR(bind_local_end(address));
  return connect_now(address);
}

Status Connector::bind_local_end(const Address& to) {
  if (!from_.device.empty()) HETCOMM_RETURN_IF_ERROR(bind_to_device(socket_.get(), from_.device));
  const Address* nearest = nullptr;
  for (const Address& from : from_.addresses) {
    if (from.family() != to.family()) continue;
    const bool nearer =
        nearest == nullptr || from.common_prefix_bits(to) > nearest->common_prefix_bits(to);
    if (nearer) nearest = &from;
  }
  if (nearest == nullptr) return {};
  // Lets connect() choose the port. The kernel can then reuse a local port that connections to
  // other peers already use.
  HETCOMM_RETURN_IF_ERROR(set_socket_option(socket_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1,
                                            "IP_BIND_ADDRESS_NO_PORT"));
  if (::bind(socket_.get(), nearest->get(), nearest->length()) != 0) {
    return status_from_errno(errno, fmt::format("bind to {}", nearest->to_string()));
  }
  return {};
}

Status Connector::connect_now(const Address& address) {
  retry_ns_ = kForever;
  if (::connect(socket_.get(), address.get(), address.length()) != 0 && errno != EINPROGRESS) {
    if (errno != EAGAIN || address.family() != AF_UNIX) {
      const int error = errno;
      if (error == ECONNREFUSED) refused_.push_back(address);
      return status_from_errno(error, "connect");
    }
    retry_ns_ = now_ns() + kRetryNs;
    return {};
  }
  return poller_.add(socket_.get(), EPOLLOUT, *this);
}

void Connector::attempt_failed(const Status& why) {
  close_socket();
  if (weight(why.code()) > weight(code_)) code_ = why.code();
  failures_ += fmt::format("{}{}: {}", failures_.empty() ? "" : "; ",
                           candidates_[next_candidate_].to_string(), why.text());
  ++next_candidate_;
}

void Connector::on_events(uint32_t /*events*/) {
  if (!handshake_) {
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error == ECONNREFUSED) refused_.push_back(candidates_[next_candidate_]);
    Status status = error == 0 ? Status() : status_from_errno(error, "connect");
    const bool local = candidates_[next_candidate_].family() == AF_UNIX;
    if (status.ok() && local && same_user_) status = check_same_user(socket_.get());
    if (!status.ok()) {
      attempt_failed(status);
      start_next(now_ns());
      if (exhausted_) report_failure();
      return;
    }
    handshake_ = Handshake::initiator(socket_.get(), secret_, hello_, socket_.tls());
  }
  shake_hands();
}

void Connector::shake_hands() {
  const Handshake::Step step = handshake_->advance();
  if (step == Handshake::Step::kDone) {
    poller_.remove(socket_.get(), *this);
    report(std::move(socket_));
    return;
  }
  Status status;
  if (step == Handshake::Step::kFailed) {
    status = handshake_->error();
    denial_ = handshake_->denial();
    denial_reason_ = status;
    const std::optional<uint64_t> met = handshake_->acceptor_incarnation();
    if (met && *met != hello_.destination_incarnation) {
      other_process_ = OtherProcess{candidates_[next_candidate_], *met};
    }
  } else {
    const bool reads = step == Handshake::Step::kWantRead;
    status = poller_.modify(socket_.get(), reads ? EPOLLIN : EPOLLOUT, *this);
  }
  if (status.ok()) return;
  attempt_failed(status);
  start_next(now_ns());
  if (exhausted_) report_failure();
}

void Connector::expire(uint64_t now_ns) {
  if (reported_) return;
  if (!exhausted_ && now_ns >= attempt_deadline_ns_) {
    attempt_failed(Status(
        Code::kTimedOut, handshake_ ? "the peer accepted the connection, but did not answer in time"
                                    : "the connection was not made in time"));
    start_next(now_ns);
  } else if (now_ns >= retry_ns_) {
    const Status status = connect_now(candidates_[next_candidate_]);
    if (!status.ok()) {
      attempt_failed(status);
      start_next(now_ns);
    }
  }
  if (exhausted_) report_failure();
}

uint64_t Connector::next_timer_ns() const {
  if (reported_) return kForever;
  if (exhausted_) return 0;
  return std::min(attempt_deadline_ns_, retry_ns_);
}

void Connector::report(Result<StreamSocket> result) {
  reported_ = true;
  handshake_.reset();
  handler_.on_connect(std::move(result));
}

void Connector::report_failure() {
  report(Status(code_, fmt::format("rank {} cannot be reached: {}", hello_.destination,
                                   failures_.empty() ? "no address of it is known" : failures_)));
}

}  // namespace hetcomm
