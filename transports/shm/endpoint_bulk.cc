// Implements the part of ShmEndpoint for bulk data: puts, gets, and the memory that they access.
#include <algorithm>
#include <cstring>

#include "src/base/copy.h"
#include "transports/shm/endpoint.h"

namespace hetcomm::shm {
namespace {

// copy_streaming() is used for a put of at least kStreamingPut into exposed memory of at least
// kStreamingTarget. The data would not stay in the caches, and fetching the target only to
// overwrite it would cost a third of the memory bandwidth. For smaller puts the caches are useful,
// since the data may be read soon.
constexpr uint64_t kStreamingTarget = 8 << 20;
constexpr uint64_t kStreamingPut = 1 << 20;

}  // namespace

// --- puts ------------------------------------------------------------------------------------

Code ShmEndpoint::put(Bulk& bulk) {
  if (failed_) return Code::kPeerLost;
  const uint64_t total = bulk.key.words[1];
  if (bulk.key.words[2] != kPutKey || bulk.remote_offset > total ||
      bulk.local.length > total - bulk.remote_offset) {
    return Code::kInvalidArgument;
  }
  // Allocates the whole ring now, so that no piece of a put has to wait for memory.
  if (const Code code = grow_ring(connection_.memory.geometry().ring_bytes); code != Code::kOk) {
    return code;
  }
  ExtentCursor cursor;
  cursor.seek(bulk.local.extents, bulk.local.offset);
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
  // Puts wait while a refused message waits for ring space.
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
  // Rings once for all pieces. A peer that wakes on this processor would otherwise preempt this
  // process after each piece.
  if (done > 0) bell_.ring_if_asleep(kWakeOnSlot);
  return done;
}

// Publishes a piece. Returns true if it was the last piece of |bulk|.
bool ShmEndpoint::publish_piece(Bulk& bulk, uint64_t length) {
  ExtentCursor cursor = load_cursor(bulk);
  const uint64_t at = cursor.position - bulk.local.offset;
  const bool last = at + length == bulk.local.length;
  const RingPosition position = producer_.position_for(length);
  std::byte* to = producer_.at(position);
  cursor.take(bulk.local.extents, length, [&](const std::byte* piece, size_t size) {
    copy_long(to, piece, size);
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
  if (target == nullptr) return true;  // already revoked
  consumer_.prefetch_following();
  if (piece.offset > target->total || length > target->total - piece.offset) return false;
  const bool streaming = target->total >= kStreamingTarget && piece.total >= kStreamingPut;
  target->cursor.seek(target->extents, piece.offset);
  target->cursor.take(target->extents, length, [&](std::byte* to, size_t size) {
    if (streaming) {
      copy_streaming(to, from, size);
    } else {
      copy_long(to, from, size);
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

Code ShmEndpoint::get(Bulk& bulk) {
  if (failed_) return Code::kPeerLost;
  const Code code = reader_.push(bulk);
  if (code == Code::kOk) busy_ = true;
  return code;
}

Code ShmEndpoint::get_now(Bulk& bulk) {
  if (failed_ || draining_) return Code::kPeerLost;  // the peer's process id may be reused
  const Code code = reader_.read_now(bulk);
  if (code != Code::kInvalidArgument) read_now_ += bulk.local.length;
  if (reader_.peer_is_gone()) {
    draining_ = true;
    busy_ = true;
  }
  return code;
}

int ShmEndpoint::pump_gets() {
  if (draining_ || reader_.empty()) return 0;
  const int done = reader_.pump(*handler_);
  draining_ = draining_ || reader_.peer_is_gone();
  return done;
}

// --- exposure --------------------------------------------------------------------------------

Result<RemoteKey> ShmEndpoint::expose(Extents extents, Access access, uint64_t cookie) {
  if (failed_) return Code::kPeerLost;
  if (access == Access::kGetSource) return sources_.add(extents);
  return targets_.add(extents, cookie);
}

void ShmEndpoint::revoke(const RemoteKey& key) {
  if (key.words[2] == kPutKey) {
    targets_.remove(key);
  } else {
    sources_.remove(key);
  }
}

bool ShmEndpoint::cancel(Bulk& bulk) {
  if (!puts_.remove(bulk)) reader_.remove(bulk);
  return false;
}

}  // namespace hetcomm::shm
