#include "transports/rdma/bulk_sender.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <optional>

namespace hetcomm::rdma {
namespace {

// Work requests and send slots that bulks leave free for messages.
constexpr uint32_t kReservedRequests = QueuePair::kSendSlots + 4;
constexpr uint32_t kReservedSlots = 8;
// A put or get of host memory is copied through send slots if it has at most kCopiedBytes, or if
// its extents are smaller than kSmallPiece on average. Copying is then cheaper than registering.
constexpr uint64_t kCopiedBytes = 4096;
constexpr uint64_t kSmallPiece = 512;
constexpr unsigned kInline = IBV_SEND_INLINE;

}  // namespace

BulkSender::BulkSender(Port& port, QueuePair& pair, Credits& credits, uint32_t peer_slot_bytes)
    : port_(port),
      settings_(port.settings()),
      pair_(pair),
      credits_(credits),
      peer_slot_bytes_(peer_slot_bytes),
      queue_(port.memory_regions()) {}

bool BulkSender::can_post(KeyKind kind, bool copied) const {
  if (pair_.room() <= kReservedRequests || in_flight_bytes_ >= settings_.max_in_flight_bytes) {
    return false;
  }
  const bool in_message = kind == KeyKind::kCopiedTarget;
  const bool takes_credit = in_message || kind == KeyKind::kWriteTarget;
  if (takes_credit && !credits_.allow_put()) return false;
  return !(copied || in_message) || pair_.free_slots() > kReservedSlots;
}

// Forced inline, since the overhead of a call is noticeable in small puts.
[[gnu::always_inline]] inline void BulkSender::post(Transfer& transfer, uint64_t length,
                                                    unsigned flags, std::span<const ibv_sge> pieces,
                                                    bool slot) {
  const Key& key = transfer.key;
  WorkRequest work{.opcode = transfer.get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                   .flags = flags,
                   .rkey = key.rkey,
                   .address = key.address + transfer.bulk->remote_offset + transfer.begun};
  if (key.kind == KeyKind::kWriteTarget) {
    work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    work.immediate = htonl(key.immediate);
    credits_.spend();
  } else if (key.kind == KeyKind::kCopiedTarget) {
    work.opcode = IBV_WR_SEND;
    credits_.spend();
  }
  const SendRecord record{.transfer = &transfer,
                          .offset = transfer.begun,
                          .length = static_cast<uint32_t>(length),
                          .slot = slot};
  transfer.begun += length;
  ++transfer.under_way;
  in_flight_bytes_ += length;
  const bool last = transfer.begun == transfer.bulk->local.length || transfer.code != Code::kOk;
  // Only completions reduce the bytes in flight, so one must be requested before they reach their
  // limit.
  const bool fills = length * QueuePair::kSignalEvery > settings_.max_in_flight_bytes;
  pair_.add(work, pieces, record, last || fills);
  if (last && transfer.state == BulkState::kQueued) queue_.all_posted(transfer);
}

// Posts a put that fits in one fragment, unless other transfers are queued before it. Returns false
// if it was not posted. Inline data in a single extent is read directly from user memory.
bool BulkSender::put_at_once(Bulk& bulk, const Key& key) {
  const ExtentView& local = bulk.local;
  const bool is_inline = local.length <= pair_.max_inline();
  if (queue_.front() != nullptr || local.length == 0 || local.length > settings_.slot_bytes ||
      !can_post(key.kind, !is_inline)) {
    return false;
  }
  const std::byte* bytes =
      is_inline ? single_piece(local.extents, local.offset, local.length) : nullptr;
  const bool slot = bytes == nullptr;
  if (slot && is_inline && pair_.free_slots() <= kReservedSlots) return false;
  if (slot) {
    gather(local.extents, local.offset, {pair_.slot(), local.length});
    bytes = pair_.slot();
  }
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(bytes),
                      .length = static_cast<uint32_t>(local.length),
                      .lkey = pair_.slot_key()};
  post(queue_.push_posted(bulk, key), local.length, is_inline ? kInline : 0, {&piece, 1}, slot);
  return true;
}

Code BulkSender::start(Bulk& bulk, bool get) {
  const std::optional<Key> key = decode_key(bulk.key);
  if (!key) return Code::kInvalidArgument;
  const uint64_t length = bulk.local.length;
  if (bulk.remote_offset > key->length || length > key->length - bulk.remote_offset) {
    return Code::kOutOfRange;
  }
  const bool allowed = key->kind == KeyKind::kRegion
                           ? (key->immediate & (get ? kRegionReadable : kRegionWritable)) != 0
                           : (key->kind == KeyKind::kGetSource) == get;
  if (!allowed) return Code::kPermissionDenied;
  const bool small = length <= kCopiedBytes ||
                     length / std::max<size_t>(bulk.local.extents.size(), 1) < kSmallPiece;
  // The head of a message needs its own scatter/gather entry. If the device allows only one entry
  // per request, the data must be copied behind the head.
  const bool one_piece = key->kind == KeyKind::kCopiedTarget && pair_.max_pieces() == 1;
  const bool copied =
      (small || one_piece) && !port_.memory_regions().has_device(bulk.local.extents);
  if (!copied || get || key->kind == KeyKind::kCopiedTarget || !put_at_once(bulk, *key)) {
    queue_.push(bulk, *key, get, copied);
    pump();
  }
  return Code::kOk;
}

void BulkSender::post_queued() {
  while (Transfer* transfer = queue_.front()) {
    if (!can_post(transfer->key.kind, transfer->copied)) break;
    post_fragment(*transfer);
  }
}

void BulkSender::post_fragment(Transfer& transfer) {
  const uint64_t left = transfer.bulk->local.length - transfer.begun;
  uint64_t most = transfer.copied ? settings_.slot_bytes : settings_.fragment_bytes;
  if (transfer.key.kind == KeyKind::kCopiedTarget) {
    most = std::min(settings_.slot_bytes, peer_slot_bytes_) - kFragmentHeadBytes;
  }
  const uint64_t length = std::min(left, most);
  if (transfer.copied) {
    post_copied(transfer, length);
  } else {
    post_direct(transfer, length);
  }
}

// Writes the head into the next send slot if the target requires messages. Returns the size of the
// head; 0 if there is none.
size_t BulkSender::add_fragment_head(const Transfer& transfer) {
  if (transfer.key.kind != KeyKind::kCopiedTarget) return 0;
  encode_fragment_head(pair_.slot(), credits_.take_owed(),
                       {.immediate = transfer.key.immediate,
                        .offset = transfer.bulk->remote_offset + transfer.begun});
  return kFragmentHeadBytes;
}

void BulkSender::post_copied(Transfer& transfer, uint64_t length) {
  std::byte* const bytes = pair_.slot();
  const ExtentView& local = transfer.bulk->local;
  const size_t head = add_fragment_head(transfer);
  unsigned flags = 0;
  if (!transfer.get) {
    gather(local.extents, local.offset + transfer.begun, {bytes + head, length});
    if (head + length <= pair_.max_inline()) flags = kInline;
  }
  transfer.cursor.advance(local.extents, length);
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(bytes),
                      .length = static_cast<uint32_t>(head + length),
                      .lkey = pair_.slot_key()};
  post(transfer, length, flags, {&piece, 1}, true);
}

void BulkSender::post_direct(Transfer& transfer, uint64_t length) {
  std::array<ibv_sge, QueuePair::kMaxPieces> pieces;
  const bool in_message = transfer.key.kind == KeyKind::kCopiedTarget;
  size_t count = in_message ? 1 : 0;
  if (count == pair_.max_pieces()) transfer.code = Code::kUnsupported;
  uint64_t taken = 0;
  const Extents extents = transfer.bulk->local.extents;
  while (taken < length && count < pair_.max_pieces()) {
    transfer.cursor.advance(extents, 0);  // skips empty extents
    Result<MemoryRegion*> region = queue_.memory_region(transfer, transfer.cursor.index);
    if (!region.ok()) {
      if (port_.memory_regions().may_copy(region.status(), extents)) {
        transfer.copied = true;
        break;
      }
      port_.log().warn("{}", region.status().text());
      transfer.code = region.status().code();
      break;
    }
    const iovec piece = transfer.cursor.next(extents, length - taken);
    pieces[count++] = {.addr = region.value()->address_of(piece.iov_base),
                       .length = static_cast<uint32_t>(piece.iov_len),
                       .lkey = region.value()->lkey()};
    taken += piece.iov_len;
  }
  if (taken == 0) {
    // The transfer fails once its fragments in flight have completed. The rest is not sent.
    if (transfer.code != Code::kOk) queue_.all_posted(transfer);
    return;
  }
  if (in_message) {
    pieces[0] = {.addr = reinterpret_cast<uint64_t>(pair_.slot()),
                 .length = static_cast<uint32_t>(add_fragment_head(transfer)),
                 .lkey = pair_.slot_key()};
  }
  transfer.direct = true;
  post(transfer, taken, 0, std::span(pieces).first(count), in_message);
}

// Copies the data of a completed get from its send slot to user memory.
void BulkSender::copy_out(const SendRecord& record) {
  const Transfer& transfer = *record.transfer;
  if (!transfer.get || !record.slot || transfer.bulk == nullptr) return;
  const ExtentView& local = transfer.bulk->local;
  scatter(local.extents, local.offset + record.offset,
          {pair_.slot_at(record.slot_index), record.length});
}

}  // namespace hetcomm::rdma
