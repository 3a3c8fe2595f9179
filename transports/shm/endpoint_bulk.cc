// The bulk half of ShmEndpoint: puts, gets, and the memory that they name.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "src/base/copy.h"
#include "transports/shm/cma.h"
#include "transports/shm/endpoint.h"

namespace hetcomm::shm {
namespace {

// Bytes that the gets of one progress() of one endpoint read at most.
constexpr uint64_t kReadBudget = 1 << 20;
// From this size of the exposed memory on, a transfer will not stay in the caches, and fetching
// its target only to overwrite it would cost a third of the memory's bandwidth: copy_streaming()
// then. A small put into large memory may well be read soon.
constexpr uint64_t kStreamingTarget = 8 << 20;
constexpr uint64_t kStreamingPut = 1 << 20;

// The key of a bulk that begin_get() has checked.
SourceKey source_of(const Bulk& bulk) {
  SourceKey source{};
  [[maybe_unused]] const bool valid = SourceKey::decode(bulk.key, source);
  return source;
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

// --- puts ------------------------------------------------------------------------------------

Code ShmEndpoint::put(Bulk& bulk) {
  if (failed_) return Code::kPeerLost;
  const uint64_t total = bulk.key.words[1];
  if (bulk.key.words[2] != kPutKey || bulk.remote_offset > total ||
      bulk.local.length > total - bulk.remote_offset) {
    return Code::kInvalidArgument;
  }
  // Its pieces never wait for memory.
  if (const Code code = grow_ring(connection_.memory.geometry().ring_bytes); code != Code::kOk) {
    return code;
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
  const uint64_t left = bulk.local.offset + bulk.local.length - load_cursor(bulk).position;
  return std::min<uint64_t>(left, connection_.memory.geometry().chunk_bytes);
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
    budget -= static_cast<int64_t>(length) + kEntryCost;
    ++done;
    if (last) {
      puts_.remove(bulk);
      handler_->on_bulk_complete(bulk, Code::kOk);
    }
  }
  // Once for all pieces: a peer that wakes on this processor would take over after each of them.
  if (done > 0) bell_.ring_if_asleep(kWakeOnSlot);
  return done;
}

// True when it was the last.
bool ShmEndpoint::publish_piece(Bulk& bulk, uint64_t length) {
  SegmentCursor cursor = load_cursor(bulk);
  const uint64_t at = cursor.position - bulk.local.offset;
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
  return last;
}

bool ShmEndpoint::deliver_put(const FifoSlot& slot, bool last, uint32_t length) {
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

// --- gets ------------------------------------------------------------------------------------

Code ShmEndpoint::begin_get(Bulk& bulk) {
  if (failed_) return Code::kPeerLost;
  SourceKey source{};
  if (!SourceKey::decode(bulk.key, source) || bulk.remote_offset > source.length ||
      bulk.local.length > source.length - bulk.remote_offset) {
    return Code::kInvalidArgument;
  }
  begin_read(bulk);
  return Code::kOk;
}

Code ShmEndpoint::get(Bulk& bulk) {
  if (const Code code = begin_get(bulk); code != Code::kOk) return code;
  gets_.push(bulk);
  busy_ = true;
  return Code::kOk;
}

Code ShmEndpoint::get_now(Bulk& bulk) {
  if (draining_) return Code::kPeerLost;  // another process may have its number
  if (const Code code = begin_get(bulk); code != Code::kOk) return code;
  int64_t outcome = 0;
  while (outcome >= 0 && left_to_read(bulk) > 0) {
    outcome = read_fragment(connection_.pid, source_of(bulk), bulk, left_to_read(bulk));
  }
  read_now_ += bulk.local.length;
  return outcome_of_get(bulk, outcome);
}

int ShmEndpoint::pump_gets() {
  uint64_t budget = kReadBudget;
  int done = 0;
  while (budget > 0 && !gets_.empty() && !draining_) {
    Bulk& bulk = gets_.front();
    int64_t outcome = 0;
    if (left_to_read(bulk) > 0)
      outcome = read_fragment(connection_.pid, source_of(bulk), bulk, budget);
    ++done;
    if (outcome > 0) budget -= std::min<uint64_t>(budget, static_cast<uint64_t>(outcome));
    if (outcome >= 0 && left_to_read(bulk) > 0) continue;
    const Code code = outcome_of_get(bulk, outcome);
    if (draining_) break;
    gets_.remove(bulk);
    handler_->on_bulk_complete(bulk, code);
  }
  return done;
}

// The last byte was read, or reading failed with the negative errno |outcome|. The connection
// drains where the peer is gone.
Code ShmEndpoint::outcome_of_get(const Bulk& bulk, int64_t outcome) {
  const SourceKey source = source_of(bulk);
  // The word is read after the data: see SourceTable::remove.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Side& peer = connection_.memory.side(1 - connection_.side);
  const bool exposed =
      peer.sources[source.index].load(std::memory_order_acquire) == source.generation;
  // The process that was read must still be the peer: its number may have been given to another.
  if (peer_is_gone()) {
    draining_ = true;
    busy_ = true;
    return Code::kPeerLost;
  }
  if (!exposed) return Code::kCancelled;
  return outcome < 0 ? code_of_read_error(static_cast<int>(-outcome)) : Code::kOk;
}

bool ShmEndpoint::peer_is_gone() const {
  pollfd watched{connection_.socket.get(), POLLRDHUP, 0};
  return poll(&watched, 1, 0) > 0;
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

bool ShmEndpoint::cancel(Bulk& bulk) {
  if (!puts_.remove(bulk)) gets_.remove(bulk);
  return false;
}

}  // namespace hetcomm::shm
