#include "src/core/control.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <set>

#include "src/base/clock.h"

namespace hetcomm {
namespace {

constexpr size_t kFrameHeader = 12;
constexpr size_t kMaxText = 400;
constexpr size_t kMaxAddresses = 8;
// Control frames are rare and tiny; a link on which more than this waits is broken.
constexpr size_t kMaxBacklog = 256 * 1024;

}  // namespace

// One control connection: first being made or proved, then a stream of frames.
class ControlPlane::Link final : public Watcher, private ConnectHandler {
 public:
  Link(ControlPlane& plane, int peer) : plane_(plane), peer_(peer) {}
  ~Link() {
    std::erase(plane_.connecting_, this);
    std::erase(plane_.broken_, this);
    close();
  }

  int peer() const { return peer_; }
  bool up() const { return socket_.valid(); }
  bool was_up() const { return was_up_; }
  Connector* connector() { return connector_.get(); }

  void connect(const std::vector<Address>& addresses) {
    Hello hello = make_hello(plane_.setup_.credentials, Role::kControl, plane_.setup_.rank, peer_);
    connector_ = Connector::create(plane_.poller_, addresses, plane_.setup_.credentials.secret,
                                   std::move(hello), now_ns() + plane_.setup_.detection_ns, *this,
                                   plane_.tls_);
    connector_->let_answer_wait(plane_.setup_.answer_ns, plane_.setup_.detection_ns);
  }

  Status adopt(StreamSocket socket) {
    socket_ = std::move(socket);
    was_up_ = true;
    set_no_delay(socket_.get());
    HETCOMM_RETURN_IF_ERROR(set_keepalive(socket_.get(), plane_.setup_.detection_ns));
    // What came with the end of a TLS handshake is announced by nothing: writable it is at once.
    wants_write_ = !socket_.flushed() || socket_.buffered();
    return plane_.poller_.add(socket_.get(), wants_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN, *this);
  }

  void queue(const std::vector<std::byte>& frame) {
    out_.insert(out_.end(), frame.begin(), frame.end());
    if (up() && !dead_) write_out();
  }

  void on_events(uint32_t events) override {
    if ((events & EPOLLOUT) != 0) write_out();
    if (!dead_ && ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 || socket_.buffered())) {
      read_in();
    }
    if (broken_.code() != Code::kOk && !dead_) end(broken_);
  }

  // Reports what write_out() found outside of an upcall.
  void report_broken() {
    if (broken_.ok() || dead_) return;
    read_in();  // a goodbye that came before counts
    if (!dead_) end(broken_);
  }

 private:
  void on_connect(Result<StreamSocket> socket) override {
    std::unique_ptr<Connector> done = std::move(connector_);
    std::erase(plane_.connecting_, this);
    if (!socket.ok()) {
      end(socket.status());
      return;
    }
    if (Status status = adopt(std::move(socket.value())); !status.ok()) {
      end(status);
      return;
    }
    plane_.link_up(*this);
    write_out();
  }

  void write_out() {
    while (!out_.empty()) {
      const ssize_t put = socket_.send(out_.data(), out_.size());
      if (put < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) broken_ = failure(errno);
        break;
      }
      out_.erase(out_.begin(), out_.begin() + put);
    }
    (void)socket_.flush();
    if (out_.size() > kMaxBacklog) broken_ = Status(Code::kPeerLost, "control connection is stuck");
    const bool want = (!out_.empty() || !socket_.flushed()) && broken_.ok();
    if (want != wants_write_) {
      wants_write_ = want;
      const uint32_t events = want ? EPOLLIN | EPOLLOUT : EPOLLIN;
      if (Status status = plane_.poller_.modify(socket_.get(), events, *this); !status.ok()) {
        broken_ = status;
      }
    }
    if (!broken_.ok()) plane_.broken_.push_back(this);
  }

  void read_in() {
    std::array<std::byte, 4096> buffer;
    while (!dead_) {
      const ssize_t got = socket_.receive(buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        end(got == 0 ? Status(Code::kPeerLost, "control connection closed without goodbye")
                     : failure(errno));
        return;
      }
      in_.insert(in_.end(), buffer.begin(), buffer.begin() + got);
      parse();
    }
  }

  void parse() {
    size_t used = 0;
    while (!dead_ && in_.size() - used >= kFrameHeader) {
      ByteReader reader(ConstByteSpan(in_).subspan(used));
      const auto type = reader.read<uint8_t>();
      reader.read<uint8_t>();
      const auto length = reader.read<uint16_t>();
      Frame frame{
          static_cast<FrameType>(type), reader.read<int32_t>(), reader.read<uint32_t>(), {}};
      if (length > kMaxText || type < 1 || type > static_cast<uint8_t>(FrameType::kCall) ||
          frame.rank < 0 || frame.rank >= plane_.setup_.size) {
        end(Status(Code::kPeerLost, "control connection carries garbage"));
        return;
      }
      if (reader.left() < length) break;
      const ConstByteSpan text = reader.read_raw(length);
      frame.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
      used += kFrameHeader + length;
      plane_.handle(*this, frame);
    }
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(used));
  }

  // Shuts down first: a forked child may hold the descriptor too, and the peer shall see the end
  // all the same.
  void close() {
    if (!socket_.valid()) return;
    plane_.poller_.remove(socket_.get(), *this);
    if (out_.empty()) socket_.say_goodbye();
    ::shutdown(socket_.get(), SHUT_RDWR);
    socket_.reset();
  }

  Status failure(int error) const {
    const Code code = status_from_errno(error, {}).code();
    return Status(code, "control connection: " + socket_.describe(error));
  }

  void end(const Status& why) {
    dead_ = true;
    close();
    plane_.link_down(*this, why);
  }

  ControlPlane& plane_;
  int peer_;
  StreamSocket socket_;
  std::unique_ptr<Connector> connector_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  Status broken_;
  bool wants_write_ = false;
  bool was_up_ = false;
  bool dead_ = false;
};

struct ControlPlane::Peer {
  std::vector<std::unique_ptr<Link>> links;
  std::vector<Frame> waiting;  // until a link is up
  bool lost = false;
  bool left = false;
};

ControlPlane::ControlPlane(Poller& poller, Log& log, Setup setup, ControlHandler& handler)
    : poller_(poller), log_(log), setup_(std::move(setup)), handler_(handler) {}

Result<std::unique_ptr<ControlPlane>> ControlPlane::create(Poller& poller, Log& log,
                                                           const Config& config, Setup setup,
                                                           ControlHandler& handler) {
  std::unique_ptr<ControlPlane> plane(new ControlPlane(poller, log, std::move(setup), handler));
  plane->peers_.resize(static_cast<size_t>(plane->setup_.size));
  if (plane->setup_.size == 1) return plane;
  Result<std::shared_ptr<const TlsContext>> tls = TlsContext::create(config, log);
  if (!tls.ok()) return tls.status().annotate("control plane");
  plane->tls_ = std::move(tls).value();
  Result<std::vector<InterfaceAddress>> interfaces = choose_interfaces(config, plane->setup_.route);
  if (!interfaces.ok()) return interfaces.status();
  const Result<PortRange> ports = port_range(config);
  if (!ports.ok()) return ports.status();
  Acceptor::Options options;
  options.ports = ports.value();
  options.credentials = plane->setup_.credentials;
  options.role = Role::kControl;
  options.rank = plane->setup_.rank;
  options.tls = plane->tls_;
  options.held = true;
  // One address for traffic between hosts and, where there is one, loopback.
  for (const InterfaceAddress& candidate : interfaces.value()) {
    const bool wanted = plane->acceptors_.empty() ||
                        (plane->acceptors_.size() == 1 && candidate.address.is_loopback() &&
                         !plane->acceptors_[0]->address().is_loopback());
    if (!wanted) continue;
    Result<std::unique_ptr<Acceptor>> acceptor =
        Acceptor::create(poller, log, candidate.address, options, *plane);
    if (!acceptor.ok()) return acceptor.status().annotate("control plane");
    if (plane->acceptors_.empty()) {
      log.info("control plane listens on {} ({})", acceptor.value()->address().to_string(),
               candidate.interface);
    }
    plane->acceptors_.push_back(std::move(acceptor.value()));
    if (plane->acceptors_.size() == 2) break;
  }
  return plane;
}

// Links first: they take themselves out of the lists of this object.
ControlPlane::~ControlPlane() {
  peers_.clear();
  garbage_.clear();
}

void ControlPlane::encode_addresses(ByteWriter& writer) const {
  writer.write(static_cast<uint8_t>(acceptors_.size()));
  for (const auto& acceptor : acceptors_) acceptor->address().encode(writer);
}

Result<std::vector<Address>> ControlPlane::decode_addresses(ByteReader& reader) {
  const auto count = reader.read<uint8_t>();
  if (count > kMaxAddresses) return Status(Code::kBootstrapFailed, "too many control addresses");
  std::vector<Address> addresses;
  for (uint8_t i = 0; i < count; ++i) {
    Result<Address> address = Address::decode(reader);
    if (!address.ok()) return address.status();
    addresses.push_back(address.value());
  }
  return addresses;
}

std::vector<int> ControlPlane::neighbours() const {
  const int size = setup_.size;
  std::set<int> result;
  const int stride = static_cast<int>(std::lround(std::sqrt(static_cast<double>(size))));
  for (const int distance : {1, stride}) {
    result.insert((setup_.rank + distance) % size);
    result.insert((setup_.rank + size - distance) % size);
  }
  result.erase(setup_.rank);
  return {result.begin(), result.end()};
}

Status ControlPlane::start(const Credentials& credentials,
                           std::vector<std::vector<Address>> addresses) {
  setup_.credentials = credentials;
  addresses_ = std::move(addresses);
  for (const auto& acceptor : acceptors_) {
    HETCOMM_RETURN_IF_ERROR(acceptor->open(credentials).annotate("control plane"));
  }
  for (const int neighbour : neighbours()) {
    if (neighbour > setup_.rank) connect(neighbour);
  }
  for (const int rank : early_watches_) watch(rank);
  early_watches_.clear();
  return {};
}

std::vector<int> ControlPlane::missing_neighbours() const {
  std::vector<int> missing;
  for (const int neighbour : neighbours()) {
    const Peer& peer = peers_[static_cast<size_t>(neighbour)];
    // One that has left was here: it may go as soon as its own graph is complete.
    if (!peer.left && !has_link(peer)) missing.push_back(neighbour);
  }
  return missing;
}

Status ControlPlane::last_rejection() const {
  for (const auto& acceptor : acceptors_) {
    if (!acceptor->last_rejection().ok()) return acceptor->last_rejection();
  }
  return {};
}

bool ControlPlane::has_link(const Peer& peer) const {
  return std::any_of(peer.links.begin(), peer.links.end(),
                     [](const auto& link) { return link->up(); });
}

void ControlPlane::connect(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  auto link = std::make_unique<Link>(*this, rank);
  link->connect(addresses_[static_cast<size_t>(rank)]);
  connecting_.push_back(link.get());
  peer.links.push_back(std::move(link));
}

void ControlPlane::watch(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (rank == setup_.rank || peer.lost || peer.left || !peer.links.empty()) return;
  if (addresses_.empty()) {
    // A faster peer has connected already; its address is still to come.
    early_watches_.push_back(rank);
    return;
  }
  connect(rank);
}

void ControlPlane::on_accept(StreamSocket socket, const Hello& hello) {
  if (hello.source < 0 || hello.source >= setup_.size || hello.source == setup_.rank) return;
  Peer& peer = peers_[static_cast<size_t>(hello.source)];
  if (peer.lost || peer.left || closing_) return;
  auto link = std::make_unique<Link>(*this, hello.source);
  if (Status status = link->adopt(std::move(socket)); !status.ok()) {
    log_.warn("control connection of rank {} refused: {}", hello.source, status.text());
    return;
  }
  peer.links.push_back(std::move(link));
  link_up(*peer.links.back());
}

void ControlPlane::link_up(Link& link) {
  Peer& peer = peers_[static_cast<size_t>(link.peer())];
  log_.debug("control connection with rank {} is up", link.peer());
  for (const Frame& frame : peer.waiting) link.queue(encode(frame));
  peer.waiting.clear();
}

void ControlPlane::link_down(Link& link, const Status& why) {
  Peer& peer = peers_[static_cast<size_t>(link.peer())];
  const auto entry = std::find_if(peer.links.begin(), peer.links.end(),
                                  [&](const auto& owned) { return owned.get() == &link; });
  if (entry != peer.links.end()) {
    garbage_.push_back(std::move(*entry));
    peer.links.erase(entry);
  }
  if (closing_ || peer.left || peer.lost) return;
  // Two ranks may watch each other by a connection each; one that was never up is no loss beside
  // one that is.
  if (!link.was_up() && has_link(peer)) return;
  declare_lost(link.peer(), why, nullptr);
}

void ControlPlane::send(int rank, Frame frame) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.lost || peer.left) return;
  for (const auto& link : peer.links) {
    if (link->up()) {
      link->queue(encode(frame));
      return;
    }
  }
  peer.waiting.push_back(std::move(frame));
  watch(rank);
}

void ControlPlane::refuse(int rank, std::string_view why) {
  send(rank, Frame{FrameType::kRefused, setup_.rank, 0, std::string(why.substr(0, kMaxText))});
}

void ControlPlane::give_up(int rank, std::string_view why) {
  send(rank, Frame{FrameType::kGivenUp, setup_.rank, 0, std::string(why.substr(0, kMaxText))});
}

void ControlPlane::flood(const Frame& frame, const Link* except) {
  const std::vector<std::byte> bytes = encode(frame);
  for (Peer& peer : peers_) {
    for (const auto& link : peer.links) {
      if (link.get() != except && link->up()) {
        link->queue(bytes);
        break;
      }
    }
  }
}

// False when it is known already.
bool ControlPlane::note_abort(int32_t origin, uint16_t communicator) {
  const std::pair abort(origin, communicator);
  if (std::find(aborted_.begin(), aborted_.end(), abort) != aborted_.end()) return false;
  aborted_.push_back(abort);
  return true;
}

void ControlPlane::publish_abort(uint16_t communicator, std::string_view reason) {
  if (!note_abort(setup_.rank, communicator)) return;
  flood(
      Frame{FrameType::kAbort, setup_.rank, communicator, std::string(reason.substr(0, kMaxText))},
      nullptr);
}

bool ControlPlane::note_failed(int32_t origin, uint16_t communicator) {
  const std::pair failure(origin, communicator);
  if (std::find(failed_.begin(), failed_.end(), failure) != failed_.end()) return false;
  failed_.push_back(failure);
  return true;
}

void ControlPlane::publish_collectives_failed(uint16_t communicator, const Status& why) {
  if (!note_failed(setup_.rank, communicator)) return;
  const uint32_t code = static_cast<uint32_t>(-static_cast<int32_t>(why.code())) << 16;
  flood(Frame{FrameType::kCollectivesFailed, setup_.rank, communicator | code,
              std::string(why.text().substr(0, kMaxText))},
        nullptr);
}

void ControlPlane::tell_call(int rank, uint16_t communicator, ConstByteSpan note) {
  send(rank, Frame{FrameType::kCall, setup_.rank, communicator,
                   std::string(reinterpret_cast<const char*>(note.data()), note.size())});
}

void ControlPlane::say_goodbye() {
  closing_ = true;
  flood(Frame{FrameType::kLeft, setup_.rank, 0, {}}, nullptr);
}

void ControlPlane::handle(Link& from, const Frame& frame) {
  if (closing_) return;
  switch (frame.type) {
    case FrameType::kLost:
      if (frame.rank == setup_.rank) {
        handler_.on_declared_lost(Status(Code::kPeerLost, frame.text));
      } else {
        declare_lost(frame.rank, Status(Code::kPeerLost, frame.text), &from);
      }
      break;
    case FrameType::kLeft:
      note_left(frame.rank, &from);
      break;
    case FrameType::kAbort: {
      const auto communicator = static_cast<uint16_t>(frame.argument);
      if (!note_abort(frame.rank, communicator)) break;
      flood(frame, &from);
      handler_.on_abort(frame.rank, communicator, frame.text);
      break;
    }
    case FrameType::kCollectivesFailed: {
      const auto communicator = static_cast<uint16_t>(frame.argument);
      if (!note_failed(frame.rank, communicator)) break;
      flood(frame, &from);
      const auto code = static_cast<Code>(-static_cast<int32_t>(frame.argument >> 16));
      const bool told = code == Code::kMismatch || code == Code::kPeerLost;
      handler_.on_collectives_failed(frame.rank, communicator,
                                     Status(told ? code : Code::kAborted, frame.text));
      break;
    }
    case FrameType::kCall:
      handler_.on_call(from.peer(), static_cast<uint16_t>(frame.argument),
                       std::as_bytes(std::span(frame.text)));
      break;
    case FrameType::kKnock:
      handler_.on_knock(from.peer(), frame.argument);
      break;
    case FrameType::kRefused:
      handler_.on_refused(from.peer(), frame.text);
      break;
    case FrameType::kGivenUp:
      handler_.on_given_up(from.peer(), frame.text);
      break;
  }
}

void ControlPlane::declare_lost(int rank, const Status& why, const Link* from) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.lost || peer.left) return;
  peer.lost = true;
  peer.waiting.clear();
  const std::string text = from != nullptr ? std::string(why.text())
                                           : fmt::format("rank {} lost, noticed by rank {}: {}",
                                                         rank, setup_.rank, why.text());
  log_.warn("{}", text);
  flood(Frame{FrameType::kLost, rank, 0, text.substr(0, kMaxText)}, from);
  handler_.on_peer_lost(rank, Status(Code::kPeerLost, text));
}

void ControlPlane::note_left(int rank, const Link* from) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (rank == setup_.rank || peer.lost || peer.left) return;
  peer.left = true;
  peer.waiting.clear();
  log_.debug("rank {} left", rank);
  flood(Frame{FrameType::kLeft, rank, 0, {}}, from);
  handler_.on_peer_left(rank);
}

void ControlPlane::tick(uint64_t now) {
  for (const auto& acceptor : acceptors_) acceptor->expire(now);
  const std::vector<Link*> connecting = connecting_;
  for (Link* link : connecting) {
    if (link->connector() != nullptr && link->connector()->next_timer_ns() <= now) {
      link->connector()->expire(now);
    }
  }
  while (!broken_.empty()) {
    Link* link = broken_.back();
    broken_.pop_back();
    link->report_broken();
  }
  garbage_.clear();
}

uint64_t ControlPlane::next_timer_ns() const {
  uint64_t next = kForever;
  for (const auto& acceptor : acceptors_) next = std::min(next, acceptor->next_timer_ns());
  for (Link* link : connecting_) {
    if (link->connector() != nullptr) next = std::min(next, link->connector()->next_timer_ns());
  }
  return next;
}

std::vector<std::byte> ControlPlane::encode(const Frame& frame) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(frame.type));
  writer.write(uint8_t{0});
  writer.write(static_cast<uint16_t>(frame.text.size()));
  writer.write(frame.rank);
  writer.write(frame.argument);
  writer.write_raw(std::as_bytes(std::span(frame.text)));
  return writer.take();
}

}  // namespace hetcomm
