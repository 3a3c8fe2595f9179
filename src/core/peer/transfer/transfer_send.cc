#include <algorithm>
#include <new>
#include <optional>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/matching/track_base.h"
#include "src/core/peer/transfer/track.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/core/peer/transfer/transfers.h"

namespace hetcomm {
namespace {

// The most bytes that are copied at a time from host memory into a chunk that the receiver's device
// reads. The bytes should still be in a cache when the device reads them. On a CPU with 1 MiB of
// cache, twice this size halves the rate of a 64 MiB message.
constexpr uint64_t kMaxCopied = 512u << 10;
// The most pieces with such copies in flight. The limit prevents the copies from delaying other
// work for long.
constexpr size_t kMaxCopies = 4;

}  // namespace

// A Piece is one put, or one offer in place of a put. A put from user memory starts immediately.
// Bytes that are staged are first copied into a staging chunk, where they can be offered.
class SendTransfer::Piece final : public BulkOwner, public CopyHandler, public Mortal {
 public:
  Piece(SendTransfer& transfer, Rail& rail, uint64_t offset, uint64_t length, const RemoteKey& key,
        uint64_t remote_offset)
      : transfer_(transfer), rail_(&rail), offset_(offset) {
    bulk_.owner = this;
    bulk_.key = key;
    bulk_.remote_offset = remote_offset;
    bulk_.high_priority = transfer.send_->options.high_priority;
    bulk_.local.length = length;
    if (Track* track = transfer.track_; track != nullptr && track->flow().pacer != nullptr) {
      paced_ = track->flow().pacer->started(track->flow(),
                                            {rail.id, transfer.association_.link_of(rail)}, length,
                                            transfer.data().now_ns());
    }
  }
  ~Piece() { let_go(); }
  // Releases the staging chunk and the pacer's piece. Requires that this rank no longer accesses
  // the memory, and that the transfer's operation has not completed. The peer may still read an
  // offered chunk.
  void let_go() HETCOMM_UNDER_BATON {
    if (chunk_ != nullptr) {
      std::byte* const chunk = std::exchange(chunk_, nullptr);
      offered_ ? transfer_.chunks_.leave(chunk) : transfer_.chunks_.give(chunk);
    }
    const Pacer::Piece paced = std::exchange(paced_, {});
    if (paced.flow != nullptr && paced.flow->pacer != nullptr) {
      paced.flow->pacer->ended(paced, transfer_.data().now_ns());
    }
  }

  uint64_t length() const { return bulk_.local.length; }
  bool copying() const HETCOMM_UNDER_BATON { return copy_.running(); }
  bool is_on(const Rail& rail) const { return rail_ == &rail; }
  Rail& rail() const { return *rail_; }

  void put_from(Extents extents, uint64_t offset) HETCOMM_UNDER_BATON {
    bulk_.local.extents = extents;
    bulk_.local.offset = offset;
    putting_ = true;
    bulk_.rail = rail_;
    as_chosen_ =
        transfer_.table_.is_as_chosen(*transfer_.send_, *rail_, chunk_ != nullptr, transfer_.far_);
    transfer_.association_.bulks().submit(bulk_);
  }
  // Copies the bytes into |chunk| and offers them there if |offers_to| is not 0 and the peer can
  // map |chunk|. Otherwise puts them. Host memory is then not copied into |chunk|.
  void stage_through(std::byte* chunk, uint64_t offers_to) HETCOMM_UNDER_BATON {
    chunk_ = chunk;
    extent_ = {chunk, length()};
    offers_to_ = offers_to;
    if (offers_to_ != 0) locate();
    if (!transfer_.send_->buffers.on_host) {
      staging().start(copy_, StreamDirection::kToHost, transfer_.send_->buffers.pieces, offset_,
                      chunk, length(), *this);
    } else if (location_) {
      gather(transfer_.send_->extents(), offset_, {chunk, length()});
      offer();
    } else {
      put_from(transfer_.send_->extents(), offset_);
    }
  }
  bool is_offer(uint32_t number) const { return offered_ && number_ == number; }
  // Records that the peer has read the offer.
  void taken() { offered_ = false; }
  // Puts the bytes because the peer has refused the offer.
  void put_instead() HETCOMM_UNDER_BATON {
    offered_ = false;
    put_from(Extents(&extent_, 1), 0);
  }
  // Stops the put. On return the connection no longer accesses the memory, but a device copy may
  // still be running.
  void stop() HETCOMM_UNDER_BATON {
    stopped_ = true;
    if (putting_) transfer_.association_.bulks().cancel(bulk_);
    putting_ = false;
  }

 private:
  void on_copied(const Status& status) override HETCOMM_UNDER_BATON {
    if (stopped_ || !status.ok()) {
      transfer_.piece_finished(*this, status.ok() ? Status(Code::kCancelled) : status);
      return;
    }
    location_ ? offer() : put_from(Extents(&extent_, 1), 0);
  }
  std::string copy_purpose() const override HETCOMM_UNDER_BATON {
    return transfer_.send_ != nullptr ? hetcomm::describe(*transfer_.send_) : "a message";
  }
  // Finds the location where the peer can map the chunk. If there is none, or memory runs out, the
  // bytes are put instead of offered.
  void locate() HETCOMM_UNDER_BATON {
    try {
      if (transfer_.table_.offers().may_offer_on(*rail_)) {
        location_ = transfer_.chunks_.locate(chunk_, rail_->ends.own);
      }
      if (location_ && location_->region_bytes > UINT32_MAX) location_.reset();
    } catch (const std::bad_alloc&) {
      location_.reset();
    }
  }
  void offer() HETCOMM_UNDER_BATON {
    offered_ = true;
    number_ = transfer_.table_.offers().next_number();
    const OfferBody body{.region = location_->region,
                         .offset = bulk_.remote_offset,
                         .length = static_cast<uint32_t>(length()),
                         .region_offset = static_cast<uint32_t>(location_->offset),
                         .region_bytes = static_cast<uint32_t>(location_->region_bytes),
                         .number = number_};
    transfer_.association_.send_protocol(MessageKind::kOffer, offers_to_, transfer_.wire_id_, &body,
                                         sizeof(body));
  }
  void on_bulk(Bulk& /*bulk*/, Code code) override HETCOMM_UNDER_BATON {
    putting_ = false;
    if (code == Code::kOk && as_chosen_) transfer_.far_.moved_bytes += length();
    transfer_.piece_finished(*this, code);
  }
  Staging& staging() HETCOMM_UNDER_BATON { return transfer_.data().staging; }

  SendTransfer& transfer_;
  Rail* rail_;  // valid until the piece is stopped
  uint64_t offset_;
  OwnedBulk bulk_;
  CopyJob copy_;
  iovec extent_{};
  std::byte* chunk_ = nullptr;
  std::optional<ChunkLocation> location_;  // where the bytes are offered
  uint64_t offers_to_ = 0;
  uint32_t number_ = 0;   // number of the offer
  bool offered_ = false;  // the offer is unanswered
  Pacer::Piece paced_;
  bool putting_ = false;
  bool stopped_ = false;
  bool as_chosen_ = false;  // uses a far network interface in the way that |far_| says
};

SendTransfer::SendTransfer(TransferTable& table, Operation& send)
    : table_(table),
      association_(table.association()),
      send_(&send),
      track_(send.options.on_track ? &track_of(send) : nullptr),
      id_(table.sends().insert(this)),
      wire_id_(track_ != nullptr ? run_id(track_->number(), track_run(send).run) : id_),
      chunks_(data().staging.chunks(), ChunkPools::Pool::kSend,
              association_.is_beside() ? association_.rank() : ChunkPools::kNoReader) {}

SendTransfer::~SendTransfer() {
  table_.sends().erase(id_);
  revoke_source();
}

void SendTransfer::revoke_source() {
  if (source_rail_ != nullptr) source_rail_->abilities().exposer->revoke(source_key_);
  source_rail_ = nullptr;
  source_key_ = {};
}

AnnounceBody SendTransfer::make_announcement() {
  AnnounceBody body{id_, 0, {}, data().near.of(*send_)};
  Rail* rail = association_.rail();
  // Data over a far network interface is always put, which lets FarWays compare direct and staged
  // puts.
  if (rail == nullptr || !rail->capabilities().get ||
      (rail->capabilities().put && data().far_device(*send_, rail->ends.own)) ||
      (rail->capabilities().put && !RailMasks::has(body.transports, rail->ends.own)) ||
      !data().reaches(*send_, rail->ends.own) ||
      send_->extents().size() > rail->capabilities().max_exposed_extents) {
    return body;
  }
  Result<RemoteKey> key =
      rail->abilities().exposer->expose(send_->extents(), Access::kGetSource, id_);
  // Without a key the receiver requests puts.
  if (key.ok()) {
    source_key_ = key.value();
    source_rail_ = rail;
    body.rail = rail->id;
    body.source = source_key_;
  }
  return body;
}

Code SendTransfer::announce(PoolPtr<SendTransfer>& transfer, const WireHeader& header,
                            const void* body, size_t size) {
  iovec storage{const_cast<void*>(body), size};
  const Code code =
      transfer->association_.sequencer().send(header, ExtentView{Extents(&storage, 1), 0, size});
  if (code != Code::kOk) return code;
  Operation& send = *transfer->send_;
  send.phase = OperationPhase::kTransfer;
  transfers_of(send).send = transfer.release();
  return Code::kOk;
}

Operation& SendTransfer::take_back() {
  revoke_source();
  ending_ = true;
  Operation& send = *std::exchange(send_, nullptr);
  transfers_of(send).send = nullptr;
  table_.sends().erase(id_);
  BlockPool& blocks = data().blocks;
  data().retire(PoolPtr<SendTransfer>(this, {&blocks}));
  return send;
}

void SendTransfer::note_answer() {
  if (announced_ && !answered_) table_.announcement_answered();
  answered_ = true;
}

void SendTransfer::granted(const Grant& grant) {
  granted_ = true;
  // Ignores the grant if the transfer is ending, or if the grant's connection has broken.
  if (ending_ || association_.rails().find(grant.rail) == nullptr) return;
  if (pulled_since_ns_ != 0) return;  // a pulled message gets no grants
  if (!fits(grant)) return;
  note_answer();
  accepted_ = std::min(grant.accepted, send_->length);
  OpenGrant started{grant, 0};
  if (of_track()) {
    if (grant.accepted > send_->length && !std::exchange(told_length_, true)) {
      association_.send_protocol(MessageKind::kTrackLength, wire_id_, send_->length);
    }
    if (grant.offset >= send_->length) {
      maybe_finish();
      return;
    }
    started.body.length = std::min(grant.length, send_->length - grant.offset);
  }
  // The peer may be ready on a new connection before this rank is. The pieces for that connection
  // then wait in Bulks.
  if ((grants_.empty() || of_track()) && start_grant(started)) return;
  if (ending_) return;
  if (grants_.size() >= kMaxGrants) {
    finish_as(Code::kPeerLost,
              fmt::format("send to rank {}: too many grants", association_.rank()));
    return;
  }
  grants_.push_back(started);
}

// Returns whether |grant| fits the message. If not, ends the transfer.
bool SendTransfer::fits(const GrantBody& grant) {
  const uint64_t length = of_track() ? grant.accepted : send_->length;
  if (grant.accepted > length || grant.offset > length || grant.length > length - grant.offset) {
    finish_as(Code::kPeerLost,
              fmt::format("send to rank {}: granted a range outside of the message",
                          association_.rank()));
    return false;
  }
  if (of_track() && grant.accepted < send_->length) {
    end(Code::kTruncated,
        fmt::format("send to rank {}: the receive takes {} bytes, the message has {}",
                    association_.rank(), grant.accepted, send_->length));
    return false;
  }
  return true;
}

// Sends as much of |grant| as possible now. Returns whether all of it is in flight.
bool SendTransfer::start_grant(OpenGrant& grant) {
  Rail& rail = *association_.rails().find(grant.body.rail);
  may_lose_ = may_lose_ || !rail.capabilities().lossless;
  const bool direct =
      grant.direct ||
      (grant.started == 0 && data().reaches(*send_, rail.ends.own) &&
       !(grant.body.wants_offers && grant.body.offers_to != 0 && send_->buffers.on_host &&
         table_.offers().may_offer_on(rail)) &&
       !table_.prefers_staging(*send_, rail, StreamDirection::kToHost, accepted_, far_));
  return direct ? start_direct(grant, rail) : start_staged(grant, rail);
}

void SendTransfer::start_pieces() {
  // A run continues with later grants, since their connections may accept more data.
  for (size_t i = 0; !ending_ && i < grants_.size() && !pieces_.full();) {
    const bool whole = start_grant(grants_[i]);
    if (ending_) return;
    if (whole) {
      grants_.erase(grants_.begin() + static_cast<ptrdiff_t>(i));
    } else if (of_track()) {
      ++i;
    } else {
      return;
    }
  }
}

// Returns how many of the next |bytes| can be sent over |rail| now. Returns 0 if they have to wait,
// for data of other queues, for earlier data of this queue, or for its rate.
uint64_t SendTransfer::allowed(const Rail& rail, uint64_t bytes) {
  if (track_ == nullptr || track_->flow().pacer == nullptr) return bytes;
  return track_->flow().pacer->allowed(track_->flow(), {rail.id, association_.link_of(rail)}, bytes,
                                       send_->options.high_priority, data().now_ns());
}

// Sends the rest of |grant| directly from user memory, as one piece unless the pacer divides it.
// Returns whether all of it is in flight.
bool SendTransfer::start_direct(OpenGrant& grant, Rail& rail) {
  while (grant.started < grant.body.length) {
    if (pieces_.full()) return false;
    const uint64_t length = allowed(rail, grant.body.length - grant.started);
    if (length == 0) return false;
    const uint64_t offset = grant.body.offset + grant.started;
    pieces_.push(make_pooled<Piece>(data().blocks, *this, rail, offset, length, grant.body.target,
                                    grant.started));
    if (!send_->buffers.on_host) rail.counters().device_bytes_direct += length;
    grant.started += length;
    grant.direct = true;
    pieces_.back().put_from(send_->extents(), offset);
    if (ending_) return false;
  }
  return true;
}

bool SendTransfer::start_staged(OpenGrant& grant, Rail& rail) {
  DeviceAccess& access = data().device_access;
  if (access.insists() && !send_->buffers.on_host) {
    end(Code::kUnsupported, fmt::format("send to rank {}: {}", association_.rank(),
                                        access.refusal(*send_, rail.ends.own)));
    return false;
  }
  data().staging.choose_shape(chunks_, accepted_, StreamDirection::kToHost, send_->buffers.pieces);
  const size_t depth =
      send_->buffers.on_host ? std::min(chunks_.shape().depth, kMaxCopies) : chunks_.shape().depth;
  while (grant.started < grant.body.length) {
    if (pieces_.size() >= depth) return false;
    const uint64_t most = send_->buffers.on_host ? std::min(chunks_.shape().chunk_bytes, kMaxCopied)
                                                 : chunks_.shape().chunk_bytes;
    const uint64_t part = allowed(rail, std::min(most, grant.body.length - grant.started));
    if (part == 0) return false;
    bool exhausted = false;
    std::byte* chunk = chunks_.take(!pieces_.empty(), &exhausted);
    if (chunk == nullptr) {
      // If the rail can access the memory directly, staging was optional.
      if (exhausted && data().reaches(*send_, rail.ends.own)) {
        far_.give_up_staging();
        return start_direct(grant, rail);
      }
      if (exhausted && pieces_.empty()) {
        end(Code::kOutOfMemory,
            fmt::format("send to rank {}: no memory to stage through", association_.rank()));
      }
      return false;
    }
    try {
      pieces_.push(make_pooled<Piece>(data().blocks, *this, rail, grant.body.offset + grant.started,
                                      part, grant.body.target, grant.started));
    } catch (const std::bad_alloc&) {
      chunks_.give(chunk);
      throw;
    }
    grant.started += part;
    if (!send_->buffers.on_host) {
      ++rail.counters().staged_chunks;
      rail.counters().device_bytes_staged += part;
    }
    pieces_.back().stage_through(chunk, grant.body.offers_to);
    if (ending_) return false;
  }
  return true;
}

void SendTransfer::piece_finished(Piece& piece, const Status& status) {
  const Code code = status.code();
  if (code == Code::kOk) put_bytes_ += piece.length();
  piece.let_go();
  data().retire(pieces_.take(piece));
  if (received_ && pieces_.empty()) finish_as(Code::kOk, {});
  if (code != Code::kOk && code != Code::kCancelled && !ending_ && !received_) {
    end(code, fmt::format("send to rank {}: {}", association_.rank(), status.text()));
    return;
  }
  start_pieces();
  maybe_finish();
}

void SendTransfer::offer_answered(uint32_t number, bool refused) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    if (!piece.is_offer(number)) continue;
    if (refused) {
      table_.offers().refused();
      piece.put_instead();
    } else {
      piece.taken();
      ++piece.rail().counters().mapped_chunks;
      piece.rail().counters().bulk_bytes += piece.length();
      piece_finished(piece, Code::kOk);
    }
    return;
  }
}

void SendTransfer::done() {
  if (source_rail_ != nullptr && accepted_ == UINT64_MAX && send_ != nullptr &&
      !send_->buffers.on_host) {
    source_rail_->counters().device_bytes_direct += send_->length;  // the receiver read the bytes
  }
  if (source_rail_ != nullptr) source_rail_->abilities().exposer->release(source_key_);
  source_rail_ = nullptr;
  source_key_ = {};
  received_ = true;
  // The connection here may still count bytes as in flight that the receiver already has.
  // Cancelling them would break the connection, so the pieces finish first.
  if (pieces_.empty()) finish_as(Code::kOk, {});
}

void SendTransfer::closed(const Status& why) {
  peer_knows_ = true;
  finish_told(why);
}

// Ends the transfer with a reason that another rank has sent.
void SendTransfer::finish_told(const Status& why) {
  finish_as(why.code(), send_ != nullptr ? text_of_told(*send_, why) : std::string());
}

void SendTransfer::stopped(const PeerReason& why) {
  peer_knows_ = true;
  // The owner of the memory has refused the put.
  if (send_ != nullptr && send_->kind == OperationKind::kPut && why.is_answer()) {
    finish_as(why.code(), Completer::access_failure_text(*send_, why.code()));
    return;
  }
  finish_told(why.status());
}

void SendTransfer::end(Code code, std::string text) {
  if (ending_) return;
  // The receiver is notified even of an abort, although it also gets a separate notification. It
  // must not hold the announcement longer than this rank counts it. A receiver that has not granted
  // anything of a run yet is notified when it does.
  const SendRun* run = of_track() ? track_->runs().find(track_run(*send_).run) : nullptr;
  const bool granted = granted_ || (run != nullptr && !run->grants.empty());
  if (!of_track() || granted) {
    const Permit permit = send_ != nullptr ? hand_over_permit(*send_) : Permit::kNone;
    if (send_ != nullptr && is_aborted(*send_, code)) {
      association_.send_protocol(MessageKind::kWithdraw, wire_id_, code, permit);
    } else {
      association_.send_reason(MessageKind::kWithdraw, wire_id_,
                               status_or_code(code, [&] { return text; }), permit);
    }
    peer_knows_ = true;
  }
  finish_as(code, std::move(text));
}

void SendTransfer::finish_as(Code code, std::string text) {
  if (ending_) return;
  note_answer();
  ending_ = true;
  code_ = code;
  text_ = std::move(text);
  quiesce();
  maybe_finish();
}

// Removes and retires piece number |piece|, which has been stopped and has no copy running.
void SendTransfer::bury(size_t piece) {
  pieces_[piece].let_go();
  data().retire(pieces_.take(piece));
}

// Stops everything in flight on connections. Device copies finish by themselves.
void SendTransfer::quiesce() {
  grants_.clear();
  revoke_source();
  for (size_t i = 0; i < pieces_.size();) {
    pieces_[i].stop();
    if (pieces_[i].copying()) {
      ++i;
    } else {
      bury(i);
    }
  }
}

void SendTransfer::rail_failed(const Rail& rail) {
  if (source_rail_ == &rail) revoke_source();
  std::erase_if(grants_, [&](const OpenGrant& grant)
                             HETCOMM_UNDER_BATON { return grant.body.rail == rail.id; });
  for (size_t i = 0; i < pieces_.size();) {
    if (!pieces_[i].is_on(rail)) {
      ++i;
      continue;
    }
    pieces_[i].stop();
    if (pieces_[i].copying()) {
      ++i;
    } else {
      bury(i);
    }
  }
  if (received_ && pieces_.empty()) finish_as(Code::kOk, {});
}

bool SendTransfer::uses(const Rail& rail) const {
  if (source_rail_ == &rail) return true;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].is_on(rail)) return true;
  }
  return std::any_of(grants_.begin(), grants_.end(),
                     [&](const OpenGrant& grant)
                         HETCOMM_UNDER_BATON { return grant.body.rail == rail.id; });
}

void SendTransfer::maybe_finish() {
  if (!pieces_.empty() || send_ == nullptr) return;
  if (!ending_) {
    // A send over lossless rails is complete as soon as its source has been read, except a put.
    const Rail* rail = association_.rail();
    if (send_->kind == OperationKind::kPut || put_bytes_ != accepted_ || !grants_.empty() ||
        rail == nullptr || !rail->capabilities().lossless || may_lose_) {
      return;
    }
    ending_ = true;
    quiesce();
  }
  Operation& send = *std::exchange(send_, nullptr);
  transfers_of(send).send = nullptr;
  table_.sends().erase(id_);
  // A run is not measured, since its time includes waiting for the receiver.
  if (code_ == Code::kOk && far_.made && !of_track()) {
    table_.far_ways().measured(far_, accepted_, now_ns());
  }
  if (of_track()) {
    if (Rail* rail = association_.rail(); rail != nullptr && code_ == Code::kOk) {
      ++rail->counters().messages_sent;
      rail->counters().bytes_sent += send.length;
      ++rail->counters().rendezvous_sent;
    }
    const Status how = code_ == Code::kOk ? Status() : status_or_code(code_, [&] { return text_; });
    track_->run_ended(track_run(send).run, how, peer_knows_);
  }
  if (code_ == Code::kOk) send.outcome.bytes_sent = send.outcome.bytes_received = send.length;
  data().completer.complete(send, code_, std::move(text_));
  BlockPool& blocks = data().blocks;
  data().retire(PoolPtr<SendTransfer>(this, {&blocks}));
}

}  // namespace hetcomm
