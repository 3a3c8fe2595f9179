#include "transports/shm/endpoint.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "transports/shm/cma.h"
#include "transports/shm/copy.h"
#include "transports/shm/transport.h"

namespace hetcomm::shm {
namespace {

// What one progress() of one endpoint does at most, so that others get their turn.
constexpr int64_t kCopyBudget = 256 << 10;
constexpr int64_t kMessageCost = 4 << 10;  // a message counts as this many bytes at least
constexpr uint64_t kReadBudget = 1 << 20;

constexpr uint32_t kLatencyNs = 200;
constexpr uint64_t kBandwidth = 20'000'000'000;
constexpr uint64_t kBulkChunk = 4 << 20;

// What lies in shared memory may change at any time: the copy is what counts from here on.
void copy_once(void* target, const void* shared, size_t length) {
  std::memcpy(target, shared, length);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

Code code_of_read_error(int error) {
  switch (error) {
    case EPERM:
      return Code::kPermissionDenied;
    case ENOMEM:
      return Code::kOutOfMemory;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Capabilities shm_capabilities(const Config& config, const Geometry& geometry) {
  Capabilities can;
  can.put = true;
  can.get = true;
  can.target_sees_put = true;
  can.lossless = true;
  can.max_payload_bytes = geometry.chunk_bytes;
  can.eager_limit_bytes = config.number(Variable::kShmEager);
  can.chunk_bytes = kBulkChunk;
  can.latency_ns = kLatencyNs;
  can.bandwidth_Bps = kBandwidth;
  return can;
}

ShmEndpoint::ShmEndpoint(ShmTransport& transport, int peer, Link link)
    : consumer_(link.segment.side(1 - link.side), link.segment.side(link.side),
                link.segment.ring(1 - link.side), link.segment.geometry().ring_bytes),
      producer_(link.segment.side(link.side), link.segment.side(1 - link.side),
                link.segment.ring(link.side), link.segment.geometry().ring_bytes),
      bell_(link.segment.side(1 - link.side), std::move(link.doorbell), link.fence),
      sources_(link.segment.side(link.side)),
      mine_(link.segment.side(link.side)),
      link_(std::move(link)),
      capabilities_(shm_capabilities(transport.environment().config, link_.segment.geometry())),
      transport_(transport),
      peer_(peer) {
  capabilities_.get = link_.reading.ok();
}

Result<std::unique_ptr<ShmEndpoint>> ShmEndpoint::create(ShmTransport& transport, int peer,
                                                         Link link) {
  std::unique_ptr<ShmEndpoint> endpoint(new ShmEndpoint(transport, peer, std::move(link)));
  Poller& poller = transport.environment().poller;
  HETCOMM_RETURN_IF_ERROR(poller.add(endpoint->link_.socket.get(), EPOLLRDHUP, *endpoint));
  if (endpoint->link_.process.valid()) {
    HETCOMM_RETURN_IF_ERROR(poller.add(endpoint->link_.process.get(), EPOLLIN, *endpoint));
  }
  transport.add(*endpoint);
  return endpoint;
}

ShmEndpoint::~ShmEndpoint() {
  transport_.remove(*this);
  stop_watching();
  sources_.clear();
}

std::string ShmEndpoint::describe() const {
  const Geometry& geometry = link_.segment.geometry();
  return fmt::format("shm to rank {} (pid {}), ring {} KiB, chunk {} KiB, wake by {}, get {}", peer_,
                     link_.pid, geometry.ring_bytes >> 10, geometry.chunk_bytes >> 10,
                     bell_.fences() ? "fence" : "membarrier",
                     link_.reading.ok() ? "by process_vm_readv" : "off: " + std::string(link_.reading.text()));
}

// --- sending ---------------------------------------------------------------------------------

Code ShmEndpoint::allocate_ring() {
  const Code code = link_.segment.allocate_ring(link_.side);
  ring_allocated_ = code == Code::kOk;
  return code;
}

Code ShmEndpoint::refuse(uint64_t room) {
  wanted_room_ = room;
  want_room_ = true;
  busy_ = true;
  return Code::kWouldBlock;
}

Code ShmEndpoint::send(const MessageHeader& header, const SegmentView& payload) {
  if (failed_) return Code::kPeerLost;
  if (payload.length > kInlineBytes) return send_by_ring(header, payload);
  if (!producer_.has_slot()) return refuse(0);
  Slot& slot = producer_.slot();
  slot.header = header;
  const Segments segments = payload.segments;
  if (segments.size() == 1) {
    std::memcpy(slot.body.data(), static_cast<const std::byte*>(segments[0].iov_base) + payload.offset,
                payload.length);
  } else {
    gather(segments, payload.offset, ByteSpan(slot.body).first(payload.length));
  }
  producer_.publish(SlotKind::kInline, payload.length);
  bell_.ring_if_asleep(kWakeOnSlot);
  return Code::kOk;
}

Code ShmEndpoint::send_by_ring(const MessageHeader& header, const SegmentView& payload) {
  if (payload.length > capabilities_.max_payload_bytes) return Code::kInvalidArgument;
  if (!ring_allocated_) {
    if (const Code code = allocate_ring(); code != Code::kOk) return code;
  }
  if (!producer_.has_room(payload.length)) return refuse(payload.length);
  const RingPosition position = producer_.position_for(payload.length);
  gather(payload.segments, payload.offset, ByteSpan(producer_.at(position), payload.length));
  Slot& slot = producer_.slot();
  slot.header = header;
  std::memcpy(slot.body.data(), &position, sizeof(position));
  producer_.publish_bytes(SlotKind::kRing, position, payload.length);
  bell_.ring_if_asleep(kWakeOnSlot);
  return Code::kOk;
}

Code ShmEndpoint::put(Bulk& bulk) {
  if (failed_) return Code::kPeerLost;
  const uint64_t total = bulk.key.words[1];
  if (bulk.key.words[2] != kPutKey || bulk.remote_offset > total ||
      bulk.local.length > total - bulk.remote_offset) {
    return Code::kInvalidArgument;
  }
  if (!ring_allocated_) {
    if (const Code code = allocate_ring(); code != Code::kOk) return code;
  }
  SegmentCursor cursor;
  cursor.seek(bulk.local.segments, bulk.local.offset);
  store_cursor(bulk, cursor);
  puts_.push(bulk);
  busy_ = true;
  return Code::kOk;
}

uint64_t ShmEndpoint::next_piece_bytes() const {
  const Bulk& bulk = puts_.front();
  const uint64_t left = bulk.local.offset + bulk.local.length - load_cursor(bulk).position();
  return std::min<uint64_t>(left, link_.segment.geometry().chunk_bytes);
}

int ShmEndpoint::pump_puts() {
  int64_t budget = kCopyBudget;
  int done = 0;
  // A message that was refused goes first.
  while (budget > 0 && !puts_.empty() && !want_room_) {
    const uint64_t length = next_piece_bytes();
    if (!producer_.has_room(length)) break;
    Bulk& bulk = puts_.front();
    const bool last = publish_piece(bulk, length);
    budget -= static_cast<int64_t>(length) + kMessageCost;
    ++done;
    if (last) {
      puts_.remove(bulk);
      handler_->on_bulk_complete(bulk, Code::kOk);
    }
  }
  return done;
}

// True when it was the last.
bool ShmEndpoint::publish_piece(Bulk& bulk, uint64_t length) {
  SegmentCursor cursor = load_cursor(bulk);
  const uint64_t at = cursor.position() - bulk.local.offset;
  const bool last = at + length == bulk.local.length;
  const RingPosition position = producer_.position_for(length);
  std::byte* to = producer_.at(position);
  cursor.take(bulk.local.segments, length, [&](const std::byte* piece, size_t size) {
    std::memcpy(to, piece, size);
    to += size;
  });
  store_cursor(bulk, cursor);
  const PutPiece header{bulk.key.words[0], bulk.remote_offset + at, bulk.local.length, position};
  std::memcpy(producer_.slot().header.data(), &header, sizeof(header));
  producer_.publish_bytes(last ? SlotKind::kPutLast : SlotKind::kPut, position, length);
  bell_.ring_if_asleep(kWakeOnSlot);
  return last;
}

// --- receiving -------------------------------------------------------------------------------

int ShmEndpoint::receive() {
  int64_t budget = kCopyBudget;
  int done = 0;
  while (budget > 0 && consumer_.ready()) {
    const uint32_t length = load_once(consumer_.slot().kind_and_length) & 0xffffff;
    budget -= static_cast<int64_t>(length) + kMessageCost;
    if (!deliver()) {
      fail(Status(Code::kPeerLost,
                  fmt::format("shm: rank {} wrote an invalid entry to the ring", peer_)));
      return done;
    }
    consumer_.pop();
    if (consumer_.should_publish()) publish_consumed();
    ++done;
  }
  return done;
}

// False when the entry cannot be true.
bool ShmEndpoint::deliver() {
  const Slot& slot = consumer_.slot();
  const uint32_t kind_and_length = load_once(slot.kind_and_length);
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

bool ShmEndpoint::deliver_message(const Slot& slot, SlotKind kind, uint32_t length) {
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

bool ShmEndpoint::deliver_put(const Slot& slot, bool last, uint32_t length) {
  PutPiece piece{};
  copy_once(&piece, slot.header.data(), sizeof(piece));
  const std::byte* from = consumer_.take_bytes(piece.position, length);
  if (from == nullptr) return false;
  Target* const target = targets_.find(piece.token);
  if (target == nullptr) return true;  // revoked meanwhile
  consumer_.prefetch_following();
  if (piece.offset > target->total || length > target->total - piece.offset) return false;
  const bool streaming = target->total >= kStreamingTarget && piece.total >= kStreamingPut;
  target->cursor.seek(target->segments, piece.offset);
  target->cursor.take(target->segments, length, [&](std::byte* to, size_t size) {
    if (streaming) {
      copy_streaming(to, from, size);
    } else {
      std::memcpy(to, from, size);
    }
    from += size;
  });
  target->received += length;
  if (!last) return true;
  if (piece.total > target->received) return false;
  target->received -= piece.total;
  handler_->on_put(target->cookie, piece.total);
  return true;
}

void ShmEndpoint::publish_consumed() {
  consumer_.publish();
  bell_.ring_if_asleep(kWakeOnRoom);
}

// --- gets ------------------------------------------------------------------------------------

Code ShmEndpoint::get(Bulk& bulk) {
  if (failed_) return Code::kPeerLost;
  SourceKey source{};
  if (!capabilities_.get) return Code::kUnsupported;
  if (!SourceKey::decode(bulk.key, source) || bulk.remote_offset > source.length ||
      bulk.local.length > source.length - bulk.remote_offset) {
    return Code::kInvalidArgument;
  }
  begin_read(bulk);
  gets_.push(bulk);
  busy_ = true;
  return Code::kOk;
}

int ShmEndpoint::pump_gets() {
  uint64_t budget = kReadBudget;
  int done = 0;
  while (budget > 0 && !gets_.empty() && !draining_) {
    Bulk& bulk = gets_.front();
    SourceKey source{};
    // Checked by get().
    [[maybe_unused]] const bool valid = SourceKey::decode(bulk.key, source);
    int64_t outcome = 0;
    if (left_to_read(bulk) > 0) outcome = read_slice(link_.pid, source, bulk, budget);
    ++done;
    if (outcome > 0) budget -= std::min<uint64_t>(budget, static_cast<uint64_t>(outcome));
    if (outcome >= 0 && left_to_read(bulk) > 0) continue;
    finish_get(bulk, outcome);
  }
  return done;
}

// The last byte was read, or reading failed.
void ShmEndpoint::finish_get(Bulk& bulk, int64_t outcome) {
  SourceKey source{};
  [[maybe_unused]] const bool valid = SourceKey::decode(bulk.key, source);
  // The word is read after the data: see SourceTable::remove.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Side& peer = link_.segment.side(1 - link_.side);
  const bool exposed =
      peer.sources[source.index].load(std::memory_order_acquire) == source.generation;
  // The process that was read must still be the peer: its number may have been given to another.
  if (peer_is_gone()) {
    draining_ = true;
    return;
  }
  gets_.remove(bulk);
  const Code code = !exposed      ? Code::kCancelled
                    : outcome < 0 ? code_of_read_error(static_cast<int>(-outcome))
                                  : Code::kOk;
  handler_->on_bulk_complete(bulk, code);
}

bool ShmEndpoint::peer_is_gone() const {
  std::array<pollfd, 2> watched{{{link_.socket.get(), POLLRDHUP, 0}, {link_.process.get(), POLLIN, 0}}};
  return poll(watched.data(), watched.size(), 0) > 0;
}

// --- exposure --------------------------------------------------------------------------------

Result<RemoteKey> ShmEndpoint::expose(Segments segments, Access access, uint64_t cookie) {
  if (failed_) return Code::kPeerLost;
  if (access == Access::kGetSource) return sources_.add(segments);
  return targets_.add(segments, cookie);
}

void ShmEndpoint::revoke(const RemoteKey& key) {
  if (key.words[2] == kPutKey) {
    targets_.remove(key);
  } else {
    sources_.remove(key);
  }
}

void ShmEndpoint::cancel(Bulk& bulk) {
  if (!puts_.remove(bulk)) gets_.remove(bulk);
}

// --- progress, sleep, end --------------------------------------------------------------------

int ShmEndpoint::progress() {
  if (failed_ || handler_ == nullptr) return 0;
  int done = receive();
  if (failed_ || !busy_) return done;
  if (draining_) {
    if (!consumer_.ready()) fail(Status(Code::kPeerLost, fmt::format("shm: rank {} has gone", peer_)));
    return done;
  }
  if (want_room_ && producer_.has_room(wanted_room_)) {
    want_room_ = false;
    handler_->on_writable();
    ++done;
  } else {
    // Not after on_writable: whoever tries again a little later must not find the room taken.
    done += pump_puts();
  }
  done += pump_gets();
  if (producer_.broken()) {
    fail(Status(Code::kPeerLost, fmt::format("shm: rank {} wrote invalid counts", peer_)));
    return done;
  }
  busy_ = draining_ || want_room_ || !puts_.empty() || !gets_.empty();
  return done;
}

void ShmEndpoint::announce_sleep() {
  if (failed_) return;
  const bool waits_for_room = want_room_ || !puts_.empty();
  mine_.asleep.store(waits_for_room ? kWakeOnSlot | kWakeOnRoom : kWakeOnSlot,
                     std::memory_order_relaxed);
}

bool ShmEndpoint::has_work() {
  if (failed_) return false;
  if (consumer_.ready() || draining_ || !gets_.empty()) return true;
  if (want_room_) return producer_.has_room(wanted_room_) || producer_.broken();
  return !puts_.empty() && (producer_.has_room(next_piece_bytes()) || producer_.broken());
}

void ShmEndpoint::end_sleep() { mine_.asleep.store(0, std::memory_order_relaxed); }

void ShmEndpoint::on_events(uint32_t) {
  stop_watching();
  draining_ = true;
  busy_ = true;
}

void ShmEndpoint::stop_watching() {
  Poller& poller = transport_.environment().poller;
  if (link_.socket.valid()) poller.remove(link_.socket.get(), *this);
  if (link_.process.valid()) poller.remove(link_.process.get(), *this);
}

void ShmEndpoint::fail(const Status& why) {
  failed_ = true;
  busy_ = false;
  sources_.clear();
  targets_.clear();
  puts_.clear();
  gets_.clear();
  stop_watching();
  link_.socket.reset();
  link_.process.reset();
  transport_.environment().log.debug("{}", why.text());
  handler_->on_failed(why);
}

}  // namespace hetcomm::shm
