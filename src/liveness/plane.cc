#include "src/liveness/plane.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <span>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/net/listening_socket.h"
#include "src/net/tls.h"
#include "src/net/variables.h"
#include "src/system/clock.h"

namespace hetcomm::liveness {
namespace {

bool holds_note(const Frame& frame) {
  if (frame.type != FrameType::kLetter) return false;
  const auto type = static_cast<LetterType>(frame.code);
  return type == LetterType::kCall || type == LetterType::kQuestion ||
         type == LetterType::kAnswer || type == LetterType::kProfile;
}

// Returns whether the text of |frame| is binary and not meant for users.
bool holds_bytes(const Frame& frame) {
  return holds_note(frame) || frame.type == FrameType::kVouch || frame.type == FrameType::kHere;
}

// Returns the name of the local socket. It contains the random incarnation, so another process in
// this network namespace could use the same name only by chance. Ranks on the host can form the
// name because they know this rank's incarnation and port.
Address local_address(uint32_t incarnation, uint16_t port) {
  return Address::local(fmt::format("hetcomm-control-{:08x}-{}", incarnation, port));
}

}  // namespace

// One attempt to make a control connection.
class Plane::ConnectAttempt final : private ConnectHandler {
 public:
  ConnectAttempt(Plane& plane, int rank, std::vector<Address> candidates, uint64_t deadline_ns)
      : plane_(plane), rank_(rank) {
    for (Address& candidate : candidates) {
      candidate = candidate.with_scope(plane.link_local_scope_);
    }
    connector_ = Connector::create(
        plane.thread_.poller(), std::move(candidates), plane.setup_.credentials.secret,
        make_hello(plane.setup_.credentials, Role::kControl, plane.setup_.rank, rank), deadline_ns,
        *this, plane.tls_);
    // The check applies only to local sockets.
    if (plane.same_user_) connector_->require_same_user();
  }
  int rank() const { return rank_; }
  Connector& connector() { return *connector_; }

 private:
  void on_connect(Result<StreamSocket> socket) override {
    plane_.attempt_ended(*this, std::move(socket));
  }

  Plane& plane_;
  int rank_;
  std::unique_ptr<Connector> connector_;
};

// --- life -----------------------------------------------------------------------

Plane::Plane(ControlThread& thread, Log& log, Setup setup, std::shared_ptr<Mailbox> mailbox,
             std::shared_ptr<ProfileBook> profiles)
    : thread_(thread),
      log_(log),
      setup_(std::move(setup)),
      mailbox_(std::move(mailbox)),
      profiles_(std::move(profiles)),
      processes_(thread.poller(), *this) {}

Result<std::unique_ptr<Plane>> Plane::create(ControlThread& thread, Log& log, const Config& config,
                                             Setup setup, std::shared_ptr<Mailbox> mailbox,
                                             std::shared_ptr<ProfileBook> profiles) {
  std::unique_ptr<Plane> plane(
      new Plane(thread, log, std::move(setup), std::move(mailbox), std::move(profiles)));
  if (plane->setup_.size == 1) return plane;
  Result<std::shared_ptr<const TlsContext>> tls = TlsContext::create(config, log);
  if (!tls.ok()) return tls.status().annotate("control plane");
  plane->tls_ = std::move(tls).value();
  HETCOMM_RETURN_IF_ERROR(plane->listen(config).annotate("control plane"));
  return plane;
}

// Listens on every interface that may be used, up to kMaxInterfaces, so that the control plane
// survives the loss of a network. Also listens on a local socket where local sockets are allowed.
// Without a local socket, ranks on this host connect over the network and notice the exit of this
// process by their connections.
Status Plane::listen(const Config& config) {
  const Result<PortRange> ports = port_range(config);
  if (!ports.ok()) return ports.status();
  ports_ = ports.value();
  std::set<std::string> used;
  link_local_scope_ = link_local_scope(setup_.interfaces);
  for (const InterfaceAddress& candidate : setup_.interfaces) {
    if (!can_be_told(candidate.address, link_local_scope_)) continue;
    if (acceptors_.size() == kMaxInterfaces) break;
    if (used.count(candidate.interface) != 0) continue;  // one address per interface
    if (Status status = listen_at(candidate.address); !status.ok()) {
      // One interface is enough: an address may have disappeared since the interfaces were listed.
      if (&candidate == &setup_.interfaces.back() && acceptors_.empty()) return status;
      log_.info("control plane cannot listen on {}: {}", candidate.interface, status.text());
      continue;
    }
    used.insert(candidate.interface);
    log_.info("control plane listens on {} ({})", acceptors_.back()->address().to_string(),
              candidate.interface);
  }
  same_user_ = config.text(variable::kShmUsers) == "same";
  const uint16_t port = acceptors_.empty() ? uint16_t{0} : acceptors_.front()->address().port();
  const Status local = listen_at(local_address(setup_.incarnation, port));
  if (local.ok() || acceptors_.empty()) return local;
  log_.info("control plane goes without local sockets (AF_UNIX): {}", local.text());
  return {};
}

Status Plane::listen_at(const Address& address) {
  Acceptor::Options options;
  options.credentials = setup_.credentials;
  options.role = Role::kControl;
  options.rank = setup_.rank;
  options.tls = tls_;
  options.held = true;
  options.ports = ports_;
  options.same_user = same_user_ && address.family() == AF_UNIX;
  Result<std::unique_ptr<Acceptor>> acceptor =
      Acceptor::create(thread_.poller(), log_, address, std::move(options), *this);
  if (!acceptor.ok()) return acceptor.status();
  acceptors_.push_back(std::move(acceptor).value());
  return {};
}

// Destroys the sockets first, because this object handles their events.
Plane::~Plane() {
  attempts_.clear();
  done_.clear();
  connections_.clear();
  closing_.clear();
  garbage_.clear();
  acceptors_.clear();
}

std::vector<Address> Plane::addresses() const {
  std::vector<Address> result;
  for (const auto& acceptor : acceptors_) result.push_back(acceptor->address());
  return result;
}

Status Plane::start(Membership membership) {
  members_ = std::move(membership);
  setup_.credentials = members_.credentials;
  judge_ =
      std::make_unique<Judge>(Judge::Setup{.rank = setup_.rank,
                                           .timing = {.detection_ns = setup_.detection_ns},
                                           .ring = std::make_shared<const Ring>(members_.hosts),
                                           .incarnations = setup_.credentials.incarnations},
                              static_cast<Network&>(*this), static_cast<Observer&>(*this));
  for (const auto& acceptor : acceptors_) {
    HETCOMM_RETURN_IF_ERROR(acceptor->open(setup_.credentials).annotate("control plane"));
  }
  judge_->start(now_ns());
  return {};
}

Status Plane::last_rejection() const { return last_rejection_of(acceptors_); }

void Plane::leave() {
  const uint64_t now = now_ns();
  if (judge_ != nullptr) judge_->leave();
  leave_by_ns_ = now + (judge_ != nullptr ? kMaxGoodbyeNs : 0);
}

bool Plane::finished(uint64_t now) const {
  if (leave_by_ns_ == kForever) return false;
  return now >= leave_by_ns_ || judge_->has_left();
}

void Plane::tick(uint64_t now) {
  garbage_.clear();
  done_.clear();
  processes_.sweep();
  for (const auto& acceptor : acceptors_) acceptor->expire(now);
  std::vector<ConnectAttempt*> attempts;
  for (const auto& attempt : attempts_) attempts.push_back(attempt.get());
  for (ConnectAttempt* attempt : attempts) {
    const Address* reached = attempt->connector().reached();
    if (reached != nullptr && proved_.contain(attempt->rank(), *reached)) {
      judge_->on_reached(attempt->rank(), now);
    }
    if (attempt->connector().next_timer_ns() <= now) attempt->connector().expire(now);
  }
  std::erase_if(closing_, [now](const Closing& one) { return now >= one.deadline_ns; });
  if (judge_ != nullptr) judge_->tick(now);
}

uint64_t Plane::next_timer_ns() const {
  uint64_t next = judge_ != nullptr ? judge_->next_timer_ns() : kForever;
  if (!garbage_.empty() || !done_.empty() || processes_.has_to_sweep()) return 0;
  for (const auto& acceptor : acceptors_) next = std::min(next, acceptor->next_timer_ns());
  for (const auto& attempt : attempts_) {
    next = std::min(next, attempt->connector().next_timer_ns());
  }
  for (const Closing& one : closing_) next = std::min(next, one.deadline_ns);
  return std::min(next, leave_by_ns_);
}

// --- connections ----------------------------------------------------------------

// Returns the addresses to try for |rank|. Each attempt starts with a different network address,
// because the path to the first one may be broken.
std::vector<Address> Plane::candidates(int rank) {
  const bool near =
      members_.hosts[static_cast<size_t>(rank)] == members_.hosts[static_cast<size_t>(setup_.rank)];
  std::vector<Address> result;
  std::vector<Address> all = members_.addresses.find(rank);
  if (tells_addresses() && near && all.size() == 1) {
    const uint64_t incarnation = setup_.credentials.incarnation_of(rank);
    all.push_back(local_address(static_cast<uint32_t>(incarnation), all.front().port()));
  }
  for (const Address& address : all) {
    // A loopback address of another host would lead to this host.
    const bool leads_there = near || !address.is_loopback();
    if (address.family() != AF_UNIX && leads_there) result.push_back(address);
  }
  if (result.empty()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(result),
                 [](const Address& address) { return address.family() != AF_UNIX; });
  }
  if (!result.empty()) {
    const size_t first = attempts_made_++ % result.size();
    std::rotate(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(first), result.end());
  }
  for (const Address& address : all) {
    if (near && address.family() == AF_UNIX) result.insert(result.begin(), address);
  }
  return result;
}

void Plane::connect(int rank) {
  const uint64_t deadline = now_ns() + setup_.detection_ns / 3;
  done_.reserve(done_.size() + attempts_.size() + 1);  // attempt_ended() then allocates nothing
  attempts_.push_back(std::make_unique<ConnectAttempt>(*this, rank, candidates(rank), deadline));
}

void Plane::attempt_ended(ConnectAttempt& attempt, Result<StreamSocket> socket) {
  const auto found = std::find_if(attempts_.begin(), attempts_.end(),
                                  [&](const auto& one) { return one.get() == &attempt; });
  done_.push_back(std::move(*found));
  attempts_.erase(found);
  const int rank = attempt.rank();
  ConnectionId id = 0;
  Status status(Code::kOutOfMemory);
  ConnectFailure failure = ConnectFailure::kOther;
  try {
    status = socket.ok() ? adopt(std::move(socket).value(), rank, true, &id) : socket.status();
    if (!status.ok()) failure = proved_.failure_of(rank, attempt.connector());
  } catch (const std::bad_alloc&) {
    // The attempt has failed, which says nothing about the peer.
    status = Code::kOutOfMemory;
  }
  if (status.ok()) {
    introduce(id, rank, true);
  } else {
    judge_->on_connect_failed(rank, failure, status.text(), now_ns());
  }
}

void Plane::on_accept(StreamSocket socket, const Hello& peer) {
  if (peer.source < 0 || peer.source >= setup_.size || peer.source == setup_.rank) return;
  ConnectionId id = 0;
  if (Status status = adopt(std::move(socket), peer.source, false, &id); status.ok()) {
    introduce(id, peer.source, false);
  } else {
    log_.warn("a control connection from rank {} was dropped: {}; rank {} connects again",
              peer.source, status.text(), peer.source);
  }
}

void Plane::introduce(ConnectionId id, int rank, bool initiated) {
  try {
    judge_->on_connection_up(id, rank, initiated, now_ns());
  } catch (const std::bad_alloc&) {
    connections_.erase(id);
    // The judge may have recorded the connection in part.
    judge_->on_connection_down(id, "this rank had no memory for the connection", now_ns());
  }
}

Status Plane::adopt(StreamSocket socket, int rank, bool initiated, ConnectionId* id) {
  *id = next_connection_id_++;
  auto connection = std::make_unique<ControlConnection>(
      thread_.poller(), static_cast<ControlConnectionHandler&>(*this), *id, rank, setup_.size);
  HETCOMM_RETURN_IF_ERROR(connection->start(std::move(socket), own_process_.get()));
  // A rank that has connected to this one may be behind a firewall that refuses connections, so its
  // address proves nothing.
  if (initiated || connection->is_local()) proved_.add(rank, connection->peer_address());
  log_.debug("control connection with rank {} is up ({})", rank,
             without_port(connection->peer_address()));
  if (tells_addresses()) {
    (void)connection->send({.type = FrameType::kHere,
                            .subject = setup_.rank,
                            .text = members_.addresses.text(setup_.rank)});
  }
  connections_.emplace(*id, std::move(connection));
  return {};
}

std::unique_ptr<ControlConnection> Plane::take(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return nullptr;
  std::unique_ptr<ControlConnection> connection = std::move(found->second);
  connections_.erase(found);
  return connection;
}

bool Plane::send(ConnectionId id, const Frame& frame) {
  const auto found = connections_.find(id);
  return found == connections_.end() || found->second->send(frame);
}

void Plane::close(ConnectionId id) {
  std::unique_ptr<ControlConnection> connection = take(id);
  if (connection == nullptr) return;
  const int rank = connection->rank();
  if (std::none_of(connections_.begin(), connections_.end(),
                   [rank](const auto& other) { return other.second->rank() == rank; })) {
    processes_.forget(rank);
  }
  connection->close();
  closing_.push_back({std::move(connection), now_ns() + kMaxClosingNs});
}

uint64_t Plane::last_acknowledged_ns(ConnectionId id) {
  const auto found = connections_.find(id);
  return found != connections_.end() ? found->second->last_acknowledged_ns(now_ns()) : 0;
}

void Plane::on_frame(ControlConnection& connection, Frame& frame) {
  // Texts that are not binary appear in logs and errors, so they must be printable.
  if (!holds_bytes(frame) && !frame.text.empty()) frame.text = printable(frame.text);
  judge_->on_frame(connection.id(), frame, now_ns());
}

void Plane::on_room(ControlConnection& connection) { judge_->on_writable(connection.id()); }

void Plane::on_ended(ControlConnection& connection, const std::string& why) {
  log_.debug("control connection with rank {} broke: {}", connection.rank(), why);
  garbage_.push_back(take(connection.id()));
  judge_->on_connection_down(connection.id(), why, now_ns());
}

void Plane::on_closed(ControlConnection& connection) {
  const auto found = std::find_if(closing_.begin(), closing_.end(), [&](const Closing& one) {
    return one.connection.get() == &connection;
  });
  if (found == closing_.end()) return;
  garbage_.push_back(std::move(found->connection));
  closing_.erase(found);
}

// Watches the peer's process. If the exit cannot be watched (an older kernel, a full poller), the
// end of the connection is the only evidence of it. A peer that sends another process's descriptor
// harms only itself. A descriptor that does not refer to a running process is rejected.
void Plane::on_process(ControlConnection& connection, UniqueFd process) {
  if (connection.is_of_this_process()) return;  // such a peer exits together with this rank
  if (!is_running_process(process.get())) {
    log_.warn(
        "rank {} handed over a descriptor that is no running process; its exit is noticed by "
        "its connections instead",
        connection.rank());
    return;
  }
  processes_.watch(connection.rank(), std::move(process));
}

void Plane::on_exit(int rank) {
  std::vector<ControlConnection*> connections;
  for (const auto& [id, connection] : connections_) {
    if (connection->rank() == rank) connections.push_back(connection.get());
  }
  for (ControlConnection* connection : connections) connection->read_out();
  processes_.forget(rank);
  judge_->on_exit(rank, now_ns());
}

// --- mail for the job -------------------------------------------------------------

void Plane::tell(Mail mail) { mailbox_->push(std::make_unique<Mail>(std::move(mail))); }

void Plane::on_ready() { tell({.type = Mail::Type::kReady}); }

void Plane::on_dead(int rank, const std::string& why) {
  processes_.forget(rank);
  log_.warn("{}", why);
  tell({.type = Mail::Type::kDead, .rank = rank, .text = why});
}

void Plane::on_left(int rank) {
  processes_.forget(rank);
  log_.debug("rank {} left", rank);
  tell({.type = Mail::Type::kLeft, .rank = rank});
}

void Plane::on_declared_dead(const std::string& why) {
  log_.error(
      "the other ranks have declared this rank lost: {}; end this process, or rebuild the "
      "communicator",
      why);
  tell({.type = Mail::Type::kDeclaredDead, .text = why});
}

void Plane::on_notice(const Frame& notice) {
  const bool aborted = notice.type == FrameType::kAborted;
  tell({.type = aborted ? Mail::Type::kAborted : Mail::Type::kFailed,
        .rank = notice.subject,
        .communicator = notice.number,
        .code = static_cast<Code>(-static_cast<int32_t>(notice.code)),
        .text = notice.text});
}

void Plane::on_letter(int from, const Frame& letter) {
  Mail mail{.rank = from, .value = letter.value, .text = letter.text};
  switch (static_cast<LetterType>(letter.code)) {
    case LetterType::kKnock:
      mail.type = Mail::Type::kKnock;
      break;
    case LetterType::kRefused:
      mail.type = Mail::Type::kRefused;
      break;
    case LetterType::kGivenUp:
      mail.type = Mail::Type::kGivenUp;
      break;
    case LetterType::kCall:
      mail.type = Mail::Type::kCall;
      mail.communicator = static_cast<uint32_t>(letter.value);
      break;
    case LetterType::kQuestion:
      if (setup_.witness == nullptr) return;
      mail.text = setup_.witness->testify(from, std::as_bytes(std::span(letter.text)));
      if (!mail.text.empty()) {
        send_uncounted(from, LetterType::kAnswer, letter.value, std::move(mail.text));
      }
      return;
    case LetterType::kAnswer:
      mail.type = Mail::Type::kAnswer;
      break;
    case LetterType::kProfile:
      take_profile(from, letter);
      return;
  }
  tell(std::move(mail));
}

void Plane::learn_addresses(int rank, const std::string& addresses) {
  // This rank knows its own addresses. A malformed text leaves the known addresses unchanged.
  if (rank != setup_.rank) (void)members_.addresses.learn_text(rank, addresses);
}

void Plane::ask_profile(int rank, uint64_t now) {
  if (judge_ != nullptr) judge_->post(rank, LetterType::kProfile, 1, members_.profile, now);
}

// Stores the profile of |from| for the job before it sends the answer: |from| may connect as soon
// as it has the answer.
void Plane::take_profile(int from, const Frame& letter) {
  if (!tells_addresses()) return;  // in this job all ranks know all profiles
  profiles_->put(from, letter.text);
  tell({.type = Mail::Type::kProfile, .rank = from});
  if (letter.value != 0) send_uncounted(from, LetterType::kProfile, 0, members_.profile);
}

void Plane::send_uncounted(int to, LetterType type, uint64_t value, std::string text) {
  const Frame frame{.type = FrameType::kLetter,
                    .code = static_cast<uint8_t>(type),
                    .subject = setup_.rank,
                    .number = kUncounted,
                    .value = value,
                    .text = std::move(text)};
  // The newest connection is the most likely to work.
  const auto newest = std::find_if(connections_.rbegin(), connections_.rend(),
                                   [to](const auto& one) { return one.second->rank() == to; });
  if (newest != connections_.rend()) (void)newest->second->send(frame);
}

void Plane::on_suspect(int rank) { tell({.type = Mail::Type::kSuspected, .rank = rank}); }

void Plane::on_vouch(int rank) { tell({.type = Mail::Type::kVouched, .rank = rank}); }

}  // namespace hetcomm::liveness
