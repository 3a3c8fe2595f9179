#include "transports/tcp/attempt.h"

#include "src/base/clock.h"

namespace hetcomm::tcp {
namespace {

constexpr uint64_t kShortLimitNs = 3'000'000'000;

}  // namespace

TcpTransport::Attempt::Attempt(TcpTransport& transport, int peer, const StreamName& name,
                               std::vector<Address> addresses, Status refused)
    : transport_(transport),
      peer_(peer),
      name_(name),
      addresses_(std::move(addresses)),
      refused_(std::move(refused)) {}

void TcpTransport::Attempt::start(const TransportEnvironment& environment) {
  if (!refused_.ok()) return;
  // The real clock: the coarse one is that of the last progress(), which may be long ago.
  const uint64_t now = now_ns();
  const uint64_t limit = environment.config.number(Variable::kBootstrapTimeout);
  short_deadline_ns_ = now + addresses_.size() * kShortLimitNs;
  deadline_ns_ = deadline_after(now, limit);
  patient_ = short_deadline_ns_ >= deadline_ns_;
  connect(environment, patient_ ? deadline_ns_ : short_deadline_ns_);
}

void TcpTransport::Attempt::connect(const TransportEnvironment& environment, uint64_t deadline_ns) {
  Hello hello = make_hello(environment.credentials, Role::kTcp, environment.rank, peer_);
  hello.extra = encode_stream_name(name_);
  connector_ = Connector::create(environment.poller, addresses_, environment.credentials.secret,
                                 std::move(hello), deadline_ns, *this, transport_.tls_);
}

void TcpTransport::Attempt::on_connect(Result<StreamSocket> socket) {
  if (!socket.ok() && !patient_ && now_ns() >= short_deadline_ns_) {
    patient_ = true;
    connect(transport_.environment_, deadline_ns_);
    return;
  }
  transport_.finish(*this, std::move(socket));
}

void TcpTransport::Attempt::expire(const TransportEnvironment& environment) {
  if (!refused_.ok()) {
    transport_.finish(*this, refused_);
  } else {
    connector_->expire(environment.now_ns);
  }
}

uint64_t TcpTransport::Attempt::next_timer_ns() const {
  return refused_.ok() ? connector_->next_timer_ns() : 0;
}

}  // namespace hetcomm::tcp
