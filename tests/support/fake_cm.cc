#include "tests/support/fake_cm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "src/net/address.h"
#include "tests/support/fake_verbs.h"
#include "transports/rdma/nic.h"

namespace hetcomm::test {
namespace {

constexpr size_t kRequestBytes = 56;
constexpr size_t kRefusalBytes = 148;
constexpr int kNobodyListens = 8;
constexpr int kRefused = 28;

struct Identifier;
struct Happening : rdma_cm_event {
  std::vector<std::byte> data;
  Identifier* owner = nullptr;  // the identifier waits for its acknowledgement
};
struct Channel : rdma_event_channel {
  std::deque<std::unique_ptr<Happening>> events;
};
struct Identifier : rdma_cm_id {
  bool listening = false;
  bool asked = false;  // connection requested by a peer, not answered yet
  bool connected = false;
  Identifier* other = nullptr;
  uint32_t sequence = 0;
  uint32_t far_queue_pair = 0;
  uint32_t gid_index = 0;
  size_t in_use = 0;  // events returned but not acknowledged
};

struct State {
  std::mutex mutex;
  std::vector<Identifier*> identifiers;
  size_t channels = 0;
  size_t would_hang = 0;
  uint16_t next_port = 4001;
  uint32_t next_sequence = 0x1000;
  std::map<rdma_cm_event_type, std::optional<std::pair<rdma_cm_event_type, int>>> planned;
  std::map<std::string, int> failing;
  bool misdirect_request = false;
  bool misdirect_answer = false;
  std::string other_device;
  std::vector<std::byte> token;
};
State& state() {
  static auto* const instance = new State();
  return *instance;
}
using Lock = std::lock_guard<std::mutex>;

// Returns true once if |call| was set to fail.
bool fails(const char* call) {
  const auto at = state().failing.find(call);
  if (at == state().failing.end()) return false;
  errno = at->second;
  state().failing.erase(at);
  return true;
}

Identifier* of(rdma_cm_id* id) { return static_cast<Identifier*>(id); }

socklen_t length_of(const sockaddr& address) {
  return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}
Address address_of(const sockaddr& address) {
  return Address::from_sockaddr(&address, length_of(address));
}
void keep(sockaddr_storage& out, const Address& address) {
  std::memcpy(&out, address.get(), address.length());
}

// Queues an event. Returns false if it is to be swallowed.
bool push(Identifier& id, rdma_cm_event_type type, int status = 0, std::vector<std::byte> data = {},
          Identifier* listener = nullptr, uint32_t queue_pair = 0) {
  const auto planned = state().planned.find(type);
  if (planned != state().planned.end()) {
    const auto other = planned->second;
    state().planned.erase(planned);
    if (!other) return false;
    std::tie(type, status) = *other;
  }
  auto event = std::make_unique<Happening>();
  event->id = &id;
  event->listen_id = listener;
  event->event = type;
  event->status = status;
  event->data = std::move(data);
  event->owner = listener != nullptr ? listener : &id;
  if (!event->data.empty()) {
    event->param.conn.private_data = event->data.data();
    event->param.conn.private_data_len = static_cast<uint8_t>(event->data.size());
  }
  event->param.conn.qp_num = queue_pair;
  auto* channel = static_cast<Channel*>(event->owner->channel);
  channel->events.push_back(std::move(event));
  const uint64_t one = 1;
  (void)!write(channel->fd, &one, sizeof(one));
  return true;
}

// --- channels --------------------------------------------------------------------------------

rdma_event_channel* create_event_channel() {
  const Lock lock(state().mutex);
  if (fails("create_event_channel")) return nullptr;
  ++state().channels;
  auto* channel = new Channel();
  channel->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return channel;
}
void destroy_event_channel(rdma_event_channel* channel) {
  const Lock lock(state().mutex);
  --state().channels;
  close(channel->fd);
  delete static_cast<Channel*>(channel);
}
int get_cm_event(rdma_event_channel* channel, rdma_cm_event** out) {
  const Lock lock(state().mutex);
  auto& events = static_cast<Channel*>(channel)->events;
  uint64_t count = 0;
  if (events.empty() || read(channel->fd, &count, sizeof(count)) != sizeof(count)) {
    errno = EAGAIN;
    return -1;
  }
  Happening* event = events.front().release();
  events.pop_front();
  ++event->owner->in_use;
  *out = event;
  return 0;
}
int ack_cm_event(rdma_cm_event* event) {
  const Lock lock(state().mutex);
  auto* happening = static_cast<Happening*>(event);
  --happening->owner->in_use;
  // An event's data is freed with the event, as in the real library.
  std::fill(happening->data.begin(), happening->data.end(), std::byte{0xdd});
  delete happening;
  return 0;
}
const char* event_str(rdma_cm_event_type) { return "event"; }

// --- identifiers -----------------------------------------------------------------------------

Identifier* make(rdma_event_channel* channel, void* context) {
  auto* id = new Identifier();
  id->channel = channel;
  id->context = context;
  id->ps = RDMA_PS_TCP;
  id->sequence = state().next_sequence++;
  state().identifiers.push_back(id);
  return id;
}
int create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context, rdma_port_space) {
  const Lock lock(state().mutex);
  if (fails("create_id")) return -1;
  *out = make(channel, context);
  return 0;
}

void forget_events(Identifier& id);
void destroy(Identifier* id) {
  State& all = state();
  if (id->in_use > 0) ++all.would_hang;
  forget_events(*id);
  if (id->other != nullptr) {
    id->other->other = nullptr;
    if (id->connected) {
      push(*id->other, RDMA_CM_EVENT_DISCONNECTED);
    } else if (id->asked) {
      push(*id->other, RDMA_CM_EVENT_REJECTED, kRefused);
    }
  }
  if (id->verbs != nullptr) (void)FakeFabric::verbs().close_device(id->verbs);
  std::erase(all.identifiers, id);
  delete id;
}
// Discards an identifier's pending events, and a listener's requests.
void forget_events(Identifier& id) {
  auto& events = static_cast<Channel*>(id.channel)->events;
  std::vector<Identifier*> requests;
  for (auto at = events.begin(); at != events.end();) {
    if ((*at)->owner != &id && (*at)->id != &id) {
      ++at;
      continue;
    }
    if ((*at)->listen_id == &id) requests.push_back(of((*at)->id));
    at = events.erase(at);
    uint64_t count = 0;
    (void)!read(id.channel->fd, &count, sizeof(count));
  }
  for (Identifier* request : requests) destroy(request);
}
int destroy_id(rdma_cm_id* id) {
  const Lock lock(state().mutex);
  destroy(of(id));
  return 0;
}

// Assigns the device and port that have |address| to |id|.
bool attach(Identifier& id, const Address& address) {
  const rdma::Verbs& verbs = FakeFabric::verbs();
  const std::string full = address.with_port(0).to_string();
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  for (int i = 0; i < count && id.verbs == nullptr; ++i) {
    ibv_context* context = verbs.open_device(list[i]);
    ibv_device_attr limits{};
    (void)verbs.query_device(context, &limits);
    for (uint8_t port = 1; port <= limits.phys_port_cnt && id.verbs == nullptr; ++port) {
      ibv_gid_entry entry{};
      for (uint32_t index = 0; verbs.query_gid(context, port, index, &entry) == 0; ++index) {
        rdma::GidBytes bytes;
        std::memcpy(bytes.data(), entry.gid.raw, bytes.size());
        Result<Address> own = Address::parse_numeric(rdma::gid_text(bytes), 0);
        const bool match = own.ok() && own->to_string() == full;
        if (!match && state().other_device != verbs.get_device_name(list[i])) continue;
        id.verbs = context;
        id.port_num = port;
        id.gid_index = index;
        break;
      }
    }
    if (id.verbs == nullptr) (void)verbs.close_device(context);
  }
  verbs.free_device_list(list);
  if (id.verbs == nullptr) {
    errno = ENODEV;
    return false;
  }
  return true;
}
bool bind(Identifier& id, const sockaddr& address) {
  const Address wanted = address_of(address);
  if (!attach(id, wanted)) return false;
  const uint16_t port = wanted.port() != 0 ? wanted.port() : state().next_port++;
  keep(id.route.addr.src_storage, wanted.with_port(port));
  return true;
}
int bind_addr(rdma_cm_id* id, sockaddr* address) {
  const Lock lock(state().mutex);
  return !fails("bind_addr") && bind(*of(id), *address) ? 0 : -1;
}
int listen(rdma_cm_id* id, int) {
  const Lock lock(state().mutex);
  if (fails("listen")) return -1;
  of(id)->listening = true;
  return 0;
}
int resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int) {
  const Lock lock(state().mutex);
  if (fails("resolve_addr") || !bind(*of(id), *from)) return -1;
  keep(id->route.addr.dst_storage, address_of(*to));
  push(*of(id), RDMA_CM_EVENT_ADDR_RESOLVED);
  return 0;
}
int resolve_route(rdma_cm_id* id, int) {
  const Lock lock(state().mutex);
  if (fails("resolve_route")) return -1;
  push(*of(id), RDMA_CM_EVENT_ROUTE_RESOLVED);
  return 0;
}

// --- connecting ------------------------------------------------------------------------------

std::vector<std::byte> padded(const void* data, size_t bytes, size_t size) {
  std::vector<std::byte> result(size);
  if (bytes > 0) std::memcpy(result.data(), data, std::min(bytes, size));
  return result;
}
// Returns the queue pair number that a side is told for |queue_pair|.
uint32_t told(uint32_t queue_pair, bool& misdirect) {
  return std::exchange(misdirect, false) ? queue_pair + 1 : queue_pair;
}

int connect(rdma_cm_id* raw, rdma_conn_param* parameters) {
  const Lock lock(state().mutex);
  if (fails("connect")) return -1;
  Identifier& id = *of(raw);
  if (parameters->private_data_len > kRequestBytes || parameters->srq == 0) {
    errno = EINVAL;
    return -1;
  }
  const std::string wanted = address_of(id.route.addr.dst_addr).to_string();
  auto& all = state().identifiers;
  const auto at = std::find_if(all.begin(), all.end(), [&](Identifier* each) {
    return each->listening && address_of(each->route.addr.src_addr).to_string() == wanted;
  });
  if (at == all.end()) {
    push(id, RDMA_CM_EVENT_REJECTED, kNobodyListens);
    return 0;
  }
  Identifier& listener = **at;
  state().token = padded(parameters->private_data, parameters->private_data_len, kRequestBytes);
  Identifier* request = make(listener.channel, listener.context);
  (void)attach(*request, address_of(listener.route.addr.src_addr));
  request->route.addr.src_storage = listener.route.addr.src_storage;
  request->route.addr.dst_storage = id.route.addr.src_storage;
  request->asked = true;
  request->far_queue_pair = told(parameters->qp_num, state().misdirect_request);
  request->other = &id;
  id.other = request;
  if (!push(*request, RDMA_CM_EVENT_CONNECT_REQUEST, 0, state().token, &listener,
            parameters->qp_num)) {
    id.other = request->other = nullptr;
    destroy(request);
  }
  return 0;
}
int accept(rdma_cm_id* raw, rdma_conn_param* parameters) {
  const Lock lock(state().mutex);
  if (fails("accept")) return -1;
  Identifier& id = *of(raw);
  id.asked = false;
  if (id.other == nullptr) return 0;
  id.connected = id.other->connected = true;
  id.other->far_queue_pair = told(parameters->qp_num, state().misdirect_answer);
  push(*id.other, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, {}, nullptr, parameters->qp_num);
  return 0;
}
int reject(rdma_cm_id* raw, const void* data, uint8_t bytes) {
  const Lock lock(state().mutex);
  Identifier& id = *of(raw);
  id.asked = false;
  if (id.other == nullptr) return 0;
  push(*id.other, RDMA_CM_EVENT_REJECTED, kRefused, padded(data, bytes, kRefusalBytes));
  id.other->other = nullptr;
  id.other = nullptr;
  return 0;
}

int init_qp_attr(rdma_cm_id* raw, ibv_qp_attr* out, int* mask) {
  const Lock lock(state().mutex);
  if (fails("init_qp_attr")) return -1;
  Identifier& id = *of(raw);
  const ibv_qp_state wanted = out->qp_state;
  *mask = IBV_QP_STATE;
  std::memset(out, 0, sizeof(*out));
  out->qp_state = wanted;
  if (wanted == IBV_QPS_RTR) {
    ibv_gid_entry entry{};
    Identifier there{};
    const bool known = attach(there, address_of(id.route.addr.dst_addr));
    if (known) {
      (void)FakeFabric::verbs().query_gid(there.verbs, there.port_num, there.gid_index, &entry);
      (void)FakeFabric::verbs().close_device(there.verbs);
    }
    ibv_port_attr port{};
    (void)FakeFabric::verbs().query_port(id.verbs, id.port_num, &port);
    out->ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
    out->ah_attr.dlid = port.lid;  // here all are on one device
    out->ah_attr.port_num = id.port_num;
    out->ah_attr.grh.dgid = entry.gid;
    out->ah_attr.grh.sgid_index = static_cast<uint8_t>(id.gid_index);
    out->path_mtu = IBV_MTU_1024;
    out->dest_qp_num = id.far_queue_pair;
    out->rq_psn = id.sequence;
  }
  if (wanted == IBV_QPS_RTS) out->sq_psn = id.other != nullptr ? id.other->sequence : 0;
  return 0;
}
int establish(rdma_cm_id* raw) {
  const Lock lock(state().mutex);
  if (fails("establish")) return -1;
  if (Identifier* other = of(raw)->other) push(*other, RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}

}  // namespace

const rdma::Cm& FakeCm::cm() {
  static const rdma::Cm table = {
      .create_event_channel = create_event_channel,
      .destroy_event_channel = destroy_event_channel,
      .get_cm_event = get_cm_event,
      .ack_cm_event = ack_cm_event,
      .event_str = event_str,
      .create_id = create_id,
      .destroy_id = destroy_id,
      .bind_addr = bind_addr,
      .listen = listen,
      .resolve_addr = resolve_addr,
      .resolve_route = resolve_route,
      .connect = connect,
      .accept = accept,
      .reject = reject,
      .init_qp_attr = init_qp_attr,
      .establish = establish,
  };
  return table;
}

void FakeCm::reset() {
  const Lock lock(state().mutex);
  state().planned.clear();
  state().failing.clear();
  state().misdirect_request = state().misdirect_answer = false;
  state().other_device.clear();
  state().token.clear();
  state().would_hang = 0;
}
void FakeCm::replace_next(rdma_cm_event_type usual, rdma_cm_event_type type, int status) {
  const Lock lock(state().mutex);
  state().planned[usual] = {type, status};
}
void FakeCm::swallow_next(rdma_cm_event_type usual) {
  const Lock lock(state().mutex);
  state().planned[usual] = std::nullopt;
}
void FakeCm::fail_next(const std::string& call, int error) {
  const Lock lock(state().mutex);
  state().failing[call] = error;
}
void FakeCm::misdirect_next(bool in_answer) {
  const Lock lock(state().mutex);
  (in_answer ? state().misdirect_answer : state().misdirect_request) = true;
}
void FakeCm::raise(rdma_cm_event_type type, int status) {
  const Lock lock(state().mutex);
  for (Identifier* id : state().identifiers) {
    if (!id->listening) push(*id, type, status);
  }
}
void FakeCm::raise_at_listeners(rdma_cm_event_type type, int status) {
  const Lock lock(state().mutex);
  for (Identifier* id : state().identifiers) {
    if (id->listening) push(*id, type, status);
  }
}
void FakeCm::give_other_addresses(const std::string& device) {
  const Lock lock(state().mutex);
  state().other_device = device;
}

size_t FakeCm::identifiers() {
  const Lock lock(state().mutex);
  return state().identifiers.size();
}
size_t FakeCm::channels() {
  const Lock lock(state().mutex);
  return state().channels;
}
size_t FakeCm::would_hang() {
  const Lock lock(state().mutex);
  return state().would_hang;
}
std::vector<std::byte> FakeCm::last_token() {
  const Lock lock(state().mutex);
  return state().token;
}
std::vector<std::string> FakeCm::listeners() {
  const Lock lock(state().mutex);
  std::vector<std::string> found;
  for (Identifier* id : state().identifiers) {
    if (id->listening) found.push_back(address_of(id->route.addr.src_addr).to_string());
  }
  return found;
}

}  // namespace hetcomm::test
