#include "transports/shm/endpoint.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "transports/shm/transport.h"
#include "transports/shm/variables.h"

namespace hetcomm::shm {
namespace {

constexpr uint32_t kLatencyNs = 200;
constexpr uint64_t kBandwidth = 20'000'000'000;
constexpr uint64_t kBulkChunk = 4 << 20;

}  // namespace

Capabilities shm_capabilities(const Config& config, const Geometry& geometry) {
  Capabilities can;
  can.put = true;
  can.get = true;
  can.prefers_get = config.text(variable::kShmBulk) == "read";
  can.target_sees_put = true;
  can.lossless = true;
  can.map = config.is_on(variable::kShmMap);
  can.protected_in_transit = true;
  can.max_payload_bytes = geometry.chunk_bytes;
  can.eager_limit_bytes = config.number(variable::kShmEager);
  can.chunk_bytes = kBulkChunk;
  can.within_host = true;
  can.latency_ns = kLatencyNs;
  can.bandwidth_bytes_per_s = kBandwidth;
  return can;
}

ShmEndpoint::ShmEndpoint(ShmTransport& transport, int peer, Connection connection)
    : consumer_(
          connection.memory.side(1 - connection.side), connection.memory.side(connection.side),
          connection.memory.ring(1 - connection.side), connection.memory.geometry().ring_bytes),
      producer_(connection.memory.side(connection.side),
                connection.memory.side(1 - connection.side),
                connection.memory.ring(connection.side), connection.memory.geometry().ring_bytes),
      bell_(connection.memory.side(1 - connection.side), connection.socket.get(), connection.fence),
      sources_(connection.memory.side(connection.side)),
      mine_(connection.memory.side(connection.side)),
      connection_(std::move(connection)),
      reader_(connection_),
      regions_(transport.regions(), connection_, peer, transport.environment().log),
      capabilities_(
          shm_capabilities(transport.environment().config, connection_.memory.geometry())),
      transport_(transport),
      peer_(peer) {
  capabilities_.get = connection_.reading.ok();
  capabilities_.gets_now = capabilities_.get;
}

EndpointAbilities ShmEndpoint::abilities() {
  return {.puts = &bulks_,
          .gets = capabilities_.get ? &bulks_ : nullptr,
          .immediate_gets = capabilities_.gets_now ? &bulks_ : nullptr,
          .exposer = &bulks_,
          .mapper = capabilities_.map ? &bulks_ : nullptr};
}

Result<std::unique_ptr<ShmEndpoint>> ShmEndpoint::create(ShmTransport& transport, int peer,
                                                         Connection connection) {
  std::unique_ptr<ShmEndpoint> endpoint(new ShmEndpoint(transport, peer, std::move(connection)));
  Poller& poller = transport.environment().poller;
  HETCOMM_RETURN_IF_ERROR(
      poller.add(endpoint->connection_.socket.get(), EPOLLIN | EPOLLRDHUP, *endpoint));
  transport.add(*endpoint);
  return endpoint;
}

ShmEndpoint::~ShmEndpoint() {
  transport_.remove(*this);
  sources_.clear();
  regions_.drop_mappings();
  hang_up();
}

std::string ShmEndpoint::describe() const {
  const Geometry& geometry = connection_.memory.geometry();
  return fmt::format(
      "shm to rank {} (process {} of user {}), ring {} KiB, chunk {} KiB, wake by {}, get {}",
      peer_, connection_.pid, connection_.user, geometry.ring_bytes >> 10,
      geometry.chunk_bytes >> 10, bell_.fences() ? "fence" : "membarrier",
      connection_.reading.ok() ? "by process_vm_readv"
                               : "off: " + std::string(connection_.reading.text()));
}

// --- sending ---------------------------------------------------------------------------------

// Extends the used part of the ring to at least |bytes|, which must fit in the ring.
Code ShmEndpoint::grow_ring(uint64_t bytes) {
  const uint64_t used = producer_.used_ring_bytes();
  const uint64_t wanted = std::min(std::max(std::bit_ceil(bytes), kFirstRingBytes),
                                   connection_.memory.geometry().ring_bytes);
  if (wanted <= used) return Code::kOk;
  const Code code = connection_.memory.allocate_ring(connection_.side, used, wanted);
  if (code == Code::kOk) producer_.grow(wanted);
  return code;
}

Code ShmEndpoint::refuse(uint64_t room) {
  wanted_room_ = room;
  want_room_ = true;
  busy_ = true;
  return Code::kWouldBlock;
}

Code ShmEndpoint::send(const MessageHeader& header, const ExtentView& payload) {
  if (failed_) return Code::kPeerLost;
  if (payload.length > kInlineBytes) return send_by_ring(header, payload);
  if (!producer_.has_slot()) return refuse(0);
  FifoSlot& slot = producer_.slot();
  slot.header = header;
  const Extents extents = payload.extents;
  if (extents.size() == 1 && payload.length > 0) {
    copy_bytes(slot.body.data(),
               static_cast<const std::byte*>(extents[0].iov_base) + payload.offset, payload.length);
  } else {
    gather(extents, payload.offset, ByteSpan(slot.body).first(payload.length));
  }
  producer_.publish(slot, SlotKind::kInline, payload.length);
  bell_.ring_if_asleep(kWakeOnSlot);
  return Code::kOk;
}

Code ShmEndpoint::send_by_ring(const MessageHeader& header, const ExtentView& payload) {
  if (payload.length > capabilities_.max_payload_bytes) return Code::kInvalidArgument;
  if (!producer_.has_room(payload.length)) return refuse(payload.length);
  if (ring_messages_ < kFewMessages && ++ring_messages_ == kFewMessages) [[unlikely]] {
    // If memory is short, the ring continues with its current part.
    (void)grow_ring(connection_.memory.geometry().ring_bytes);
  }
  while (!producer_.fits(payload.length)) {
    const bool first = producer_.used_ring_bytes() == 0;
    const Code code = grow_ring(first ? payload.length : connection_.memory.geometry().ring_bytes);
    if (code != Code::kOk) return code;
  }
  const RingPosition position = producer_.position_for(payload.length);
  gather(payload.extents, payload.offset, ByteSpan(producer_.at(position), payload.length));
  FifoSlot& slot = producer_.slot();
  slot.header = header;
  std::memcpy(slot.body.data(), &position, sizeof(position));
  producer_.publish_bytes(SlotKind::kRing, position, payload.length);
  bell_.ring_if_asleep(kWakeOnSlot);
  return Code::kOk;
}

// --- receiving -------------------------------------------------------------------------------

int ShmEndpoint::receive() {
  int64_t budget = kCopyBudget;
  int done = 0;
  while (budget > 0 && consumer_.ready()) {
    const uint32_t kind_and_length = load_once(consumer_.slot().kind_and_length);
    const uint32_t length = kind_and_length & 0xffffff;
    read_now_ = 0;
    const bool valid = deliver(kind_and_length);
    budget -= static_cast<int64_t>(length + read_now_) + kEntryCost;
    if (!valid) {
      violated("the peer wrote an invalid entry to the ring");
      return done;
    }
    consumer_.pop();
    if (consumer_.should_publish()) publish_consumed();
    ++done;
    const bool is_ring = static_cast<SlotKind>(kind_and_length >> 24) == SlotKind::kRing;
    if (read_now_ >= kLongMessage || (length >= kLongMessage && is_ring)) break;
  }
  return done;
}

// Delivers an entry. Returns false if it is invalid.
bool ShmEndpoint::deliver(uint32_t kind_and_length) {
  const FifoSlot& slot = consumer_.slot();
  const uint32_t length = kind_and_length & 0xffffff;
  const auto kind = static_cast<SlotKind>(kind_and_length >> 24);
  switch (kind) {
    case SlotKind::kInline:
    case SlotKind::kRing:
      return deliver_message(slot, kind, length);
    case SlotKind::kPut:
    case SlotKind::kPutLast:
      return deliver_put(slot, kind == SlotKind::kPutLast, length);
  }
  return false;
}

bool ShmEndpoint::deliver_message(const FifoSlot& slot, SlotKind kind, uint32_t length) {
  const std::byte* payload = slot.body.data();
  if (kind == SlotKind::kInline) {
    if (length > kInlineBytes) return false;
  } else {
    RingPosition position = 0;
    copy_once(&position, slot.body.data(), sizeof(position));
    payload = consumer_.take_bytes(position, length);
    if (payload == nullptr || length > capabilities_.max_payload_bytes) return false;
  }
  MessageHeader header;
  copy_once(header.data(), slot.header.data(), header.size());
  handler_->on_message(header, {payload, length});
  return true;
}

void ShmEndpoint::publish_consumed() {
  consumer_.publish();
  bell_.ring_if_asleep(kWakeOnRoom);
}

// --- progress, sleep, end --------------------------------------------------------------------

int ShmEndpoint::progress() {
  if (failed_ || handler_ == nullptr) return 0;
  int done = receive();
  if (failed_ || !busy_) return done;
  if (draining_) {
    if (!consumer_.ready())
      fail(Status(Code::kPeerLost, fmt::format("shm: rank {} has gone", peer_)));
    return done;
  }
  if (want_room_ && producer_.has_room(wanted_room_)) {
    want_room_ = false;
    handler_->on_writable();
    ++done;
  } else {
    // Puts do not directly follow on_writable. Core may retry shortly, and must not find the ring
    // space used up again.
    done += pump_puts();
  }
  done += pump_gets();
  if (producer_.broken()) {
    violated("the peer wrote invalid counts");
    return done;
  }
  if (regions_.waiting()) {
    // A failed socket ends the connection, since the peer can then no longer be asked to unmap
    // memory of this side.
    regions_.flush();
    draining_ = draining_ || regions_.socket_failed();
  }
  busy_ = draining_ || want_room_ || !puts_.empty() || !reader_.empty() || regions_.waiting();
  return done;
}

void ShmEndpoint::announce_sleep() {
  if (failed_) return;
  mine_.asleep.store(waits_for_room() ? kWakeOnSlot | kWakeOnRoom : kWakeOnSlot,
                     std::memory_order_relaxed);
}

bool ShmEndpoint::has_work() {
  if (failed_) return false;
  if (consumer_.ready() || draining_ || !reader_.empty() || regions_.waiting()) return true;
  if (want_room_) return producer_.has_room(wanted_room_) || producer_.broken();
  return !puts_.empty() && (producer_.has_room(next_piece_bytes()) || producer_.broken());
}

// Returns whether the sleep may continue. If the peer has cleared |asleep|, it has rung the bell.
bool ShmEndpoint::may_sleep_on() {
  const uint32_t asleep = mine_.asleep.load(std::memory_order_relaxed);
  const bool room_is_announced = asleep == 0 || (asleep & kWakeOnRoom) != 0;
  return !has_work() && (!waits_for_room() || room_is_announced);
}

void ShmEndpoint::end_sleep() { mine_.asleep.store(0, std::memory_order_relaxed); }

void ShmEndpoint::on_events(uint32_t events) {
  if ((events & ~uint32_t{EPOLLIN}) != 0) {
    peer_went();
  } else if (handler_ != nullptr) {
    receive_parcels();
  }
}

void ShmEndpoint::peer_went() {
  // A peer unmaps all regions before it closes the socket.
  regions_.forget_shared();
  if (handler_ != nullptr) regions_.unmap_all(*handler_);
  stop_watching();
  draining_ = true;
  busy_ = true;
}

void ShmEndpoint::stop_watching() {
  if (connection_.socket.valid())
    transport_.environment().poller.remove(connection_.socket.get(), *this);
}

// Shuts the socket down, so that the peer sees the end even if a forked child of this process also
// holds it. Then closes it, unless the transport has to keep it open.
void ShmEndpoint::hang_up() {
  stop_watching();
  bell_.mute();
  if (connection_.socket.valid() && regions_.shares_any()) {
    // The peer still maps memory of this side, and closes its end of the socket once it has
    // unmapped everything.
    shutdown(connection_.socket.get(), SHUT_WR);
    transport_.add_orphans(std::move(connection_.socket), regions_.take_shared());
  }
  if (connection_.socket.valid()) shutdown(connection_.socket.get(), SHUT_RDWR);
  connection_.socket.reset();
}

// --- regions ---------------------------------------------------------------------------------

void ShmEndpoint::map(const RemoteKey& key, uint64_t length) {
  if (failed_ || draining_) return;
  regions_.map(key, length);
  note_exchange();
}

void ShmEndpoint::receive_parcels() {
  if (failed_ || draining_) return;
  const Status status = regions_.receive(*handler_);
  note_exchange();
  if (status.code() == Code::kPeerLost) {
    peer_went();
  } else if (!status.ok()) {
    violated(status.text());
  }
}

bool ShmEndpoint::ask_to_let_go(uint64_t id) {
  const bool shared = regions_.ask_to_let_go(id);
  note_exchange();
  return shared;
}

void ShmEndpoint::note_exchange() {
  draining_ = draining_ || regions_.socket_failed();
  busy_ = busy_ || draining_ || regions_.waiting();
}

// --- end -------------------------------------------------------------------------------------

// Fails the connection because the peer has violated the protocol.
void ShmEndpoint::violated(std::string_view what) {
  const std::string text =
      fmt::format("shm: connection to rank {} (process {} of user {}) ended: {}", peer_,
                  connection_.pid, connection_.user, what);
  transport_.environment().log.warn("{}", text);
  fail(Status(Code::kPeerLost, text));
}

void ShmEndpoint::fail(const Status& why) {
  failed_ = true;
  busy_ = false;
  sources_.clear();
  targets_.clear();
  puts_.clear();
  reader_.clear();
  // The socket must not be closed while any of the peer's memory is still mapped.
  regions_.unmap_all(*handler_);
  hang_up();
  transport_.environment().log.debug("{}", why.text());
  handler_->on_failed(why);
}

}  // namespace hetcomm::shm
