#include "transports/rdma/endpoint.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "transports/rdma/transport.h"

namespace hetcomm::rdma {
namespace {

// After the TCP connection has ended: how long what arrived before is looked for.
constexpr uint64_t kLingerNs = 2'000'000;
// The same after rdma_cm has told of the end, which it may do before the peer's goodbye is here.
constexpr uint64_t kCmLingerNs = 20'000'000;
// Work requests and slots that bulks leave to messages.
constexpr uint32_t kReservedRequests = QueuePair::kSendSlots + 4;
constexpr uint32_t kReservedSlots = 8;
// A put or get up to this size, or of pieces smaller than kSmallPiece, goes through send slots:
// copying is cheaper than registering.
constexpr uint64_t kCopiedBytes = 4096;
constexpr uint64_t kSmallPiece = 512;
// How long after the revocation of a source its connection is looked at.
constexpr uint64_t kSuspectNs = 2'000'000'000;
constexpr unsigned kInline = IBV_SEND_INLINE;

}  // namespace

RdmaEndpoint::RdmaEndpoint(RdmaTransport& transport, int peer, Connected connected)
    : transport_(transport),
      peer_(peer),
      number_(connected.pair->number()),
      peer_number_(connected.peer.queue_pair),
      peer_slot_bytes_(connected.peer.slot_bytes),
      peer_credits_(connected.peer.credits),
      path_(fmt::format("{} to {}", transport.nic().name(), gid_text(connected.peer.gid))),
      credits_(connected.peer.credits),
      exposures_(transport.memory_regions()),
      queue_(transport.memory_regions()),
      socket_(std::move(connected.socket)),
      cm_(std::move(connected.cm)),
      pair_(std::move(connected.pair)) {
  if (cm_) cm_->set_handler(*this);
  transport_.add_endpoint(*this);
}

RdmaEndpoint::~RdmaEndpoint() {
  handler_ = nullptr;
  break_off("closed");
  transport_.remove_endpoint(*this);
}

void RdmaEndpoint::set_handler(EndpointHandler* handler) {
  handler_ = handler;
  if (handler != nullptr && !watched_ && socket_.valid()) {
    const Status status = transport_.poller().add(socket_.get(), EPOLLIN, *this);
    watched_ = status.ok();
    if (!status.ok()) break_off(status.text());
  }
  transport_.activate(*this);
}

const Capabilities& RdmaEndpoint::capabilities() const { return transport_.capabilities(); }

bool RdmaEndpoint::can_send(uint64_t payload_bytes) const {
  if (credits_ < 2 || pair_->room() < 4) return false;
  return payload_bytes + kMostHeadBytes <= pair_->max_inline() || pair_->free_slots() > 0;
}

Code RdmaEndpoint::send(const MessageHeader& header, const SegmentView& payload) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  if (payload.length > capabilities().max_payload_bytes ||
      payload.length + kMostHeadBytes > peer_slot_bytes_) {
    return Code::kInvalidArgument;
  }
  if (!can_send(payload.length)) {
    want_writable_ = true;
    transport_.activate(*this);
    return Code::kWouldBlock;
  }
  std::array<std::byte, QueuePair::kMaxInline> small;
  const size_t head = encode_head(small.data(), static_cast<uint16_t>(owed_), header, last_sent_);
  owed_ = 0;
  const uint64_t size = head + payload.length;
  const bool is_inline = size <= pair_->max_inline();
  std::byte* const place = is_inline ? small.data() : pair_->slot();
  if (!is_inline) std::memcpy(place, small.data(), head);
  gather(payload.segments, payload.offset, {place + head, payload.length});
  const WorkRequest work{.opcode = IBV_WR_SEND, .flags = is_inline ? kInline : 0};
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(place),
                      .length = static_cast<uint32_t>(size),
                      .lkey = pair_->slot_key()};
  --credits_;
  pair_->add(work, {&piece, 1}, {.slot = !is_inline}, false);
  flush_posts();
  transport_.activate(*this);
  return Code::kOk;
}

Code RdmaEndpoint::put(Bulk& bulk) { return start(bulk, false); }
Code RdmaEndpoint::get(Bulk& bulk) { return start(bulk, true); }

Code RdmaEndpoint::start(Bulk& bulk, bool get) {
  if (state_ != State::kOpen) return Code::kPeerLost;
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
                     length / std::max<size_t>(bulk.local.segments.size(), 1) < kSmallPiece;
  // The head of a message is a piece of its own.
  const bool one_piece = key->kind == KeyKind::kCopiedTarget && pair_->max_pieces() == 1;
  const bool copied =
      (small || one_piece) && !transport_.memory_regions().has_device(bulk.local.segments);
  if (!copied || get || key->kind == KeyKind::kCopiedTarget || !put_at_once(bulk, *key)) {
    queue_.push(bulk, *key, get, copied);
    pump();
  }
  transport_.activate(*this);
  return Code::kOk;
}

// A put of one fragment that nothing stands before. What travels in the work request itself is read
// from where it lies.
bool RdmaEndpoint::put_at_once(Bulk& bulk, const Key& key) {
  const SegmentView& local = bulk.local;
  const bool is_inline = local.length <= pair_->max_inline();
  if (queue_.front() != nullptr || local.length == 0 ||
      local.length > transport_.settings().slot_bytes || !can_post(key.kind, !is_inline)) {
    return false;
  }
  const std::byte* place =
      is_inline ? single_piece(local.segments, local.offset, local.length) : nullptr;
  const bool slot = place == nullptr;
  if (slot && is_inline && pair_->free_slots() <= kReservedSlots) return false;
  if (slot) {
    gather(local.segments, local.offset, {pair_->slot(), local.length});
    place = pair_->slot();
  }
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(place),
                      .length = static_cast<uint32_t>(local.length),
                      .lkey = pair_->slot_key()};
  post(queue_.push_posted(bulk, key), local.length, is_inline ? kInline : 0, {&piece, 1}, slot);
  flush_posts();
  return true;
}

Result<RemoteKey> RdmaEndpoint::expose(Segments segments, Access access, uint64_t cookie) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  if (segments.size() > 1) {
    return Status(Code::kUnsupported, "rdma: memory in several pieces cannot be exposed at once");
  }
  const iovec piece = segments.empty() ? iovec{} : segments[0];
  return exposures_.add(piece, access, cookie);
}

void RdmaEndpoint::revoke(const RemoteKey& key) {
  Exposure* exposure = exposures_.find(key);
  if (exposure == nullptr) return;
  if (exposure->access == Access::kGetSource) {
    // Without its memory region the memory cannot be read; a peer that reads loses the connection.
    // Soft-RoCE then puts this side's queue pair into the error state and tells neither side.
    if (exposures_.revoke(*exposure)) {
      suspect_until_ns_ = deadline_after(now_ns(), kSuspectNs);
      transport_.suspect();
      return;
    }
  } else if (exposure->copied_to != nullptr || exposure->arrived >= exposure->length) {
    exposures_.remove(*exposure);
    return;
  }
  // A write may be under way: the end of the queue pair ends it on any device. (Soft-RoCE keeps
  // hold of a memory region from a write's first packet to its last.)
  break_off("memory that the peer could still reach was revoked");
}

void RdmaEndpoint::release(const RemoteKey& key) {
  if (Exposure* exposure = exposures_.find(key); exposure != nullptr) exposures_.remove(*exposure);
}

bool RdmaEndpoint::cancel(Bulk& bulk) {
  // One that has broken has let go of all that was under way; on_failed follows.
  if (state_ == State::kFailed) return true;
  if (queue_.cancel(bulk)) return false;
  break_off("a transfer under way was cancelled");
  return true;
}

bool RdmaEndpoint::flushed() const {
  if (state_ != State::kOpen) return true;
  return pair_->idle() && queue_.idle();
}

std::string RdmaEndpoint::describe() const {
  return fmt::format("rdma {}, queue pair {} to {}, MTU {}{}", path_, number_, peer_number_,
                     mtu_bytes(transport_.nic().mtu), cm_ ? ", by rdma_cm" : "");
}

// --- bulk ------------------------------------------------------------------------------------

// |copied|: through a send slot.
bool RdmaEndpoint::can_post(KeyKind kind, bool copied) const {
  if (pair_->room() <= kReservedRequests ||
      bulk_bytes_ >= transport_.settings().max_in_flight_bytes) {
    return false;
  }
  const bool in_message = kind == KeyKind::kCopiedTarget;
  const bool takes_credit = in_message || kind == KeyKind::kWriteTarget;
  if (takes_credit && credits_ <= peer_credits_ / 4) return false;
  return !(copied || in_message) || pair_->free_slots() > kReservedSlots;
}

// Posts fragments of what is queued, as far as there is room.
void RdmaEndpoint::pump() {
  if (state_ != State::kOpen || queue_.front() == nullptr) return;
  while (Transfer* transfer = queue_.front()) {
    if (!can_post(transfer->key.kind, transfer->copied)) break;
    if (!post_fragment(*transfer)) break;
  }
  flush_posts();
}

bool RdmaEndpoint::post_fragment(Transfer& transfer) {
  const Settings& settings = transport_.settings();
  const uint64_t left = transfer.bulk->local.length - transfer.begun;
  uint64_t most = transfer.copied ? settings.slot_bytes : settings.fragment_bytes;
  if (transfer.key.kind == KeyKind::kCopiedTarget) {
    most = std::min(settings.slot_bytes, peer_slot_bytes_) - kFragmentHeadBytes;
  }
  const uint64_t length = std::min(left, most);
  return transfer.copied ? post_copied(transfer, length) : post_direct(transfer, length);
}

// Into the next send slot, where the target wants messages. Returns its size, or 0.
size_t RdmaEndpoint::add_fragment_head(const Transfer& transfer) {
  if (transfer.key.kind != KeyKind::kCopiedTarget) return 0;
  encode_fragment_head(pair_->slot(), static_cast<uint16_t>(std::exchange(owed_, 0)),
                       {.immediate = transfer.key.immediate,
                        .offset = transfer.bulk->remote_offset + transfer.begun});
  return kFragmentHeadBytes;
}

bool RdmaEndpoint::post_copied(Transfer& transfer, uint64_t length) {
  std::byte* const place = pair_->slot();
  const SegmentView& local = transfer.bulk->local;
  const size_t head = add_fragment_head(transfer);
  unsigned flags = 0;
  if (!transfer.get) {
    gather(local.segments, local.offset + transfer.begun, {place + head, length});
    if (head + length <= pair_->max_inline()) flags = kInline;
  }
  transfer.cursor.advance(local.segments, length);
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(place),
                      .length = static_cast<uint32_t>(head + length),
                      .lkey = pair_->slot_key()};
  post(transfer, length, flags, {&piece, 1}, true);
  return true;
}

bool RdmaEndpoint::post_direct(Transfer& transfer, uint64_t length) {
  std::array<ibv_sge, QueuePair::kMaxPieces> pieces;
  const bool in_message = transfer.key.kind == KeyKind::kCopiedTarget;
  size_t count = in_message ? 1 : 0;
  if (count == pair_->max_pieces()) transfer.code = Code::kUnsupported;
  uint64_t taken = 0;
  const Segments segments = transfer.bulk->local.segments;
  while (taken < length && count < pair_->max_pieces()) {
    transfer.cursor.advance(segments, 0);  // past empty segments
    Result<MemoryRegion*> region = queue_.memory_region(transfer, transfer.cursor.index);
    if (!region.ok()) {
      if (transport_.memory_regions().may_copy(region.status(), segments)) {
        transfer.copied = true;
        break;
      }
      transport_.log().warn("{}", region.status().text());
      transfer.code = region.status().code();
      break;
    }
    const iovec piece = transfer.cursor.next(segments, length - taken);
    pieces[count++] = {.addr = region.value()->address_of(piece.iov_base),
                       .length = static_cast<uint32_t>(piece.iov_len),
                       .lkey = region.value()->lkey()};
    taken += piece.iov_len;
  }
  if (taken == 0) {
    // What is under way ends first. The rest is not sent.
    if (transfer.code != Code::kOk) queue_.all_posted(transfer);
    return true;
  }
  if (in_message) {
    pieces[0] = {.addr = reinterpret_cast<uint64_t>(pair_->slot()),
                 .length = static_cast<uint32_t>(add_fragment_head(transfer)),
                 .lkey = pair_->slot_key()};
  }
  transfer.direct = true;
  post(transfer, taken, 0, std::span(pieces).first(count), in_message);
  return true;
}

// Inlined by force: small puts pay for every call.
[[gnu::always_inline]] inline void RdmaEndpoint::post(Transfer& transfer, uint64_t length,
                                                      unsigned flags,
                                                      std::span<const ibv_sge> pieces, bool slot) {
  const Key& key = transfer.key;
  WorkRequest work{.opcode = transfer.get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                   .flags = flags,
                   .rkey = key.rkey,
                   .address = key.address + transfer.bulk->remote_offset + transfer.begun};
  if (key.kind == KeyKind::kWriteTarget) {
    work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    work.immediate = htonl(key.immediate);
    --credits_;
  } else if (key.kind == KeyKind::kCopiedTarget) {
    work.opcode = IBV_WR_SEND;
    --credits_;
  }
  const SendRecord record{.transfer = &transfer,
                          .offset = transfer.begun,
                          .length = static_cast<uint32_t>(length),
                          .slot = slot};
  transfer.begun += length;
  ++transfer.under_way;
  bulk_bytes_ += length;
  const bool last = transfer.begun == transfer.bulk->local.length || transfer.code != Code::kOk;
  // Before the window is full something must have been asked for.
  const bool fills = length * QueuePair::kSignalEvery > transport_.settings().max_in_flight_bytes;
  pair_->add(work, pieces, record, last || fills);
  if (last && transfer.state == BulkState::kQueued) queue_.all_posted(transfer);
}

void RdmaEndpoint::flush_posts() {
  if (state_ != State::kFailed && !pair_->flush()) break_off("the device refuses work requests");
}

void RdmaEndpoint::copy_out(const SendRecord& record) {
  const Transfer& transfer = *record.transfer;
  if (!transfer.get || !record.slot || transfer.bulk == nullptr) return;
  const SegmentView& local = transfer.bulk->local;
  scatter(local.segments, local.offset + record.offset,
          {pair_->slot_at(record.slot_index), record.length});
}

void RdmaEndpoint::on_sent(uint64_t id) {
  pair_->retire(id, [this](const SendRecord& record) {
    if (record.transfer == nullptr) return;
    bulk_bytes_ -= record.length;
    copy_out(record);
    queue_.fragment_completed(*record.transfer);
  });
  transport_.activate(*this);
}

// --- arriving --------------------------------------------------------------------------------

void RdmaEndpoint::on_received(const ibv_wc& completion, const std::byte* slot) {
  ++consumed_;
  transport_.activate(*this);
  if (state_ == State::kFailed || handler_ == nullptr) return;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    on_fragment(completion);
  } else if (completion.opcode == IBV_WC_RECV) {
    on_message(completion, slot);
  } else {
    break_off(text_or_none([&] {
      return fmt::format("protocol error: completion of kind {}",
                         static_cast<unsigned>(completion.opcode));
    }));
  }
}

void RdmaEndpoint::on_message(const ibv_wc& completion, const std::byte* slot) {
  const std::optional<Head> head = decode_head(slot, completion.byte_len, last_received_);
  if (!head || completion.byte_len > transport_.settings().slot_bytes) {
    break_off("protocol error: malformed message");
    return;
  }
  if (head->credits > peer_credits_ - std::min(peer_credits_, credits_)) {
    break_off("protocol error: more credits than there are");
    return;
  }
  credits_ += head->credits;
  if (head->type == HeadType::kFragment) {
    on_copied_fragment(decode_fragment_head(slot),
                       {slot + head->size, completion.byte_len - head->size});
    return;
  }
  if (head->type != HeadType::kMessage) return;
  const MessageHeader header = last_received_;
  handler_->on_message(header, {slot + head->size, completion.byte_len - head->size});
}

void RdmaEndpoint::on_fragment(const ibv_wc& completion) {
  const bool has_immediate = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  Exposure* exposure = has_immediate ? exposures_.find(ntohl(completion.imm_data)) : nullptr;
  if (exposure == nullptr || exposure->access != Access::kPutTarget ||
      exposure->copied_to != nullptr || completion.byte_len > exposure->length) {
    break_off("protocol error: a put to memory that is not exposed");
    return;
  }
  exposure->arrived += completion.byte_len;
  handler_->on_put(exposure->cookie, completion.byte_len);
}

void RdmaEndpoint::on_copied_fragment(const FragmentHead& fragment, ConstByteSpan bytes) {
  Exposure* exposure = exposures_.find(fragment.immediate);
  if (exposure == nullptr) return;  // revoked while it was on its way
  if (exposure->copied_to == nullptr || fragment.offset > exposure->length ||
      bytes.size() > exposure->length - fragment.offset) {
    break_off("protocol error: a put to memory that is not exposed");
    return;
  }
  std::memcpy(exposure->copied_to + fragment.offset, bytes.data(), bytes.size());
  exposure->arrived += bytes.size();
  handler_->on_put(exposure->cookie, bytes.size());
}

// --- progress --------------------------------------------------------------------------------

bool RdmaEndpoint::is_credit_due() const {
  return owed_ >= transport_.settings().credits / 2 && credits_ >= 1 && pair_->room() >= 2;
}

void RdmaEndpoint::send_credits() {
  std::array<std::byte, kCreditsHeadBytes> head;
  const bool is_inline = pair_->max_inline() >= head.size();
  std::byte* const place = is_inline ? head.data() : pair_->slot();
  encode_credits(place, static_cast<uint16_t>(owed_));
  owed_ = 0;
  --credits_;
  const WorkRequest work{.opcode = IBV_WR_SEND, .flags = is_inline ? kInline : 0};
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(place),
                      .length = static_cast<uint32_t>(head.size()),
                      .lkey = pair_->slot_key()};
  pair_->add(work, {&piece, 1}, {.slot = !is_inline}, false);
  flush_posts();
}

int RdmaEndpoint::progress() {
  if (handler_ == nullptr) return 0;
  int done = 0;
  if (state_ == State::kClosing && now_ns() >= deadline_ns_) {
    break_off(why_.text());
  }
  if (state_ == State::kFailed) {
    if (std::exchange(reported_, true)) return 0;
    handler_->on_failed(why_);
    return 1;
  }
  if (transport_.receives_posted()) owed_ += std::exchange(consumed_, 0);
  done += report();
  if (state_ != State::kOpen) return done + 1;
  pump();
  if (state_ == State::kOpen && is_credit_due() &&
      (pair_->max_inline() > 0 || pair_->free_slots() > 0)) {
    send_credits();
    ++done;
  }
  return done;
}

void RdmaEndpoint::look_at_tail() {
  if (!has_silent_tail()) return;
  if (pair_->posted() == posted_before_) {
    pair_->nudge();
    flush_posts();
    if (state_ != State::kOpen) return;
  }
  posted_before_ = pair_->posted();
}

void RdmaEndpoint::probe() {
  if (state_ != State::kOpen || handler_ == nullptr) return;
  if (pair_->posted() == probed_ && pair_->idle()) {
    pair_->nudge();
    flush_posts();
    if (state_ != State::kOpen) return;
  }
  probed_ = pair_->posted();
}

// Upcalls about what has left.
int RdmaEndpoint::report() {
  int done = 0;
  while (queue_.has_completed()) {
    const auto [bulk, code] = queue_.pop_completed();
    ++done;
    handler_->on_bulk_complete(*bulk, code);
    if (state_ == State::kFailed) return done;
  }
  if (want_writable_ && state_ == State::kOpen && can_send(capabilities().max_payload_bytes)) {
    want_writable_ = false;
    ++done;
    handler_->on_writable();
  }
  return done;
}

bool RdmaEndpoint::has_urgent_work() const {
  if (handler_ == nullptr) return false;
  if (state_ == State::kFailed) return !reported_;
  if (state_ == State::kClosing || queue_.has_completed() || consumed_ > 0) return true;
  if (is_credit_due()) return true;
  const Transfer* transfer = queue_.front();
  if (transfer != nullptr && can_post(transfer->key.kind, transfer->copied)) return true;
  return want_writable_ && can_send(capabilities().max_payload_bytes);
}

bool RdmaEndpoint::prepare_sleep() {
  if (handler_ == nullptr) return true;
  if (state_ == State::kOpen && pair_->has_silent_tail()) {
    pair_->nudge();
    flush_posts();
  }
  // One that closes has a timer.
  if (state_ == State::kClosing) return !queue_.has_completed();
  return !has_urgent_work() && !has_silent_tail();
}

// --- the end ---------------------------------------------------------------------------------

void RdmaEndpoint::on_events(uint32_t /*events*/) {
  std::byte byte{};
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const int error = errno;
  transport_.poller().remove(socket_.get(), *this);
  watched_ = false;
  if (state_ == State::kFailed) return;
  if (got > 0) {
    break_off("protocol error: data on the connection that has none");
    return;
  }
  close(status_or_code(Code::kPeerLost,
                       [&] {
                         return std::string(got == 0 ? "connection closed by peer"
                                                     : std::strerror(error));
                       }),
        kLingerNs);
}

void RdmaEndpoint::on_ended(const Status& why) {
  if (state_ != State::kFailed) close(why, kCmLingerNs);
}

// What had arrived is taken first.
void RdmaEndpoint::close(Status why, uint64_t linger_ns) {
  // The real clock: the coarse one may be old.
  const uint64_t deadline = deadline_after(now_ns(), linger_ns);
  deadline_ns_ = state_ == State::kOpen ? deadline : std::min(deadline_ns_, deadline);
  if (state_ == State::kOpen) why_ = std::move(why);
  state_ = State::kClosing;
  transport_.activate(*this);
}

void RdmaEndpoint::break_off(std::string_view reason) noexcept {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  why_ = status_or_code(Code::kPeerLost, [&] { return fmt::format("rdma {}: {}", path_, reason); });
  transport_.quiesce(*this);
  pair_.reset();
  cm_.reset();
  queue_.drop_all();
  exposures_.clear();
  if (watched_) transport_.poller().remove(socket_.get(), *this);
  watched_ = false;
  socket_.reset();
  transport_.activate(*this);
}

}  // namespace hetcomm::rdma
