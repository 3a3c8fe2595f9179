#include "transports/rdma/connect_attempt.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "src/net/hash.h"
#include "src/net/socket_options.h"
#include "src/net/variables.h"
#include "src/system/clock.h"
#include "src/system/random.h"
#include "transports/rdma/endpoint.h"
#include "transports/rdma/pending_connections.h"
#include "transports/rdma/port.h"

namespace hetcomm::rdma {
namespace {

constexpr const char* kAddressGone = "the address of this side's port has gone";
constexpr uint64_t kShortLimitNs = 3'000'000'000;
constexpr uint32_t kMaxDoublings = 10;

bool send_all(int fd, ConstByteSpan bytes) {
  // The send buffer of a new connection is empty, so these few bytes do not block.
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(bytes.size());
}

// Checks that the path leads to the queue pair and address that the peer has specified.
Status check_path(const Path& path, const Parameters& peer) {
  const bool same_address =
      path.address.is_global != 0
          ? std::memcmp(path.address.grh.dgid.raw, peer.gid.data(), peer.gid.size()) == 0
          : path.address.dlid == peer.lid;
  if (same_address && path.queue_pair == peer.queue_pair) return {};
  return {Code::kPeerLost, "rdma_cm leads to another queue pair than the peer's"};
}

// Connects the queue pair over the path that rdma_cm has found.
Status connect_pair(QueuePair& pair, CmConnection& cm, const Parameters& peer,
                    const ConnectionSettings& settings) {
  Result<Path> path = cm.path();
  if (!path.ok()) return path.status();
  HETCOMM_RETURN_IF_ERROR(check_path(*path, peer));
  return pair.connect(*path, peer, settings);
}

uint64_t detection_ns(const TransportEnvironment& environment) {
  return std::max(environment.config.number(variable::kDetectionTime), kMinDetectionNs);
}

// Enables TCP keepalive, to detect a broken path while the connection is being established. The
// peer's kernel answers the probes even while its process is computing.
Status notice_cuts(int fd, const TransportEnvironment& environment) {
  return set_keepalive(fd, detection_ns(environment));
}

// Stops detecting broken paths on this socket once the connection is established. The queue pair,
// which may use another path, detects them from then on.
void ignore_cuts(int fd) {
  const int off = 0;
  // Neither call fails for an open socket.
  if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off)) != 0) return;
  if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof(off)) != 0) return;
}

bool would_block(ssize_t got) { return got < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

// --- the lower rank ----------------------------------------------------------------------------

ConnectAttempt::ConnectAttempt(PendingConnections& owner, Port& port,
                               const Destination& destination, Status refused)
    : owner_(owner), port_(port), destination_(destination), refused_(std::move(refused)) {}

ConnectAttempt::~ConnectAttempt() {
  if (socket_.valid()) port_.poller().remove(socket_.get(), *this);
}

// Runs |upcall|, and ends the attempt if it runs out of memory. |upcall| must not fail after it has
// called finish(), which destroys the attempt.
template <typename Upcall>
void ConnectAttempt::guarded(Upcall&& upcall) {
  try {
    upcall();
  } catch (const std::bad_alloc&) {
    owner_.finish(*this, Code::kOutOfMemory);
  }
}

void ConnectAttempt::start(std::vector<Address> addresses, const Gid& mine, const GidBytes& peer) {
  if (!refused_.ok()) return;
  addresses_ = std::move(addresses);
  mine_ = mine;
  peer_gid_ = peer;
  try {
    begin();
  } catch (const std::bad_alloc&) {
    refused_ = Code::kOutOfMemory;
  }
}

void ConnectAttempt::begin() {
  Result<std::unique_ptr<QueuePair>> pair = owner_.make_queue_pair();
  if (!pair.ok()) {
    refused_ = pair.status();
    return;
  }
  pair_ = std::move(pair).value();
  // Uses the real clock. The coarse clock shows the time of the last progress(), which may be long
  // ago.
  last_reached_ns_ = now_ns();
  deadline_ns_ = deadline_after(last_reached_ns_,
                                port_.environment().config.number(variable::kBootstrapTimeout));
  start_round();
}

void ConnectAttempt::start_round() {
  const TransportEnvironment& environment = port_.environment();
  const uint64_t limit_ns = (addresses_.size() * kShortLimitNs) << doublings_;
  round_ends_ns_ = std::min(deadline_after(now_ns(), limit_ns), deadline_ns_);
  reached_ = false;
  Hello hello =
      make_hello(environment.credentials, Role::kRdma, environment.rank, destination_.rank);
  hello.extra = encode_parameters(port_.parameters_of(*pair_, mine_, peer_gid_));
  connector_ = Connector::create(environment.poller, addresses_, environment.credentials.secret,
                                 std::move(hello), round_ends_ns_, *this);
}

void ConnectAttempt::on_connect(Result<StreamSocket> socket) {
  guarded([&] { take(std::move(socket)); });
}

void ConnectAttempt::take(Result<StreamSocket> socket) {
  if (!socket.ok()) {
    const uint64_t now = now_ns();
    const bool silent = now >= last_reached_ns_ + detection_ns(port_.environment());
    if (now >= round_ends_ns_ && now < deadline_ns_ && !silent) {
      if (reached_) doublings_ = std::min(doublings_ + 1, kMaxDoublings);
      start_round();
    } else {
      fail(socket.status());
    }
    return;
  }
  socket_ = std::move(socket).value().take_fd();
  Status status = notice_cuts(socket_.get(), port_.environment());
  if (status.ok()) status = port_.poller().add(socket_.get(), EPOLLIN, *this);
  if (!status.ok()) fail(status);
}

void ConnectAttempt::on_events(uint32_t /*events*/) {
  guarded([&] { read_answer(); });
}

void ConnectAttempt::read_answer() {
  const ssize_t got =
      recv(socket_.get(), answer_.data() + received_, answer_.size() - received_, MSG_DONTWAIT);
  if (would_block(got)) return;
  if (got <= 0) {
    fail({Code::kPeerLost,
          got == 0 ? std::string("the peer closed the connection while it was being made")
                   : std::strerror(errno)});
    return;
  }
  received_ += static_cast<size_t>(got);
  if (received_ == answer_.size()) answered();
}

void ConnectAttempt::answered() {
  Result<Answer> answer = decode_answer(answer_);
  Status status = answer.status();
  const bool by_cm = owner_.manager() != nullptr;
  if (status.ok() && answer->invitation.has_value() != by_cm) {
    status = Status(Code::kPeerLost, by_cm ? "the peer does not connect by rdma_cm"
                                           : "the peer connects by rdma_cm only");
  }
  if (status.ok()) {
    peer_parameters_ = answer->parameters;
    status = by_cm ? ask(*answer->invitation)
                   : pair_->connect(pair_->path_to(peer_parameters_, mine_), peer_parameters_,
                                    port_.settings().connection);
  }
  if (!status.ok()) {
    fail(status);
  } else if (!by_cm) {
    complete();
  }
}

Status ConnectAttempt::ask(const CmInvitation& invitation) {
  Result<std::unique_ptr<CmConnection>> connection =
      owner_.manager()->connect(mine_, invitation.address, invitation.token, *pair_, *this);
  if (connection.ok()) cm_ = std::move(connection).value();
  return connection.status();
}

void ConnectAttempt::on_answer() {
  guarded([&] {
    Status status = connect_pair(*pair_, *cm_, peer_parameters_, port_.settings().connection);
    if (status.ok()) status = cm_->confirm();
    if (status.ok()) {
      complete();
    } else {
      fail(status);
    }
  });
}

void ConnectAttempt::on_ended(const Status& why) {
  guarded([&] { fail(why); });
}

void ConnectAttempt::complete() {
  // Detects an address that was lost before this point. A later loss breaks the endpoint through an
  // event.
  if (!pair_->has_address() || !port_.has_address(mine_)) {
    fail({Code::kPeerLost, kAddressGone});
    return;
  }
  if (!send_all(socket_.get(), {&kReadyByte, 1})) {
    fail({Code::kPeerLost, "the peer closed the connection while it was being made"});
    return;
  }
  port_.poller().remove(socket_.get(), *this);
  ignore_cuts(socket_.get());
  std::unique_ptr<Endpoint> endpoint = owner_.make_endpoint(
      {std::move(pair_), peer_parameters_, std::move(socket_), std::move(cm_)});
  owner_.finish(*this, std::move(endpoint));
}

void ConnectAttempt::fail(Status why) {
  if (!why.text().starts_with("rdma")) why = why.annotate("rdma");
  owner_.finish(*this, std::move(why));
}

void ConnectAttempt::expire(uint64_t now) {
  guarded([&] {
    if (!refused_.ok()) {
      fail(refused_);
    } else if (!socket_.valid()) {
      if (connector_->reached() != nullptr) {
        reached_ = true;
        last_reached_ns_ = now_ns();
      }
      connector_->expire(now);
    } else if (now >= deadline_ns_) {
      fail({Code::kPeerLost, cm_ ? "the peer did not answer by rdma_cm in time"
                                 : "the peer did not answer in time"});
    }
  });
}

uint64_t ConnectAttempt::next_timer_ns() const {
  if (!refused_.ok()) return 0;
  return socket_.valid() ? deadline_ns_ : connector_->next_timer_ns();
}

// --- the higher rank ---------------------------------------------------------------------------

Arrival::Arrival(PendingConnections& owner, Port& port, int peer, UniqueFd socket)
    : owner_(owner), port_(port), peer_(peer), socket_(std::move(socket)) {}

Arrival::~Arrival() {
  if (socket_.valid()) port_.poller().remove(socket_.get(), *this);
}

bool Arrival::start(ConstByteSpan hello) {
  AnswerBytes answer{};
  const Status status = prepare(hello, answer);
  if (!status.ok()) {
    port_.log().warn("rdma: a connection of rank {} was refused: {}", peer_, status.text());
    answer = encode_refusal(status.text());
  }
  const bool sent = send_all(socket_.get(), answer);
  if (!status.ok() || !sent) return false;
  if (!notice_cuts(socket_.get(), port_.environment()).ok()) return false;
  deadline_ns_ =
      deadline_after(now_ns(), port_.environment().config.number(variable::kBootstrapTimeout));
  return port_.poller().add(socket_.get(), EPOLLIN, *this).ok();
}

Status Arrival::prepare(ConstByteSpan hello, AnswerBytes& answer) {
  const std::optional<Parameters> parameters = decode_parameters(hello);
  if (!parameters) return {Code::kPeerLost, "the peer sent malformed parameters"};
  peer_parameters_ = *parameters;
  // Opening a closed port reads its addresses, which may have changed since the port was found.
  HETCOMM_RETURN_IF_ERROR(port_.open());
  const std::vector<Gid>& gids = port_.nic().gids;
  const auto mine = std::find_if(gids.begin(), gids.end(), [&](const Gid& gid) {
    return gid.bytes == parameters->peer_gid && gid.kind == parameters->kind;
  });
  if (mine == gids.end()) {
    return {Code::kPeerLost, fmt::format("{} has no address {} any more", port_.nic().name(),
                                         gid_text(parameters->peer_gid))};
  }
  mine_ = *mine;
  Result<std::unique_ptr<QueuePair>> pair = owner_.make_queue_pair();
  if (!pair.ok()) return pair.status();
  pair_ = std::move(pair).value();
  number_ = pair_->number();
  Answer told{.parameters = port_.parameters_of(*pair_, *mine, peer_parameters_.gid),
              .invitation = {}};
  if (owner_.manager() == nullptr) {
    HETCOMM_RETURN_IF_ERROR(pair_->connect(pair_->path_to(peer_parameters_, *mine),
                                           peer_parameters_, port_.settings().connection));
    ready_ = true;
  } else {
    const std::optional<Address> address = owner_.manager()->address_of(*mine);
    if (!address)
      return {Code::kPeerLost, "rdma_cm does not listen on the address that the peer has named"};
    HETCOMM_RETURN_IF_ERROR(fill_random(token_.emplace()));
    told.invitation = {*address, *token_};
  }
  answer = encode_answer(told);
  return {};
}

bool Arrival::awaits(const CmToken& token) const {
  return token_ && equal_in_constant_time(*token_, token);
}

void Arrival::take(std::unique_ptr<CmConnection> connection) {
  token_.reset();
  cm_ = std::move(connection);
  cm_->set_handler(*this);
  Status status(Code::kOutOfMemory);
  try {
    status = connect_and_accept();
  } catch (const std::bad_alloc&) {
    // |status| is already kOutOfMemory.
  }
  ready_ = status.ok();
  if (ready_) return;
  port_.log().warn("rdma: a connection of rank {} was refused: {}", peer_, status.text());
  // A refused peer closes the TCP connection, which ends this arrival.
  cm_->refuse(status.text());
  cm_.reset();
}

Status Arrival::connect_and_accept() {
  HETCOMM_RETURN_IF_ERROR(
      connect_pair(*pair_, *cm_, peer_parameters_, port_.settings().connection));
  return cm_->accept(*pair_);
}

void Arrival::on_ended(const Status& why) {
  port_.log().info("rdma: a connection of rank {} has ended: {}", peer_, why.text());
  owner_.finish(*this, nullptr);
}

void Arrival::on_events(uint32_t /*events*/) {
  std::byte byte{};
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (would_block(got)) return;
  if (got != 1 || byte != kReadyByte || !ready_) {
    owner_.finish(*this, nullptr);
    return;
  }
  // Detects an address that was lost before this point. A later loss breaks the endpoint through an
  // event.
  if (!pair_->has_address() || !port_.has_address(mine_)) {
    port_.log().info("rdma: a connection of rank {} was given up: {}", peer_, kAddressGone);
    owner_.finish(*this, nullptr);
    return;
  }
  port_.poller().remove(socket_.get(), *this);
  ignore_cuts(socket_.get());
  std::unique_ptr<Endpoint> endpoint;
  try {
    endpoint = owner_.make_endpoint(
        {std::move(pair_), peer_parameters_, std::move(socket_), std::move(cm_)});
  } catch (const std::bad_alloc&) {
    port_.log().error("rdma: out of memory: a connection of rank {} was given up", peer_);
  }
  owner_.finish(*this, std::move(endpoint));
}

void Arrival::expire(uint64_t now) {
  if (now >= deadline_ns_) owner_.finish(*this, nullptr);
}

}  // namespace hetcomm::rdma
