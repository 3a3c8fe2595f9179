#include "transports/rdma/connection_manager.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "transports/rdma/cm_functions.h"

namespace hetcomm::rdma {
namespace {

constexpr int kBacklog = 128;
constexpr int kResolveMs = 4000;
// Reasons for a rejection, as numbered in the InfiniBand specification.
constexpr int kNobodyListens = 8;
constexpr int kStale = 10;
constexpr int kRefused = 28;
// The maximum length of the text in a refusal.
constexpr size_t kMaxRefusal = 120;
constexpr uint8_t kRnrForever = 7;

// The parts of an event that are needed after acknowledging it. Events are acknowledged at once,
// since an identifier with unacknowledged events cannot be destroyed.
struct Event {
  rdma_cm_id* id = nullptr;
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = 0;
  std::vector<std::byte> data;
};

struct DestroyId {
  const Cm* cm;
  void operator()(rdma_cm_id* id) const { (void)cm->destroy_id(id); }
};
using Id = std::unique_ptr<rdma_cm_id, DestroyId>;

std::string host_of(const Address& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}

// The objects that listeners and connections need to create their identifiers.
struct Surroundings {
  const Cm& cm;
  const Device& device;
  rdma_event_channel* channel;

  Result<Id> make_id(void* context) const {
    rdma_cm_id* id = nullptr;
    if (cm.create_id(channel, &id, context, RDMA_PS_TCP) != 0) {
      return status_from_errno(errno, "rdma_cm: an identifier cannot be made");
    }
    return Id(id, {&cm});
  }
  // Checks that |id| is bound to this transport's port, since |address| may belong to another
  // device.
  Status check_device(const rdma_cm_id& id, const Address& address) const {
    const Nic& nic = device.nic();
    if (id.verbs == nullptr) {
      return {Code::kUnsupported, fmt::format("{} belongs to no RDMA device", host_of(address))};
    }
    const std::string name = device.verbs().get_device_name(id.verbs->device);
    if (name == nic.device && id.port_num == nic.port) return {};
    return {Code::kUnsupported, fmt::format("{} belongs to {}:{}, not to {}", host_of(address),
                                            name, id.port_num, nic.name())};
  }
};

sockaddr* writable(sockaddr_storage& copy, const Address& address) {
  std::memcpy(&copy, address.get(), address.length());
  return reinterpret_cast<sockaddr*>(&copy);
}

// Returns the text of a refusal. The peer controls the bytes, so unprintable ones are replaced.
std::string text_of(const std::vector<std::byte>& data) {
  std::string text;
  for (const std::byte byte : data) {
    const char c = static_cast<char>(byte);
    if (c == 0) break;
    text += c < 0x20 || c > 0x7e ? '?' : c;
  }
  return text;
}

std::string rejection_text(const Event& event) {
  switch (event.status) {
    case kNobodyListens:
      return "nobody listens there";
    case kStale:
      return "the peer still knows this queue pair's number from a connection that has ended";
    case kRefused: {
      const std::string why = text_of(event.data);
      return why.empty() ? "refused by the peer" : "refused by the peer: " + why;
    }
    default:
      return fmt::format("rejected for reason {}", event.status);
  }
}

class Connection final : public CmConnection {
 public:
  Connection(const Surroundings& surroundings, Address from, Address to)
      : surroundings_(surroundings), from_(std::move(from)), to_(std::move(to)) {}

  Status ask(const CmToken& token, const QueuePair& pair, CmHandler& handler) {
    token_ = token;
    handler_ = &handler;
    parameters_ = parameters_of(pair);
    Result<Id> id = surroundings_.make_id(this);
    if (!id.ok()) return id.status();
    id_ = std::move(id).value();
    sockaddr_storage from{};
    sockaddr_storage to{};
    return check(surroundings_.cm.resolve_addr(id_.get(), writable(from, from_), writable(to, to_),
                                               kResolveMs),
                 "the address cannot be looked up");
  }
  void adopt(Id id) {
    id_ = std::move(id);
    id_->context = this;
  }

  void set_handler(CmHandler& handler) override { handler_ = &handler; }

  Result<Path> path() override {
    Path path;
    // A connection on another device cannot serve this queue pair.
    const Status status = surroundings_.check_device(*id_, from_);
    if (!status.ok()) return failure(status.text());
    ibv_qp_attr attributes{};
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      attributes.qp_state = state;
      int mask = 0;
      HETCOMM_RETURN_IF_ERROR(check(surroundings_.cm.init_qp_attr(id_.get(), &attributes, &mask),
                                    "the path cannot be read"));
      if (state == IBV_QPS_INIT) path.partition = attributes.pkey_index;
      if (state != IBV_QPS_RTR) continue;
      path.address = attributes.ah_attr;
      path.mtu = attributes.path_mtu;
      path.queue_pair = attributes.dest_qp_num;
      path.receive_sequence = attributes.rq_psn;
    }
    path.send_sequence = attributes.sq_psn;
    return path;
  }

  Status accept(const QueuePair& pair) override {
    rdma_conn_param parameters = parameters_of(pair);
    return check(surroundings_.cm.accept(id_.get(), &parameters),
                 "the connection cannot be accepted");
  }
  void refuse(std::string_view why) override {
    why = why.substr(0, kMaxRefusal);
    (void)surroundings_.cm.reject(id_.get(), why.data(), static_cast<uint8_t>(why.size()));
  }
  Status confirm() override {
    return check(surroundings_.cm.establish(id_.get()), "the connection cannot be confirmed");
  }

  // Handles an event. May destroy this connection.
  void on_event(const Event& event);

 private:
  rdma_conn_param parameters_of(const QueuePair& pair) const {
    rdma_conn_param parameters{};
    parameters.responder_resources = pair.read_depth();
    parameters.initiator_depth = static_cast<uint8_t>(std::clamp<int>(
        surroundings_.device.nic().limits.max_qp_init_rd_atom, 0, QueuePair::kMaxReads));
    parameters.flow_control = 1;
    parameters.retry_count = 7;
    parameters.rnr_retry_count = kRnrForever;
    parameters.srq = 1;
    parameters.qp_num = pair.number();
    return parameters;
  }
  // Converts the result of a call, with errno, into a status.
  Status check(int result, const char* what) const {
    return result == 0 ? Status() : failure(fmt::format("{}: {}", what, std::strerror(errno)));
  }
  Status failure(std::string_view why) const {
    return {Code::kPeerLost,
            fmt::format("rdma_cm: {} to {}: {}", host_of(from_), to_.to_string(), why)};
  }
  Status look_up_route() const {
    return check(surroundings_.cm.resolve_route(id_.get(), kResolveMs),
                 "the route cannot be looked up");
  }
  Status connect() {
    parameters_.private_data = token_.data();
    parameters_.private_data_len = static_cast<uint8_t>(token_.size());
    return check(surroundings_.cm.connect(id_.get(), &parameters_),
                 "the connection cannot be asked for");
  }
  // The handler may destroy this connection, so each of these functions must be the last call in an
  // upcall.
  void end(std::string_view why) { end(failure(why)); }
  void end(const Status& why) {
    CmHandler* handler = std::exchange(handler_, nullptr);
    if (handler != nullptr) handler->on_ended(why);
  }
  void go_on(const Status& status) {
    if (!status.ok()) end(status);
  }

  const Surroundings surroundings_;
  const Address from_;
  const Address to_;
  CmHandler* handler_ = nullptr;
  CmToken token_{};
  rdma_conn_param parameters_{};
  Id id_{nullptr, {nullptr}};
};

void Connection::on_event(const Event& event) {
  const auto error = [&] { return std::strerror(std::abs(event.status)); };
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      return go_on(look_up_route());
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return go_on(connect());
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      if (handler_ != nullptr) handler_->on_answer();
      return;
    case RDMA_CM_EVENT_ADDR_ERROR:
      return end(
          fmt::format("the address cannot be found: {}; is the peer's interface up and in "
                      "this network?",
                      error()));
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return end(fmt::format("there is no route: {}", error()));
    case RDMA_CM_EVENT_CONNECT_ERROR:
      return end(fmt::format("connecting failed: {}", error()));
    case RDMA_CM_EVENT_UNREACHABLE:
      return end(
          fmt::format("the peer does not answer: {}; do RDMA packets pass (RoCE v2: UDP "
                      "port 4791)?",
                      error()));
    case RDMA_CM_EVENT_REJECTED:
      return end(rejection_text(event));
    case RDMA_CM_EVENT_DISCONNECTED:
      return end("connection closed by peer");
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return end("the device was removed");
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return end("the address has moved to another device");
    case RDMA_CM_EVENT_CONNECT_REQUEST:
    case RDMA_CM_EVENT_ESTABLISHED:  // the ready byte on the TCP connection serves instead
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return;
  }
}

class Manager final : public ConnectionManager, public Watcher {
 public:
  Manager(const Cm& cm, const Device& device, Poller& poller, Log& log, CmListener& listener)
      : surroundings_{cm, device, nullptr}, poller_(poller), log_(log), listener_(listener) {}
  ~Manager() override {
    listeners_.clear();
    if (surroundings_.channel == nullptr) return;
    poller_.remove(surroundings_.channel->fd, *this);
    surroundings_.cm.destroy_event_channel(surroundings_.channel);
  }

  Status set_up(const Config& config);
  std::optional<Address> address_of(const Gid& gid) const override {
    const Listener* listener = find(gid);
    return listener == nullptr ? std::nullopt : std::optional(listener->address);
  }
  Result<std::unique_ptr<CmConnection>> connect(const Gid& gid, const Address& to,
                                                const CmToken& token, const QueuePair& pair,
                                                CmHandler& handler) override;
  void on_events(uint32_t events) override;

 private:
  struct Listener {
    GidBytes gid;
    Address address;
    Id id;
  };

  std::vector<std::pair<GidBytes, Address>> candidates(const Config& config) const;
  Status listen(const GidBytes& gid, const Address& address);
  // Finds the listener for |gid|. On InfiniBand a GID is not an IP address, so one listener serves
  // all GIDs.
  const Listener* find(const Gid& gid) const {
    const auto at = std::find_if(listeners_.begin(), listeners_.end(), [&](const Listener& each) {
      return each.gid == gid.bytes || gid.kind == GidKind::kInfiniBand;
    });
    return at == listeners_.end() ? nullptr : &*at;
  }
  void on_request(const Event& event);
  void on_listener_event(const Event& event);

  Surroundings surroundings_;
  Poller& poller_;
  Log& log_;
  CmListener& listener_;
  std::vector<Listener> listeners_;
};

Status Manager::set_up(const Config& config) {
  surroundings_.channel = surroundings_.cm.create_event_channel();
  if (surroundings_.channel == nullptr) {
    return {Code::kUnsupported,
            fmt::format("rdma_cm cannot be opened: {}; load the kernel's module rdma_ucm, and see "
                        "the rights of /dev/infiniband/rdma_cm",
                        std::strerror(errno))};
  }
  const int fd = surroundings_.channel->fd;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return status_from_errno(errno, "rdma_cm: event channel");
  }
  HETCOMM_RETURN_IF_ERROR(poller_.add(fd, EPOLLIN, *this));
  std::string tried;
  Result<PortRange> ports = port_range(config);
  if (!ports.ok()) return ports.status();
  for (const auto& [gid, address] : candidates(config)) {
    Status status;
    for (int port = ports->first; port <= ports->last; ++port) {
      status = listen(gid, address.with_port(static_cast<uint16_t>(port)));
      if (status.ok() || status.code() != Code::kInvalidArgument) break;
    }
    if (status.ok()) continue;
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", status.text());
  }
  if (!tried.empty()) log_.info("rdma: rdma_cm cannot listen on: {}", tried);
  for (const Listener& each : listeners_) {
    log_.info("rdma: rdma_cm listens on {}", each.address.to_string());
  }
  if (!listeners_.empty()) return {};
  return {Code::kUnsupported,
          fmt::format("{} has no address for rdma_cm (tried: {}); it takes an IPv4 or IPv6 "
                      "address of the interface, link-local ones apart",
                      surroundings_.device.nic().name(), tried.empty() ? "none" : tried)};
}

// Returns the addresses on which to try to listen. On RoCE these are the GIDs, which are the
// interface's IP addresses, without link-local ones. On InfiniBand they are the addresses of the
// chosen interfaces.
std::vector<std::pair<GidBytes, Address>> Manager::candidates(const Config& config) const {
  std::vector<std::pair<GidBytes, Address>> found;
  const Nic& nic = surroundings_.device.nic();
  if (!nic.ethernet) {
    Result<std::vector<InterfaceAddress>> chosen = choose_interfaces(config);
    if (!chosen.ok()) return found;
    for (const InterfaceAddress& each : *chosen) {
      found.emplace_back(nic.gids.front().bytes, each.address);
    }
    return found;
  }
  for (const Gid& gid : nic.gids) {
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const auto& each) { return each.first == gid.bytes; });
    const std::string text = gid_text(gid.bytes);
    if (known || text.starts_with("fe80:")) continue;
    Result<Address> address = Address::parse_numeric(text, 0);
    if (address.ok()) found.emplace_back(gid.bytes, *address);
  }
  return found;
}

Status Manager::listen(const GidBytes& gid, const Address& address) {
  Result<Id> id = surroundings_.make_id(nullptr);
  if (!id.ok()) return id.status();
  sockaddr_storage copy{};
  const bool bound = surroundings_.cm.bind_addr(id->get(), writable(copy, address)) == 0;
  if (bound) HETCOMM_RETURN_IF_ERROR(surroundings_.check_device(**id, address));
  if (!bound || surroundings_.cm.listen(id->get(), kBacklog) != 0) {
    return status_from_errno(errno, host_of(address));
  }
  const Address listening = Address::from_sockaddr(&(*id)->route.addr.src_addr, address.length());
  listeners_.push_back({gid, listening, std::move(id).value()});
  return {};
}

Result<std::unique_ptr<CmConnection>> Manager::connect(const Gid& gid, const Address& to,
                                                       const CmToken& token, const QueuePair& pair,
                                                       CmHandler& handler) {
  const Listener* mine = find(gid);
  if (mine == nullptr) return Status(Code::kPeerLost, "rdma_cm: the address is gone");
  auto connection = std::make_unique<Connection>(surroundings_, mine->address.with_port(0), to);
  HETCOMM_RETURN_IF_ERROR(connection->ask(token, pair, handler));
  return std::unique_ptr<CmConnection>(std::move(connection));
}

// Handles only one event per call, since handling it may destroy this object. The poller calls
// again while more events are pending.
void Manager::on_events(uint32_t /*events*/) {
  rdma_cm_event* raw = nullptr;
  if (surroundings_.cm.get_cm_event(surroundings_.channel, &raw) != 0) return;
  Event event{.id = raw->id, .type = raw->event, .status = raw->status};
  const auto* data = static_cast<const std::byte*>(raw->param.conn.private_data);
  if (data != nullptr) event.data.assign(data, data + raw->param.conn.private_data_len);
  (void)surroundings_.cm.ack_cm_event(raw);
  log_.debug("rdma: rdma_cm: {} ({})", surroundings_.cm.event_str(event.type), event.status);
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    on_request(event);
  } else if (event.id->context == nullptr) {
    on_listener_event(event);
  } else {
    static_cast<Connection*>(event.id->context)->on_event(event);
  }
}

void Manager::on_request(const Event& event) {
  Id id(event.id, {&surroundings_.cm});
  const rdma_addr& addresses = id->route.addr;
  const socklen_t length =
      addresses.src_addr.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  auto connection = std::make_unique<Connection>(
      surroundings_, Address::from_sockaddr(&addresses.src_addr, length),
      Address::from_sockaddr(&addresses.dst_addr, length));
  connection->adopt(std::move(id));
  CmToken token{};
  if (event.data.size() >= token.size()) {
    std::copy_n(event.data.begin(), token.size(), token.begin());
  }
  listener_.on_request(token, std::move(connection));
}

void Manager::on_listener_event(const Event& event) {
  if (event.type != RDMA_CM_EVENT_DEVICE_REMOVAL) return;
  // The kernel's removal of the device waits until the identifier is destroyed.
  std::erase_if(listeners_, [&](const Listener& each) { return each.id.get() == event.id; });
  listener_.on_listener_lost({Code::kDeviceLost, "rdma_cm: the device was removed"});
}

Status annotated(const Status& status) { return status.annotate("rdma: HETCOMM_RDMA_CONNECT=cm"); }

}  // namespace

Status ConnectionManager::probe() { return annotated(load_cm().status()); }

Result<std::unique_ptr<ConnectionManager>> ConnectionManager::create(const Cm* cm,
                                                                     const Device& device,
                                                                     const Config& config,
                                                                     Poller& poller, Log& log,
                                                                     CmListener& listener) {
  if (cm == nullptr) {
    const Result<const Cm*> loaded = load_cm();
    if (!loaded.ok()) return annotated(loaded.status());
    cm = loaded.value();
  }
  auto manager = std::make_unique<Manager>(*cm, device, poller, log, listener);
  const Status status = manager->set_up(config);
  if (!status.ok()) return annotated(status);
  return std::unique_ptr<ConnectionManager>(std::move(manager));
}

}  // namespace hetcomm::rdma
