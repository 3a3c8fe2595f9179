#include "transports/rdma/attempt.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "transports/rdma/transport.h"

namespace hetcomm::rdma {
namespace {

constexpr uint64_t kShortLimitNs = 3'000'000'000;

bool send_all(int fd, ConstByteSpan bytes) {
  // A fresh connection takes so little at once.
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(bytes.size());
}

bool would_block(ssize_t got) { return got < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

// --- the lower rank ----------------------------------------------------------------------------

Attempt::Attempt(RdmaTransport& transport, int peer, Status refused)
    : transport_(transport), peer_(peer), refused_(std::move(refused)) {}

Attempt::~Attempt() {
  if (socket_.valid()) transport_.poller().remove(socket_.get(), *this);
}

void Attempt::start(std::vector<Address> addresses, const Gid& mine, const GidBytes& peer) {
  if (!refused_.ok()) return;
  addresses_ = std::move(addresses);
  mine_ = mine;
  peer_gid_ = peer;
  Result<std::unique_ptr<QueuePair>> pair = transport_.make_queue_pair();
  if (!pair.ok()) {
    refused_ = pair.status();
    return;
  }
  pair_ = std::move(pair).value();
  // The real clock: the coarse one is that of the last progress(), which may be long ago.
  const uint64_t now = now_ns();
  short_deadline_ns_ = now + addresses_.size() * kShortLimitNs;
  deadline_ns_ =
      deadline_after(now, transport_.environment().config.number(Variable::kBootstrapTimeout));
  patient_ = short_deadline_ns_ >= deadline_ns_;
  connect(patient_ ? deadline_ns_ : short_deadline_ns_);
}

void Attempt::connect(uint64_t deadline_ns) {
  const TransportEnvironment& environment = transport_.environment();
  Hello hello;
  hello.role = Role::kRdma;
  hello.identity = environment.credentials.identity;
  hello.source = environment.rank;
  hello.destination = peer_;
  hello.extra = encode_parameters(transport_.parameters_of(*pair_, mine_, peer_gid_));
  connector_ = Connector::create(environment.poller, addresses_, environment.credentials.secret,
                                 std::move(hello), deadline_ns, *this);
}

void Attempt::on_connect(Result<StreamSocket> socket) {
  if (!socket.ok()) {
    if (!patient_ && now_ns() >= short_deadline_ns_) {
      patient_ = true;
      connect(deadline_ns_);
    } else {
      fail(socket.status());
    }
    return;
  }
  socket_ = std::move(socket).value().take_fd();
  const Status status = transport_.poller().add(socket_.get(), EPOLLIN, *this);
  if (!status.ok()) fail(status);
}

void Attempt::on_events(uint32_t /*events*/) {
  const ssize_t got =
      recv(socket_.get(), answer_.data() + received_, answer_.size() - received_, MSG_DONTWAIT);
  if (would_block(got)) return;
  if (got <= 0) {
    fail({Code::kPeerLost,
          got == 0 ? std::string("closed by the peer while it was made") : std::strerror(errno)});
    return;
  }
  received_ += static_cast<size_t>(got);
  if (received_ == answer_.size()) answered();
}

void Attempt::answered() {
  Result<Parameters> parameters = decode_answer(answer_);
  Status status = parameters.status();
  if (status.ok()) {
    status = pair_->connect(pair_->path_to(*parameters, mine_), *parameters,
                            transport_.settings().connection);
  }
  if (status.ok() && !send_all(socket_.get(), {&kReadyByte, 1})) {
    status = Status(Code::kPeerLost, "closed by the peer while it was made");
  }
  if (!status.ok()) {
    fail(status);
    return;
  }
  transport_.poller().remove(socket_.get(), *this);
  std::unique_ptr<Endpoint> endpoint = std::make_unique<RdmaEndpoint>(
      transport_, peer_, std::move(pair_), parameters.value(), std::move(socket_));
  transport_.finish(*this, std::move(endpoint));
}

void Attempt::fail(Status why) {
  if (std::string_view(why.text()).starts_with("rdma")) {
    transport_.finish(*this, std::move(why));
  } else {
    transport_.finish(*this, why.annotate("rdma"));
  }
}

void Attempt::expire(uint64_t now) {
  if (!refused_.ok()) {
    fail(refused_);
  } else if (!socket_.valid()) {
    connector_->expire(now);
  } else if (now >= deadline_ns_) {
    fail({Code::kPeerLost, "no answer in time"});
  }
}

uint64_t Attempt::next_timer_ns() const {
  if (!refused_.ok()) return 0;
  return socket_.valid() ? deadline_ns_ : connector_->next_timer_ns();
}

// --- the higher rank ---------------------------------------------------------------------------

Arrival::Arrival(RdmaTransport& transport, int peer, UniqueFd socket)
    : transport_(transport), peer_(peer), socket_(std::move(socket)) {}

Arrival::~Arrival() {
  if (socket_.valid()) transport_.poller().remove(socket_.get(), *this);
}

bool Arrival::start(ConstByteSpan hello) {
  AnswerBytes answer{};
  const Status status = prepare(hello, answer);
  if (!status.ok()) {
    transport_.log().warn("rdma: a connection of rank {} was refused: {}", peer_, status.text());
    answer = encode_refusal(status.text());
  }
  const bool sent = send_all(socket_.get(), answer);
  if (!status.ok() || !sent) return false;
  deadline_ns_ =
      deadline_after(now_ns(), transport_.environment().config.number(Variable::kBootstrapTimeout));
  return transport_.poller().add(socket_.get(), EPOLLIN, *this).ok();
}

Status Arrival::prepare(ConstByteSpan hello, AnswerBytes& answer) {
  const std::optional<Parameters> parameters = decode_parameters(hello);
  if (!parameters) return {Code::kPeerLost, "malformed parameters"};
  peer_parameters_ = *parameters;
  const std::vector<Gid>& gids = transport_.nic().gids;
  const auto mine = std::find_if(gids.begin(), gids.end(), [&](const Gid& gid) {
    return gid.bytes == parameters->peer_gid && gid.kind == parameters->kind;
  });
  if (mine == gids.end()) {
    return {Code::kPeerLost, fmt::format("{} has no address {} any more", transport_.nic().name(),
                                         gid_text(parameters->peer_gid))};
  }
  Result<std::unique_ptr<QueuePair>> pair = transport_.make_queue_pair();
  if (!pair.ok()) return pair.status();
  pair_ = std::move(pair).value();
  HETCOMM_RETURN_IF_ERROR(pair_->connect(pair_->path_to(peer_parameters_, *mine), peer_parameters_,
                                         transport_.settings().connection));
  answer = encode_answer(transport_.parameters_of(*pair_, *mine, peer_parameters_.gid));
  return {};
}

void Arrival::on_events(uint32_t /*events*/) {
  std::byte byte{};
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (would_block(got)) return;
  if (got != 1 || byte != kReadyByte) {
    transport_.finish(*this, nullptr);
    return;
  }
  transport_.poller().remove(socket_.get(), *this);
  transport_.finish(*this, std::make_unique<RdmaEndpoint>(transport_, peer_, std::move(pair_),
                                                          peer_parameters_, std::move(socket_)));
}

void Arrival::expire(uint64_t now) {
  if (now >= deadline_ns_) transport_.finish(*this, nullptr);
}

}  // namespace hetcomm::rdma
