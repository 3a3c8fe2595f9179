#include "transports/tcp/connect_attempt.h"

#include <algorithm>

#include "src/base/clock.h"

namespace hetcomm::tcp {
namespace {

constexpr uint64_t kShortLimitNs = 3'000'000'000;
constexpr uint32_t kMostDoublings = 10;

}  // namespace

TcpTransport::ConnectAttempt::ConnectAttempt(TcpTransport& transport, int peer,
                                             const StreamName& name, std::vector<Address> addresses,
                                             Status refused)
    : transport_(transport),
      peer_(peer),
      name_(name),
      addresses_(std::move(addresses)),
      refused_(std::move(refused)) {}

void TcpTransport::ConnectAttempt::start(const TransportEnvironment& environment) {
  if (!refused_.ok()) return;
  // The real clock: the coarse one is that of the last progress(), which may be long ago.
  last_reached_ns_ = now_ns();
  deadline_ns_ =
      deadline_after(last_reached_ns_, environment.config.number(Variable::kBootstrapTimeout));
  start_round();
}

void TcpTransport::ConnectAttempt::start_round() {
  const TransportEnvironment& environment = transport_.environment_;
  const uint64_t limit_ns = (addresses_.size() * kShortLimitNs) << doublings_;
  round_ends_ns_ = std::min(deadline_after(now_ns(), limit_ns), deadline_ns_);
  reached_ = false;
  Hello hello = make_hello(environment.credentials, Role::kTcp, environment.rank, peer_);
  hello.extra = encode_stream_name(name_);
  connector_ = Connector::create(environment.poller, addresses_, environment.credentials.secret,
                                 std::move(hello), round_ends_ns_, *this, transport_.tls_);
}

void TcpTransport::ConnectAttempt::on_connect(Result<StreamSocket> socket) {
  const uint64_t now = now_ns();
  const bool silent = now >= last_reached_ns_ + transport_.detection_ns();
  if (!socket.ok() && now >= round_ends_ns_ && now < deadline_ns_ && !silent) {
    if (reached_) doublings_ = std::min(doublings_ + 1, kMostDoublings);
    start_round();
    return;
  }
  transport_.finish(*this, std::move(socket));
}

void TcpTransport::ConnectAttempt::expire(const TransportEnvironment& environment) {
  if (!refused_.ok()) {
    transport_.finish(*this, refused_);
    return;
  }
  if (connector_->reached() != nullptr) {
    reached_ = true;
    last_reached_ns_ = now_ns();
  }
  connector_->expire(environment.now_ns);
}

uint64_t TcpTransport::ConnectAttempt::next_timer_ns() const {
  return refused_.ok() ? connector_->next_timer_ns() : 0;
}

}  // namespace hetcomm::tcp
