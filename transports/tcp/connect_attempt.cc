#include "transports/tcp/connect_attempt.h"

#include <algorithm>

#include "src/net/variables.h"
#include "src/system/clock.h"

namespace hetcomm::tcp {
namespace {

constexpr uint64_t kShortLimitNs = 3'000'000'000;
constexpr uint32_t kMaxDoublings = 10;

}  // namespace

ConnectAttempt::ConnectAttempt(Context context, ConnectAttemptHandler& handler,
                               const Destination& destination, const StreamName& name,
                               std::vector<Address> addresses, Status refused)
    : context_(std::move(context)),
      handler_(handler),
      destination_(destination),
      name_(name),
      addresses_(std::move(addresses)),
      refused_(std::move(refused)) {}

void ConnectAttempt::start() {
  if (!refused_.ok()) return;
  // Uses the real clock, because the coarse clock still shows the time of the last progress(),
  // which may be long ago.
  last_reached_ns_ = now_ns();
  deadline_ns_ = deadline_after(last_reached_ns_,
                                context_.environment.config.number(variable::kBootstrapTimeout));
  start_round();
}

void ConnectAttempt::start_round() {
  const TransportEnvironment& environment = context_.environment;
  const uint64_t limit_ns = (addresses_.size() * kShortLimitNs) << doublings_;
  round_ends_ns_ = std::min(deadline_after(now_ns(), limit_ns), deadline_ns_);
  reached_ = false;
  Hello hello =
      make_hello(environment.credentials, Role::kTcp, environment.rank, destination_.rank);
  hello.extra = encode_stream_name(name_);
  connector_ =
      Connector::create(environment.poller, addresses_, environment.credentials.secret,
                        std::move(hello), round_ends_ns_, *this, context_.tls, context_.from);
}

void ConnectAttempt::on_connect(Result<StreamSocket> socket) {
  const uint64_t now = now_ns();
  const bool silent = now >= last_reached_ns_ + context_.detection_ns;
  if (!socket.ok() && now >= round_ends_ns_ && now < deadline_ns_ && !silent) {
    if (reached_) doublings_ = std::min(doublings_ + 1, kMaxDoublings);
    start_round();
    return;
  }
  handler_.on_attempt_ended(*this, std::move(socket));
}

void ConnectAttempt::expire(uint64_t now) {
  if (!refused_.ok()) {
    handler_.on_attempt_ended(*this, refused_);
    return;
  }
  if (connector_->reached() != nullptr) {
    reached_ = true;
    last_reached_ns_ = now_ns();
  }
  connector_->expire(now);
}

uint64_t ConnectAttempt::next_timer_ns() const {
  return refused_.ok() ? connector_->next_timer_ns() : 0;
}

}  // namespace hetcomm::tcp
