#include "tests/support/fake_verbs.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::test {
namespace {

struct Device : ibv_device {
  FakeDeviceSpec spec;
  std::string files;
  int open_error = 0;
  int open_failures = 0;
};
struct Context : ibv_context {
  Device* owner = nullptr;
  std::deque<ibv_async_event> events;
};
struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};
struct Entry {
  ibv_wc completion;
  uint64_t sent = 0;  // number of requests on the queue pair up to this one; 0 for a receive
};
struct Queue : ibv_cq {
  std::deque<Entry> entries;
  size_t capacity = 0;
  bool armed = false;
  Channel* owner = nullptr;
};
struct Receive {
  uint64_t id;
  ibv_sge piece;
};
struct Shared : ibv_srq {
  std::deque<Receive> receives;
  size_t capacity = 0;
  uint32_t limit = 0;  // raises an event when fewer receives are left
};
struct Request {
  ibv_send_wr request;
  uint64_t number = 0;  // starts at 1
  std::vector<ibv_sge> pieces;
  std::vector<std::byte> inlined;
};
struct Pair : ibv_qp {
  uint32_t destination = 0;
  Queue* completions = nullptr;
  Shared* receives = nullptr;
  std::deque<Request> waiting;
  uint32_t max_inline = 0;
  int max_pieces = 0;
  uint64_t depth = 0;   // of the send queue
  uint64_t posted = 0;  // number of requests posted
  uint64_t freed = 0;   // requests whose slots have been freed
  FakeFabric::Patience patience{};
  // Fixed when the queue pair becomes ready to receive.
  ibv_ah_attr address{};
  ibv_gid_entry gid{};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  uint32_t receive_sequence = 0;
  uint32_t send_sequence = 0;
  uint8_t reads = 0;         // concurrent reads that it may request
  uint8_t reads_served = 0;  // concurrent reads that it serves
};
struct Region : ibv_mr {
  int access = 0;
  uint64_t begin = 0;          // address used in work requests
  std::byte* read = nullptr;   // address the device reads from
  std::byte* write = nullptr;  // address the device writes to
  void* mapped = nullptr;      // mapping of a dma-buf
  size_t mapped_bytes = 0;
  std::vector<std::byte> nowhere;
};

// A write held in the network after leaving its sender.
struct InFlight {
  uint32_t source;
  uint32_t target;
  uint32_t key;
  uint64_t address;
  std::vector<std::byte> bytes;
};

constexpr uint32_t kFirstPair = 100;

struct Fabric {
  std::mutex mutex;
  uint64_t hold_length = 0;
  std::vector<InFlight> in_flight;
  std::vector<std::unique_ptr<Device>> devices;
  std::list<std::unique_ptr<Context>> contexts;
  std::map<uint32_t, Pair*> pairs;
  std::map<uint32_t, Region*> regions;
  size_t objects = 0;
  size_t opens = 0;
  uint32_t next_pair = kFirstPair;
  bool reuse_numbers = false;
  bool keep_completions = false;
  uint32_t next_key = 1000;
  ibv_wc_status fail_status = IBV_WC_SUCCESS;
  int fail_opcode = -1;
  uint32_t fail_pair = 0;
  int registration_error = 0;
  int registrations_left = 0;
  int registration_failures = 0;
  int deregistration_error = 0;
  int deregistration_failures = 0;
  int dmabuf_error = EOPNOTSUPP;
  FakeFabric::Misplaced misplaced = FakeFabric::Misplaced::kNothing;
  uint64_t misplaced_begin = 0;
  uint64_t misplaced_bytes = 0;
  bool lose_next = false;
  int posts_refused = 0;
  int pair_error = 0;
  uint64_t posts = 0;
  uint64_t requests = 0;
  uint64_t signalled = 0;
  uint64_t not_ready = 0;
};

Fabric& fabric() {
  static auto* const instance = new Fabric();
  return *instance;
}

using Lock = std::lock_guard<std::mutex>;

void ring(int fd) {
  const uint64_t one = 1;
  (void)!write(fd, &one, sizeof(one));
}
bool silence(int fd) {
  uint64_t count = 0;
  return read(fd, &count, sizeof(count)) == sizeof(count);
}

// --- executing work; the lock is held --------------------------------------------------------

void raise_locked(Context& context, const ibv_async_event& event) {
  context.events.push_back(event);
  ring(context.async_fd);
}

void complete(Queue& queue, const ibv_wc& completion, uint64_t sent) {
  if (queue.entries.size() >= queue.capacity) {
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = &queue;
    raise_locked(*static_cast<Context*>(queue.context), event);
    return;
  }
  queue.entries.push_back({completion, sent});
  if (!std::exchange(queue.armed, false) || queue.owner == nullptr) return;
  queue.owner->events.push_back(&queue);
  ring(queue.owner->fd);
}

const Region* find_region(uint32_t key, uint64_t address, uint64_t length, int access) {
  const auto at = fabric().regions.find(key);
  if (at == fabric().regions.end()) return nullptr;
  const Region& region = *at->second;
  const uint64_t begin = region.begin;
  if (address < begin || length > region.length || address - begin > region.length - length) {
    return nullptr;
  }
  return (region.access & access) == access ? &region : nullptr;
}

std::byte* at_address(uint64_t address) { return reinterpret_cast<std::byte*>(address); }
// Returns where the device reads |address|, which must be inside |region|.
std::byte* to_read(const Region& region, uint64_t address) {
  return region.read + (address - region.begin);
}
std::byte* to_write(const Region& region, uint64_t address) {
  return region.write + (address - region.begin);
}

uint64_t length_of(const Request& request) {
  uint64_t sum = 0;
  for (const ibv_sge& piece : request.pieces) sum += piece.length;
  return sum;
}

ibv_wc_status copy_local(const Request& request, std::byte* remote, bool read) {
  const bool inlined = (request.request.send_flags & IBV_SEND_INLINE) != 0;
  if (inlined) {
    if (!request.inlined.empty())
      std::memcpy(remote, request.inlined.data(), request.inlined.size());
    return IBV_WC_SUCCESS;
  }
  for (const ibv_sge& piece : request.pieces) {
    const Region* region =
        find_region(piece.lkey, piece.addr, piece.length, read ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (region == nullptr) return IBV_WC_LOC_PROT_ERR;
    if (read) {
      std::memcpy(to_write(*region, piece.addr), remote, piece.length);
    } else {
      std::memcpy(remote, to_read(*region, piece.addr), piece.length);
    }
    remote += piece.length;
  }
  return IBV_WC_SUCCESS;
}

void to_error(Pair& pair);

void receive_completion(Pair& target, uint64_t id, ibv_wc_status status, ibv_wc_opcode opcode,
                        uint32_t length, uint32_t immediate, bool with_immediate) {
  ibv_wc completion{};
  completion.wr_id = id;
  completion.status = status;
  completion.opcode = opcode;
  completion.byte_len = length;
  completion.qp_num = target.qp_num;
  completion.imm_data = immediate;
  completion.wc_flags = with_immediate ? IBV_WC_WITH_IMM : 0;
  complete(*target.completions, completion, 0);
}

// Returns true if the network holds this request or an earlier one. Later requests cannot proceed.
bool hold(const Pair& pair, const Request& request) {
  Fabric& all = fabric();
  const bool is_held =
      std::any_of(all.in_flight.begin(), all.in_flight.end(),
                  [&](const InFlight& each) { return each.source == pair.qp_num; });
  if (is_held || all.hold_length == 0 || all.hold_length != length_of(request)) return is_held;
  all.hold_length = 0;
  const ibv_send_wr& wr = request.request;
  InFlight write{pair.qp_num, pair.destination, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, {}};
  write.bytes.resize(length_of(request));
  copy_local(request, write.bytes.data(), false);
  all.in_flight.push_back(std::move(write));
  return true;
}

bool same_gid(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

// Returns whether |target| accepts a message from |pair| as its peer.
bool reaches(const Pair& pair, const Pair& target) {
  if (target.destination != pair.qp_num || pair.send_sequence != target.receive_sequence ||
      pair.mtu > target.mtu) {
    return false;
  }
  if (target.state != IBV_QPS_RTR && target.state != IBV_QPS_RTS) return false;
  if (pair.address.is_global == 0) return pair.address.dlid == target.lid;
  return pair.gid.gid_type == target.gid.gid_type && target.address.is_global != 0 &&
         same_gid(pair.address.grh.dgid, target.gid.gid) &&
         same_gid(target.address.grh.dgid, pair.gid.gid);
}

// Executes one work request. Returns false if it has to wait for a receive.
bool execute(Pair& pair, const Request& request, ibv_wc_status& status) {
  Fabric& all = fabric();
  const ibv_send_wr& wr = request.request;
  status = IBV_WC_SUCCESS;
  if (all.fail_status != IBV_WC_SUCCESS &&
      (all.fail_opcode < 0 || all.fail_opcode == static_cast<int>(wr.opcode)) &&
      (all.fail_pair == 0 || all.fail_pair == pair.qp_num)) {
    status = std::exchange(all.fail_status, IBV_WC_SUCCESS);
    return true;
  }
  const auto found = all.pairs.find(pair.destination);
  Pair* target = found == all.pairs.end() ? nullptr : found->second;
  if (target == nullptr || !reaches(pair, *target)) {
    status = IBV_WC_RETRY_EXC_ERR;
    return true;
  }
  const uint64_t length = length_of(request);
  if (wr.opcode == IBV_WR_RDMA_WRITE && hold(pair, request)) return false;
  if (length > static_cast<Context*>(pair.context)->owner->spec.ports[0].max_message_bytes) {
    status = IBV_WC_LOC_LEN_ERR;
    return true;
  }
  const bool write = wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const bool read = wr.opcode == IBV_WR_RDMA_READ;
  if (read && (pair.reads == 0 || pair.reads > target->reads_served)) {
    status = IBV_WC_REM_INV_REQ_ERR;
    to_error(*target);
    return true;
  }
  std::byte* remote = nullptr;
  if ((write || read) && length > 0) {
    const int access = write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
    const Region* region = find_region(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length, access);
    if (region != nullptr) {
      remote = write ? to_write(*region, wr.wr.rdma.remote_addr)
                     : to_read(*region, wr.wr.rdma.remote_addr);
    } else {
      status = IBV_WC_REM_ACCESS_ERR;
      to_error(*target);
      return true;
    }
  }
  if (wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    if (target->receives->receives.empty()) return false;
  }
  if (write || read) {
    if (length > 0) status = copy_local(request, remote, read);
    if (status != IBV_WC_SUCCESS || wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return true;
    const Receive slot = target->receives->receives.front();
    target->receives->receives.pop_front();
    receive_completion(*target, slot.id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM,
                       static_cast<uint32_t>(length), wr.imm_data, true);
    return true;
  }
  const Receive slot = target->receives->receives.front();
  target->receives->receives.pop_front();
  if (length > slot.piece.length) {
    receive_completion(*target, slot.id, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, 0, 0, false);
    status = IBV_WC_REM_INV_REQ_ERR;
    to_error(*target);
    return true;
  }
  status = copy_local(request, at_address(slot.piece.addr), false);
  if (status == IBV_WC_SUCCESS) {
    receive_completion(*target, slot.id, IBV_WC_SUCCESS, IBV_WC_RECV, static_cast<uint32_t>(length),
                       0, false);
  }
  return true;
}

void send_completion(Pair& pair, const Request& request, ibv_wc_status status) {
  const ibv_send_wr& wr = request.request;
  if (std::exchange(fabric().lose_next, false)) return;
  if (status == IBV_WC_SUCCESS && (wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc completion{};
  completion.wr_id = wr.wr_id;
  completion.status = status;
  completion.opcode = wr.opcode == IBV_WR_SEND        ? IBV_WC_SEND
                      : wr.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                                                      : IBV_WC_RDMA_WRITE;
  completion.qp_num = pair.qp_num;
  complete(*pair.completions, completion, request.number);
}

void to_error(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  while (!pair.waiting.empty()) {
    send_completion(pair, pair.waiting.front(), IBV_WC_WR_FLUSH_ERR);
    pair.waiting.pop_front();
  }
}

void run(Pair& pair) {
  while (!pair.waiting.empty() && pair.state == IBV_QPS_RTS) {
    ibv_wc_status status = IBV_WC_SUCCESS;
    if (!execute(pair, pair.waiting.front(), status)) {
      ++fabric().not_ready;
      return;
    }
    send_completion(pair, pair.waiting.front(), status);
    pair.waiting.pop_front();
    if (status != IBV_WC_SUCCESS) to_error(pair);
  }
  if (pair.state == IBV_QPS_ERR) to_error(pair);
}

// --- the table -------------------------------------------------------------------------------

ibv_device** get_device_list(int* count) {
  const Lock lock(fabric().mutex);
  const size_t size = fabric().devices.size();
  auto** list = new ibv_device*[size + 1];
  for (size_t i = 0; i < size; ++i) list[i] = fabric().devices[i].get();
  list[size] = nullptr;
  *count = static_cast<int>(size);
  return list;
}
void free_device_list(ibv_device** list) { delete[] list; }
const char* get_device_name(ibv_device* device) {
  return static_cast<Device*>(device)->spec.name.c_str();
}

bool may_open(ibv_device* device) { return static_cast<Device*>(device)->spec.may_open; }
std::string files_of(ibv_device* device) {
  const Lock lock(fabric().mutex);
  return static_cast<Device*>(device)->files;
}

ibv_context* open_device(ibv_device* device) {
  const Lock lock(fabric().mutex);
  Device& owner = *static_cast<Device*>(device);
  errno = owner.open_failures > 0 ? owner.open_error : EACCES;
  if (!owner.spec.may_open || owner.open_failures-- > 0) return nullptr;
  owner.open_failures = 0;
  ++fabric().opens;
  auto context = std::make_unique<Context>();
  context->device = device;
  context->owner = static_cast<Device*>(device);
  context->async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  ++fabric().objects;
  fabric().contexts.push_back(std::move(context));
  return fabric().contexts.back().get();
}
int close_device(ibv_context* context) {
  const Lock lock(fabric().mutex);
  close(context->async_fd);
  fabric().contexts.remove_if([&](const auto& each) { return each.get() == context; });
  --fabric().objects;
  return 0;
}
int query_device(ibv_context* context, ibv_device_attr* out) {
  std::memset(out, 0, sizeof(*out));
  out->vendor_id = static_cast<Context*>(context)->owner->spec.vendor;
  out->phys_port_cnt =
      static_cast<uint8_t>(static_cast<Context*>(context)->owner->spec.ports.size());
  out->max_qp = 1000;
  out->max_cqe = 32767;
  const FakeDeviceSpec& spec = static_cast<Context*>(context)->owner->spec;
  out->max_srq = spec.max_shared_queues;
  out->max_srq_wr = 16384;
  out->max_sge = spec.max_pieces;
  out->max_qp_rd_atom = spec.max_reads;
  out->max_qp_init_rd_atom = 16;
  return 0;
}
int query_port(ibv_context* context, uint8_t port, ibv_port_attr* out) {
  const Lock lock(fabric().mutex);
  const auto& ports = static_cast<Context*>(context)->owner->spec.ports;
  if (port == 0 || port > ports.size()) return EINVAL;
  const FakePort& spec = ports[port - 1u];
  std::memset(out, 0, sizeof(*out));
  out->state = spec.state;
  out->max_mtu = IBV_MTU_4096;
  out->active_mtu = spec.active_mtu;
  out->gid_tbl_len = static_cast<int>(spec.gids.size());
  out->max_msg_sz = spec.max_message_bytes;
  out->lid = spec.lid;
  out->active_width = 2;
  out->active_speed = spec.active_speed;
  out->link_layer = spec.link_layer;
  return 0;
}
int query_gid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* out) {
  const Lock lock(fabric().mutex);
  const auto& ports = static_cast<Context*>(context)->owner->spec.ports;
  if (port == 0 || port > ports.size() || index >= ports[port - 1].gids.size()) return ENODATA;
  const FakeGid& gid = ports[port - 1].gids[index];
  if (gid.bytes.size() != 16) return ENODATA;
  std::memset(out, 0, sizeof(*out));
  std::memcpy(out->gid.raw, gid.bytes.data(), gid.bytes.size());
  out->gid_index = index;
  out->port_num = port;
  out->gid_type = gid.type;
  return 0;
}

ibv_pd* alloc_pd(ibv_context* context) {
  const Lock lock(fabric().mutex);
  ++fabric().objects;
  return new ibv_pd{context, 0};
}
int dealloc_pd(ibv_pd* pd) {
  const Lock lock(fabric().mutex);
  --fabric().objects;
  delete pd;
  return 0;
}
void place(Region& region, uint64_t begin, std::byte* bytes, bool may_be_misplaced) {
  const FakeFabric::Misplaced misplaced =
      may_be_misplaced ? fabric().misplaced : FakeFabric::Misplaced::kNothing;
  region.begin = begin;
  region.read = region.write = bytes;
  if (misplaced == FakeFabric::Misplaced::kNothing) return;
  region.nowhere.resize(region.length);
  (misplaced == FakeFabric::Misplaced::kReads ? region.read : region.write) = region.nowhere.data();
}
int refused_registration() {
  Fabric& all = fabric();
  if (all.registration_error == 0 || all.registrations_left-- > 0) return 0;
  const int error = all.registration_error;
  if (--all.registration_failures == 0) all.registration_error = 0;
  return error;
}
ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  const Lock lock(fabric().mutex);
  Fabric& all = fabric();
  if (const int error = refused_registration(); error != 0) {
    errno = error;
    return nullptr;
  }
  auto* region = new Region();
  region->context = pd->context;
  region->pd = pd;
  region->addr = address;
  region->length = length;
  region->lkey = region->rkey = all.next_key += 7;
  region->access = access;
  place(*region, reinterpret_cast<uint64_t>(address), static_cast<std::byte*>(address),
        reinterpret_cast<uint64_t>(address) - all.misplaced_begin < all.misplaced_bytes);
  all.regions[region->lkey] = region;
  return region;
}
// Registers any mappable file as a dma-buf.
ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int access) {
  constexpr uint64_t kPage = 4096;
  const Lock lock(fabric().mutex);
  Fabric& all = fabric();
  errno = all.dmabuf_error != 0 ? all.dmabuf_error : EINVAL;
  if (all.dmabuf_error != 0 || offset % kPage != iova % kPage) return nullptr;
  if (const int error = refused_registration(); error != 0) {
    errno = error;
    return nullptr;
  }
  const size_t before = offset % kPage;
  void* mapped = mmap(nullptr, before + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      static_cast<off_t>(offset - before));
  if (mapped == MAP_FAILED) return nullptr;
  auto* region = new Region();
  region->context = pd->context;
  region->pd = pd;
  region->length = length;
  region->lkey = region->rkey = all.next_key += 7;
  region->access = access;
  place(*region, iova, static_cast<std::byte*>(mapped) + before, true);
  region->mapped = mapped;
  region->mapped_bytes = before + length;
  all.regions[region->lkey] = region;
  return region;
}
int dereg_mr(ibv_mr* mr) {
  const Lock lock(fabric().mutex);
  if (fabric().deregistration_failures > 0) {
    --fabric().deregistration_failures;
    return fabric().deregistration_error;
  }
  auto* region = static_cast<Region*>(mr);
  fabric().regions.erase(mr->lkey);
  if (region->mapped != nullptr) munmap(region->mapped, region->mapped_bytes);
  delete region;
  return 0;
}

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  const Lock lock(fabric().mutex);
  ++fabric().objects;
  auto* channel = new Channel();
  channel->context = context;
  channel->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return channel;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  const Lock lock(fabric().mutex);
  --fabric().objects;
  close(channel->fd);
  delete static_cast<Channel*>(channel);
  return 0;
}
ibv_cq* create_cq(ibv_context* context, int entries, void*, ibv_comp_channel* channel, int) {
  const Lock lock(fabric().mutex);
  ++fabric().objects;
  auto* queue = new Queue();
  queue->context = context;
  queue->channel = channel;
  queue->capacity = static_cast<size_t>(entries);
  queue->owner = static_cast<Channel*>(channel);
  return queue;
}
int destroy_cq(ibv_cq* cq) {
  const Lock lock(fabric().mutex);
  --fabric().objects;
  delete static_cast<Queue*>(cq);
  return 0;
}
int moderate_cq(ibv_cq*, uint16_t, uint16_t) { return EOPNOTSUPP; }
int poll_cq(ibv_cq* cq, int count, ibv_wc* out) {
  const Lock lock(fabric().mutex);
  auto& entries = static_cast<Queue*>(cq)->entries;
  int done = 0;
  for (; done < count && !entries.empty(); ++done) {
    const auto& [completion, sent] = entries.front();
    out[done] = completion;
    const auto pair = fabric().pairs.find(completion.qp_num);
    if (sent > 0 && pair != fabric().pairs.end()) pair->second->freed = sent;
    entries.pop_front();
  }
  return done;
}
int req_notify_cq(ibv_cq* cq, int) {
  const Lock lock(fabric().mutex);
  static_cast<Queue*>(cq)->armed = true;
  return 0;
}
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** user) {
  const Lock lock(fabric().mutex);
  auto& events = static_cast<Channel*>(channel)->events;
  if (events.empty() || !silence(channel->fd)) {
    errno = EAGAIN;
    return -1;
  }
  *cq = events.front();
  *user = nullptr;
  events.pop_front();
  return 0;
}
void ack_cq_events(ibv_cq*, unsigned) {}

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  const Lock lock(fabric().mutex);
  ++fabric().objects;
  auto* shared = new Shared();
  shared->context = pd->context;
  shared->capacity = attributes->attr.max_wr;
  return shared;
}
int modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
  const Lock lock(fabric().mutex);
  if ((mask & IBV_SRQ_LIMIT) != 0) static_cast<Shared*>(srq)->limit = attributes->srq_limit;
  return 0;
}
int destroy_srq(ibv_srq* srq) {
  const Lock lock(fabric().mutex);
  --fabric().objects;
  delete static_cast<Shared*>(srq);
  return 0;
}
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
  const Lock lock(fabric().mutex);
  auto* shared = static_cast<Shared*>(srq);
  for (; list != nullptr; list = list->next) {
    if (shared->receives.size() >= shared->capacity) {
      *bad = list;
      return ENOMEM;
    }
    shared->receives.push_back({list->wr_id, list->sg_list[0]});
  }
  for (const auto& [number, pair] : fabric().pairs) run(*pair);
  return 0;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const Lock lock(fabric().mutex);
  Fabric& all = fabric();
  const FakeDeviceSpec& spec = static_cast<Context*>(pd->context)->owner->spec;
  if (all.pair_error != 0 || attributes->cap.max_inline_data > spec.max_inline ||
      attributes->cap.max_send_sge > static_cast<uint32_t>(spec.max_pieces)) {
    errno = all.pair_error != 0 ? all.pair_error : EINVAL;
    return nullptr;
  }
  ++all.objects;
  auto* pair = new Pair();
  pair->context = pd->context;
  pair->pd = pd;
  uint32_t lowest = kFirstPair;
  while (all.reuse_numbers && all.pairs.contains(lowest)) ++lowest;
  pair->qp_num = all.reuse_numbers ? lowest : all.next_pair++;
  all.next_pair = std::max(all.next_pair, pair->qp_num + 1);
  pair->state = IBV_QPS_RESET;
  pair->completions = static_cast<Queue*>(attributes->send_cq);
  pair->receives = static_cast<Shared*>(attributes->srq);
  pair->max_inline = attributes->cap.max_inline_data;
  pair->max_pieces = static_cast<int>(attributes->cap.max_send_sge);
  pair->depth = attributes->cap.max_send_wr;
  all.pairs[pair->qp_num] = pair;
  return pair;
}
// Moves |pair| to the ready-to-receive state. The caller holds the lock.
int ready_to_receive(Pair& pair, const ibv_qp_attr& attributes) {
  const ibv_ah_attr& address = attributes.ah_attr;
  const auto& ports = static_cast<Context*>(pair.context)->owner->spec.ports;
  if (address.port_num == 0 || address.port_num > ports.size()) return EINVAL;
  const FakePort& port = ports[address.port_num - 1u];
  if (attributes.path_mtu > port.active_mtu) return EINVAL;
  if (address.is_global == 0 && port.link_layer == IBV_LINK_LAYER_ETHERNET) return EINVAL;
  ibv_gid_entry gid{};
  if (address.is_global != 0) {
    const uint8_t index = address.grh.sgid_index;
    if (index >= port.gids.size() || port.gids[index].bytes.size() != sizeof(gid.gid.raw)) {
      return EINVAL;
    }
    std::memcpy(gid.gid.raw, port.gids[index].bytes.data(), sizeof(gid.gid.raw));
    gid.gid_type = port.gids[index].type;
  }
  pair.address = address;
  pair.gid = gid;
  pair.lid = port.lid;
  pair.mtu = attributes.path_mtu;
  pair.receive_sequence = attributes.rq_psn;
  pair.reads_served = attributes.max_dest_rd_atomic;
  return 0;
}
int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const Lock lock(fabric().mutex);
  auto* pair = static_cast<Pair*>(qp);
  if ((mask & IBV_QP_AV) != 0) {
    if (const int error = ready_to_receive(*pair, *attributes); error != 0) return error;
  }
  if ((mask & IBV_QP_SQ_PSN) != 0) pair->send_sequence = attributes->sq_psn;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) pair->reads = attributes->max_rd_atomic;
  if ((mask & IBV_QP_DEST_QPN) != 0) pair->destination = attributes->dest_qp_num;
  if ((mask & IBV_QP_RETRY_CNT) != 0) pair->patience.retries = attributes->retry_cnt;
  if ((mask & IBV_QP_TIMEOUT) != 0) pair->patience.timeout = attributes->timeout;
  if ((mask & IBV_QP_STATE) == 0) return 0;
  if (attributes->qp_state == IBV_QPS_ERR) {
    to_error(*pair);
  } else {
    pair->state = attributes->qp_state;
  }
  return 0;
}
int query_qp(ibv_qp* qp, ibv_qp_attr* out, int, ibv_qp_init_attr*) {
  const Lock lock(fabric().mutex);
  std::memset(out, 0, sizeof(*out));
  out->qp_state = qp->state;
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  const Lock lock(fabric().mutex);
  auto* pair = static_cast<Pair*>(qp);
  if (!fabric().keep_completions) {
    std::erase_if(pair->completions->entries,
                  [&](const Entry& each) { return each.completion.qp_num == qp->qp_num; });
  }
  fabric().pairs.erase(qp->qp_num);
  --fabric().objects;
  delete pair;
  return 0;
}
int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  const Lock lock(fabric().mutex);
  Fabric& all = fabric();
  auto* pair = static_cast<Pair*>(qp);
  ++all.posts;
  if (all.posts_refused > 0) {
    --all.posts_refused;
    *bad = list;
    return ENOMEM;
  }
  for (; list != nullptr; list = list->next) {
    ++all.requests;
    if ((list->send_flags & IBV_SEND_SIGNALED) != 0) ++all.signalled;
    if (pair->posted - pair->freed >= pair->depth || list->num_sge > pair->max_pieces) {
      *bad = list;
      run(*pair);
      return list->num_sge > pair->max_pieces ? EINVAL : ENOMEM;
    }
    Request request{.request = *list, .number = ++pair->posted};
    for (int i = 0; i < list->num_sge; ++i) {
      const ibv_sge& piece = list->sg_list[i];
      request.pieces.push_back(piece);
      if ((list->send_flags & IBV_SEND_INLINE) == 0) continue;
      const auto* data = at_address(piece.addr);
      request.inlined.insert(request.inlined.end(), data, data + piece.length);
    }
    if (request.inlined.size() > pair->max_inline ||
        (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR)) {
      *bad = list;
      return EINVAL;
    }
    pair->waiting.push_back(std::move(request));
  }
  run(*pair);
  return 0;
}

int get_async_event(ibv_context* context, ibv_async_event* out) {
  const Lock lock(fabric().mutex);
  auto& events = static_cast<Context*>(context)->events;
  if (events.empty() || !silence(context->async_fd)) {
    errno = EAGAIN;
    return -1;
  }
  *out = events.front();
  events.pop_front();
  return 0;
}
void ack_async_event(ibv_async_event*) {}

const char* wc_status_str(ibv_wc_status status) {
  static thread_local std::string text;
  text = "status " + std::to_string(static_cast<int>(status));
  return text.c_str();
}
const char* event_type_str(ibv_event_type event) {
  static thread_local std::string text;
  text = "event " + std::to_string(static_cast<int>(event));
  return text.c_str();
}
int fork_init() { return 0; }

// --- files, as Linux 6.1 writes them ----------------------------------------------------------

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text << '\n';
}
const char* state_text(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "1: DOWN";
    case IBV_PORT_INIT:
      return "2: INIT";
    case IBV_PORT_ARMED:
      return "3: ARMED";
    case IBV_PORT_ACTIVE:
      return "4: ACTIVE";
    default:
      return "5: ACTIVE_DEFER";
  }
}
// Returns the rate text for a port with four lanes.
const char* rate_text(uint8_t speed) {
  switch (speed) {
    case 1:
      return "10 Gb/sec (4X SDR)";
    case 2:
      return "20 Gb/sec (4X DDR)";
    case 4:
      return "40 Gb/sec (4X QDR)";
    case 32:
      return "100 Gb/sec (4X EDR)";
    case 64:
      return "200 Gb/sec (4X HDR)";
    default:
      return "400 Gb/sec (4X NDR)";
  }
}
void write_files(const std::string& folder, const FakePort& port) {
  const bool is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  std::filesystem::create_directories(folder + "/gids");
  std::filesystem::create_directories(folder + "/gid_attrs/types");
  write_file(folder + "/state", state_text(port.state));
  write_file(folder + "/link_layer", is_ethernet ? "Ethernet" : "InfiniBand");
  write_file(folder + "/lid", fmt::format("{:#x}", port.lid));
  write_file(folder + "/rate", port.rate.empty() ? rate_text(port.active_speed) : port.rate);
  for (size_t i = 0; i < port.gids.size(); ++i) {
    const FakeGid& gid = port.gids[i];
    const bool is_there = gid.bytes.size() == 16;
    std::string text;
    for (size_t at = 0; at < 16; ++at) {
      text +=
          fmt::format("{}{:02x}", at > 0 && at % 2 == 0 ? ":" : "", is_there ? gid.bytes[at] : 0);
    }
    write_file(fmt::format("{}/gids/{}", folder, i), text);
    // The kernel returns an error for an empty entry.
    if (!is_there) continue;
    write_file(fmt::format("{}/gid_attrs/types/{}", folder, i),
               gid.type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
  }
}

}  // namespace

FakeGid ipv4_gid(uint8_t last) {
  return {.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last}};
}

const rdma::Verbs& FakeFabric::verbs() {
  static const rdma::Verbs table = {
      .get_device_list = get_device_list,
      .free_device_list = free_device_list,
      .get_device_name = get_device_name,
      .may_open = may_open,
      .files_of = files_of,
      .open_device = open_device,
      .close_device = close_device,
      .query_device = query_device,
      .query_port = query_port,
      .query_gid = query_gid,
      .alloc_pd = alloc_pd,
      .dealloc_pd = dealloc_pd,
      .reg_mr = reg_mr,
      .reg_dmabuf_mr = reg_dmabuf_mr,
      .dereg_mr = dereg_mr,
      .create_comp_channel = create_comp_channel,
      .destroy_comp_channel = destroy_comp_channel,
      .create_cq = create_cq,
      .destroy_cq = destroy_cq,
      .moderate_cq = moderate_cq,
      .poll_cq = poll_cq,
      .req_notify_cq = req_notify_cq,
      .get_cq_event = get_cq_event,
      .ack_cq_events = ack_cq_events,
      .create_srq = create_srq,
      .modify_srq = modify_srq,
      .destroy_srq = destroy_srq,
      .post_srq_recv = post_srq_recv,
      .create_qp = create_qp,
      .modify_qp = modify_qp,
      .query_qp = query_qp,
      .destroy_qp = destroy_qp,
      .post_send = post_send,
      .get_async_event = get_async_event,
      .ack_async_event = ack_async_event,
      .wc_status_str = wc_status_str,
      .event_type_str = event_type_str,
      .fork_init = fork_init,
  };
  return table;
}

void FakeFabric::reset() {
  FakeDeviceSpec device;
  device.ports.push_back({.gids = {ipv4_gid(1)}});
  reset({device});
}

void FakeFabric::reset(std::vector<FakeDeviceSpec> devices) {
  const Lock lock(fabric().mutex);
  Fabric& all = fabric();
  all.devices.clear();
  for (FakeDeviceSpec& spec : devices) {
    all.devices.push_back(std::make_unique<Device>());
    all.devices.back()->transport_type = spec.transport;
    all.devices.back()->spec = std::move(spec);
  }
  all.fail_status = IBV_WC_SUCCESS;
  all.registration_error = all.pair_error = 0;
  all.dmabuf_error = EOPNOTSUPP;
  all.misplaced = Misplaced::kNothing;
  all.lose_next = false;
  all.reuse_numbers = all.keep_completions = false;
  all.hold_length = 0;
  all.in_flight.clear();
  all.posts_refused = 0;
  all.opens = 0;
  all.posts = all.requests = all.signalled = all.not_ready = 0;
}

void FakeFabric::show_files(const std::string& folder) {
  const Lock lock(fabric().mutex);
  for (const auto& device : fabric().devices) {
    device->files = folder + "/" + device->spec.name;
    for (size_t i = 0; i < device->spec.ports.size(); ++i) {
      write_files(device->files + "/ports/" + std::to_string(i + 1), device->spec.ports[i]);
    }
  }
}
void FakeFabric::fail_opens(size_t device, int error, int times) {
  const Lock lock(fabric().mutex);
  fabric().devices[device]->open_error = error;
  fabric().devices[device]->open_failures = times;
}

void FakeFabric::fail_next(ibv_wc_status status, int opcode, uint32_t queue_pair) {
  const Lock lock(fabric().mutex);
  fabric().fail_status = status;
  fabric().fail_opcode = opcode;
  fabric().fail_pair = queue_pair;
}
void FakeFabric::fail_registrations(int error, int count, int failures) {
  const Lock lock(fabric().mutex);
  fabric().registration_error = error;
  fabric().registrations_left = count;
  fabric().registration_failures = failures;
}
void FakeFabric::fail_deregistrations(int error, int failures) {
  const Lock lock(fabric().mutex);
  fabric().deregistration_error = error;
  fabric().deregistration_failures = failures;
}
void FakeFabric::accept_dmabufs(int error) {
  const Lock lock(fabric().mutex);
  fabric().dmabuf_error = error;
}
void FakeFabric::misplace(Misplaced what, const void* begin, size_t bytes) {
  const Lock lock(fabric().mutex);
  fabric().misplaced = what;
  fabric().misplaced_begin = reinterpret_cast<uint64_t>(begin);
  fabric().misplaced_bytes = bytes;
}
void FakeFabric::refuse_posts(int times) {
  const Lock lock(fabric().mutex);
  fabric().posts_refused = times;
}
void FakeFabric::hold_write(uint64_t length) {
  const Lock lock(fabric().mutex);
  fabric().hold_length = length;
}

size_t FakeFabric::held_writes() {
  const Lock lock(fabric().mutex);
  return fabric().in_flight.size();
}

uint32_t FakeFabric::held_sender() {
  const Lock lock(fabric().mutex);
  return fabric().in_flight.empty() ? 0 : fabric().in_flight.front().source;
}

size_t FakeFabric::release_writes() {
  const Lock lock(fabric().mutex);
  size_t arrived = 0;
  for (const InFlight& write : fabric().in_flight) {
    const auto found = fabric().pairs.find(write.target);
    if (found == fabric().pairs.end()) continue;
    const Pair& target = *found->second;
    const bool receives = target.state == IBV_QPS_RTR || target.state == IBV_QPS_RTS;
    if (!receives || target.destination != write.source) continue;
    const Region* region =
        find_region(write.key, write.address, write.bytes.size(), IBV_ACCESS_REMOTE_WRITE);
    if (region == nullptr) continue;
    std::memcpy(to_write(*region, write.address), write.bytes.data(), write.bytes.size());
    ++arrived;
  }
  fabric().in_flight.clear();
  return arrived;
}

void FakeFabric::lose_next() {
  const Lock lock(fabric().mutex);
  fabric().lose_next = true;
}
void FakeFabric::fail_queue_pairs(int error) {
  const Lock lock(fabric().mutex);
  fabric().pair_error = error;
}
void FakeFabric::reuse_numbers() {
  const Lock lock(fabric().mutex);
  fabric().reuse_numbers = true;
}
void FakeFabric::keep_completions() {
  const Lock lock(fabric().mutex);
  fabric().keep_completions = true;
}
void FakeFabric::silence(uint32_t queue_pair) {
  const Lock lock(fabric().mutex);
  fabric().pairs.at(queue_pair)->state = IBV_QPS_ERR;
}
void FakeFabric::raise(ibv_event_type type, int port) {
  const Lock lock(fabric().mutex);
  for (const auto& context : fabric().contexts) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = port;
    raise_locked(*context, event);
  }
}
void FakeFabric::raise_queue_pair(ibv_event_type type, uint32_t number) {
  const Lock lock(fabric().mutex);
  Pair* pair = fabric().pairs.at(number);
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = pair;
  raise_locked(*static_cast<Context*>(pair->context), event);
}
void FakeFabric::lose_receives(uint32_t queue_pair) {
  const Lock lock(fabric().mutex);
  Pair* pair = fabric().pairs.at(queue_pair);
  Shared& shared = *pair->receives;
  const bool tell = shared.receives.size() >= shared.limit && shared.limit > 0;
  shared.receives.clear();
  if (!tell) return;
  shared.limit = 0;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  raise_locked(*static_cast<Context*>(pair->context), event);
}
void FakeFabric::set_gid(size_t device, size_t port, size_t index, const FakeGid& gid) {
  const Lock lock(fabric().mutex);
  fabric().devices[device]->spec.ports[port].gids[index] = gid;
}
void FakeFabric::set_state(size_t device, size_t port, ibv_port_state state) {
  const Lock lock(fabric().mutex);
  fabric().devices[device]->spec.ports[port].state = state;
}
void FakeFabric::set_lid(size_t device, size_t port, uint16_t lid) {
  const Lock lock(fabric().mutex);
  fabric().devices[device]->spec.ports[port].lid = lid;
}
void FakeFabric::inject_message(uint32_t queue_pair, ConstByteSpan bytes) {
  const Lock lock(fabric().mutex);
  Pair& pair = *fabric().pairs.at(queue_pair);
  const Receive slot = pair.receives->receives.front();
  pair.receives->receives.pop_front();
  if (!bytes.empty()) std::memcpy(at_address(slot.piece.addr), bytes.data(), bytes.size());
  receive_completion(pair, slot.id, IBV_WC_SUCCESS, IBV_WC_RECV,
                     static_cast<uint32_t>(bytes.size()), 0, false);
}
void FakeFabric::inject_immediate(uint32_t queue_pair, uint32_t immediate, uint32_t length,
                                  bool with_flag) {
  const Lock lock(fabric().mutex);
  Pair& pair = *fabric().pairs.at(queue_pair);
  const Receive slot = pair.receives->receives.front();
  pair.receives->receives.pop_front();
  receive_completion(pair, slot.id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, length, immediate,
                     with_flag);
}
void FakeFabric::inject_receive_error(uint32_t queue_pair, ibv_wc_status status) {
  const Lock lock(fabric().mutex);
  Pair& pair = *fabric().pairs.at(queue_pair);
  const Receive slot = pair.receives->receives.front();
  pair.receives->receives.pop_front();
  receive_completion(pair, slot.id, status, IBV_WC_RECV, 0, 0, false);
}

FakeFabric::Patience FakeFabric::patience_of(uint32_t number) {
  const Lock lock(fabric().mutex);
  return fabric().pairs.at(number)->patience;
}

std::vector<uint32_t> FakeFabric::queue_pairs() {
  const Lock lock(fabric().mutex);
  std::vector<uint32_t> numbers;
  for (const auto& [number, pair] : fabric().pairs) numbers.push_back(number);
  return numbers;
}
size_t FakeFabric::registrations() {
  const Lock lock(fabric().mutex);
  return fabric().regions.size();
}
uint64_t FakeFabric::registered_bytes() {
  const Lock lock(fabric().mutex);
  uint64_t sum = 0;
  for (const auto& [key, region] : fabric().regions) sum += region->length;
  return sum;
}
size_t FakeFabric::open_objects() {
  const Lock lock(fabric().mutex);
  return fabric().objects;
}
std::vector<std::string> FakeFabric::open_devices() {
  const Lock lock(fabric().mutex);
  std::vector<std::string> names;
  for (const auto& context : fabric().contexts) names.push_back(context->owner->spec.name);
  return names;
}
size_t FakeFabric::opens() {
  const Lock lock(fabric().mutex);
  return fabric().opens;
}
size_t FakeFabric::posted_receives(uint32_t queue_pair) {
  const Lock lock(fabric().mutex);
  return fabric().pairs.at(queue_pair)->receives->receives.size();
}
uint64_t FakeFabric::posts() { return fabric().posts; }
uint64_t FakeFabric::requests() { return fabric().requests; }
uint64_t FakeFabric::signalled() { return fabric().signalled; }
uint64_t FakeFabric::not_ready() { return fabric().not_ready; }

}  // namespace hetcomm::test
