#include "src/core/peer/pair.h"

#include <algorithm>

#include "src/base/text.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {
namespace {

// A message is pushed when the receiver has read none for so long.
constexpr uint64_t kPushAfterNs = 200'000;
// This side handles what has arrived for so long before it holds that against the receiver.
constexpr uint64_t kPushGraceNs = 20'000;

SegmentView view(const void* data, size_t size, iovec* storage) {
  *storage = {const_cast<void*>(data), size};
  return SegmentView{Segments(storage, 1), 0, size};
}

// The header of |send|'s message, or of what announces it.
WireHeader header_of(MessageKind kind, const Operation& send) {
  return {.kind = kind,
          .flags = send.collective ? kFlagCollective : uint8_t{0},
          .channel = static_cast<uint16_t>(send.channel),
          .tag = send.tag,
          .value = addressee_value(send.channel, send.length)};
}

}  // namespace

Pair::Pair(PairCommons& common, int rank, uint32_t credit)
    : common_(common),
      rank_(rank),
      is_higher_(common.rank > rank),
      sent_(common.first_sequence),
      credit_used_(common.first_sequence),
      credit_returned_by_peer_(common.first_sequence),
      credit_limit_(credit),
      received_(common.first_sequence),
      received_when_asked_(common.first_sequence),
      reported_received_(common.first_sequence),
      owed_(common.first_sequence),
      credit_taken_(common.first_sequence),
      credit_returned_(common.first_sequence),
      credit_reported_(common.first_sequence),
      credit_granted_(common.credit_granted) {}

Pair::~Pair() {
  while (!arriving_.empty()) {
    Incoming& message = arriving_.pop();
    if (message.operation == nullptr && !message.queued) free_incoming(&message);
  }
}

// --- queueing ---------------------------------------------------------------

void Pair::enqueue(Operation& send) {
  send.stage = OperationStage::kQueued;
  outbox_.push_back(send);
}

void Pair::submit_send(Operation& send) {
  send.pair = this;
  send.run.sent = 0;
  if (outbox_.empty() && may_send()) [[likely]] {
    if (!start_or_end(send)) enqueue(send);
    return;
  }
  if (state_ == State::kLost) {
    common_.completer.complete(send, lost_.code(), std::string(lost_.text()));
    return;
  }
  enqueue(send);
  ensure_connected();
}

void Pair::pump() {
  if (state_ != State::kReady || !send_waiting_control()) return;
  access_.start_answers();
  // A protocol message that waits is not overtaken.
  while (!outbox_.empty() && may_send()) {
    Operation& send = outbox_.front();
    outbox_.remove(send);
    if (!start_or_end(send)) {
      outbox_.push_front(send);
      send.stage = OperationStage::kQueued;
      break;
    }
  }
  access_.start_waiting();
  submit_waiting_bulks();
}

// Starts |send|, which is in no list, or ends it without memory. False: to be tried again.
bool Pair::start_or_end(Operation& send) {
  try {
    return start_send(send);
  } catch (const std::bad_alloc&) {
    // It is in no list any more. The peer has to hear of what has begun.
    if (send.stage == OperationStage::kQueued || send.stage == OperationStage::kSubmitted) {
      end_unsent(send, Code::kOutOfMemory, {});
    } else {
      end_out_of_memory(send);
    }
    return true;
  }
}

// --- messages ---------------------------------------------------------------

// Inlined by force, so that |header| stays in registers: read back from memory it would wait for
// the bytes of the message before it.
[[gnu::always_inline]] inline Code Pair::send_sequenced(WireHeader header,
                                                        const SegmentView& payload,
                                                        uint32_t acknowledged) {
  header.sequence = sent_ + 1;
  header.acknowledged = acknowledged;
  header.credit = credit_returned_;
  const MessageHeader encoded = encode_header(header);
  const bool lossless = rail_->capabilities().lossless;
  if (!lossless) retention_.make_room(payload.length);
  const Code code = rail_->endpoint().send(encoded, payload);
  if (code != Code::kOk) [[unlikely]]
    return code;
  ++sent_;
  credit_reported_ = credit_returned_;
  reported_received_ = acknowledged;
  if (!lossless) retain(encoded, payload);
  return Code::kOk;
}

Code Pair::send_message(const WireHeader& header, const SegmentView& payload) {
  return send_sequenced(header, payload);
}

[[gnu::noinline]] void Pair::retain(const MessageHeader& header, const SegmentView& payload) {
  retention_.push(decode_header(header), payload);
}

bool Pair::send_at_once(uint32_t channel, uint64_t tag, iovec bytes) {
  if (!outbox_.empty() || !may_send()) [[unlikely]]
    return false;
  const Capabilities& can = rail_->capabilities();
  const uint64_t length = bytes.iov_len;
  const uint64_t cost = length + kMessageCost;
  if (!can.lossless || length >= PullClass::kLeastBytes || length > can.eager_limit_bytes ||
      length > can.max_payload_bytes || cost > credit_available()) {
    return false;
  }
  const WireHeader header{.kind = MessageKind::kEager,
                          .channel = static_cast<uint16_t>(channel),
                          .tag = tag,
                          .value = addressee_value(channel, length)};
  if (send_sequenced(header, SegmentView{Segments(&bytes, 1), 0, length}, received_) != Code::kOk)
      [[unlikely]] {
    return false;
  }
  credit_used_ += static_cast<uint32_t>(cost);
  note_sent(length, true);
  return true;
}

// True when |send| has left the outbox for good: complete, or a transfer of its own.
bool Pair::start_send(Operation& send) {
  if (send.kind != OperationKind::kSend) [[unlikely]]
    return access_.start(send);
  if ((send.run.sent | send.run.pull_id) != 0) return send_fragments(send);
  const uint64_t cost = send.length + kMessageCost;
  if (send.buffers.on_host && send.length <= rail_->capabilities().eager_limit_bytes &&
      cost <= credit_available()) [[likely]] {
    return send.length < PullClass::kLeastBytes ? start_copied(send) : start_long(send);
  }
  return start_rendezvous(send);
}

bool Pair::start_copied(Operation& send) {
  return send.length > rail_->capabilities().max_payload_bytes ? send_fragments(send)
                                                               : start_eager(send);
}

// Sends an eager message that the receiver may want to pull.
bool Pair::start_long(Operation& send) {
  const uint64_t length = send.length;
  if (!rail_->capabilities().gets_now || length > PullClass::kMostBytes) return start_copied(send);
  if (pull_plan_.pulls(length, &now_ns)) {
    PoolPtr<SendTransfer> transfer = make_pooled<SendTransfer>(common_.blocks, *this, send);
    const RequestBody request = transfer->make_request();
    if (request.source != RemoteKey{}) return start_pulled(send, std::move(transfer), request);
  }
  if (!pull_plan_.samples_next(length)) return start_copied(send);
  const uint64_t started_ns = now_ns();
  if (!start_copied(send)) return false;
  pull_plan_.copied(length, now_ns() - started_ns);
  return true;
}

bool Pair::start_pulled(Operation& send, PoolPtr<SendTransfer> transfer,
                        const RequestBody& request) {
  const PullBody body{request.sender_id, request.rail, request.source,
                      pull_plan_.copy_ns_per_mib(send.length)};
  iovec storage;
  const Code code =
      send_sequenced(header_of(MessageKind::kPull, send), view(&body, sizeof(body), &storage));
  if (code != Code::kOk) return refused(send, code);
  credit_used_ += static_cast<uint32_t>(send.length + kMessageCost);
  const uint64_t now = now_ns();
  transfer->pull_sent(now);
  if (push_at_ns_ == kForever) {
    push_at_ns_ = now + kPushAfterNs;
    common_.schedule.note_timer(push_at_ns_);
  }
  note_sent(send.length, true);
  send.stage = OperationStage::kTransfer;
  send.transfer.send = transfer.release();
  return true;
}

// The receiver does not read |transfer|'s message: it may not call the library for long, and this
// send must not wait for that. The bytes are copied after all.
void Pair::push(SendTransfer& transfer) {
  const uint64_t id = transfer.id();
  Operation& send = transfer.take_back();
  send.run.pull_id = id;
  enqueue(send);
}

// Pushes what was not pulled in time, or cannot be any more.
void Pair::push_overdue(uint64_t now_ns) {
  push_at_ns_ = kForever;
  // The answers may be here, and this side has not called the library for long.
  const bool graced = std::exchange(push_grace_, false);
  sends_.for_each([&](SendTransfer& transfer) {
    if (!transfer.is_pulled()) return;
    const uint64_t until = std::max(transfer.pulled_since_ns(), pull_answered_ns_) + kPushAfterNs;
    if (!transfer.lost_source() && (now_ns < until || !graced)) {
      push_grace_ = push_grace_ || now_ns >= until;
      push_at_ns_ = std::min(push_at_ns_, std::max(until, now_ns + kPushGraceNs));
      return;
    }
    if (!transfer.lost_source()) pull_plan_.late(transfer.length());
    push(transfer);
  });
  if (push_at_ns_ != kForever) common_.schedule.note_timer(push_at_ns_);
  pump();
}

void Pair::pull_answered(uint64_t bytes) {
  pull_plan_.answered(bytes);
  pull_answered_ns_ = now_ns();
}

// False when |send| shall be tried again. Refused for another reason than room it would be refused
// again, and ends.
bool Pair::refused(Operation& send, Code code) {
  if (code == Code::kWouldBlock || code == Code::kPeerLost) return false;
  end_unsent(send, code, fmt::format("send to rank {}: {}", rank_, code_text(code)));
  return true;
}

bool Pair::start_eager(Operation& send) {
  const Code code = send_sequenced(header_of(MessageKind::kEager, send),
                                   SegmentView{send.segments(), 0, send.length});
  if (code != Code::kOk) [[unlikely]]
    return refused(send, code);
  credit_used_ += static_cast<uint32_t>(send.length + kMessageCost);
  finish_send(send);
  return true;
}

// An eager message of several transport messages. The receiver copies one while this side fills the
// next.
bool Pair::send_fragments(Operation& send) {
  const uint64_t limit = rail_->capabilities().max_payload_bytes;
  const uint64_t pull_id = send.run.pull_id;
  while (send.run.sent < send.length) {
    const bool first = send.run.sent == 0 && pull_id == 0;
    WireHeader header = header_of(first ? MessageKind::kEagerFirst : MessageKind::kEagerMore, send);
    if (!first) {
      header.tag = pull_id;
      header.value = send.run.sent;
    }
    const uint64_t part = std::min(limit, send.length - send.run.sent);
    const Code code = send_sequenced(header, SegmentView{send.segments(), send.run.sent, part});
    if (code != Code::kOk) return refused(send, code);
    if (first) credit_used_ += static_cast<uint32_t>(send.length + kMessageCost);
    send.run.sent += part;
  }
  finish_send(send);
  return true;
}

bool Pair::start_rendezvous(Operation& send) {
  if (unanswered_ >= kMaxRequests) return false;
  if (send.length > kMaxMessageBytes) [[unlikely]] {
    common_.completer.complete(send, Code::kOutOfRange, "a message has less than 2^48 bytes");
    return true;
  }
  auto transfer = make_pooled<SendTransfer>(common_.blocks, *this, send);
  const RequestBody body = transfer->make_request();
  iovec storage;
  const Code code =
      send_sequenced(header_of(MessageKind::kRequest, send), view(&body, sizeof(body), &storage));
  if (code != Code::kOk) return refused(send, code);
  ++unanswered_;
  send.stage = OperationStage::kTransfer;
  transfer->request_sent();
  send.transfer.send = transfer.release();
  note_sent(send.length, false);
  return true;
}

void Pair::finish_send(Operation& send) {
  if (send.run.pull_id == 0) note_sent(send.length, true);
  send.outcome.bytes_sent = send.length;
  send.outcome.bytes_received = send.length;
  common_.completer.complete(send);
}

void Pair::note_sent(uint64_t length, bool eager) {
  hetcomm_counters_t& counters = rail_->counters();
  ++counters.messages_sent;
  counters.bytes_sent += length;
  ++(eager ? counters.eager_sent : counters.rendezvous_sent);
}

// --- ending -----------------------------------------------------------------

void Pair::end(Operation& operation, Code code, std::string text) {
  switch (operation.stage) {
    case OperationStage::kQueued:
      end_send(operation, code, std::move(text));
      break;
    case OperationStage::kArriving:
      detach_arriving(operation);
      common_.completer.complete(operation, code, std::move(text));
      break;
    case OperationStage::kTransfer:
      if (operation.transfer.send != nullptr) {
        operation.transfer.send->end(code, std::move(text));
      } else {
        operation.transfer.receive->end(code, std::move(text));
      }
      break;
    case OperationStage::kAwaiting:
    case OperationStage::kDirect:
      access_.end(operation, code, std::move(text));
      break;
    case OperationStage::kCopying:
      break;  // all of it has arrived; ends with the copy
    case OperationStage::kSubmitted:
    case OperationStage::kCollected:
    case OperationStage::kPosted:
    case OperationStage::kCollective:
      common_.completer.complete(operation, code, std::move(text));  // it is in no list of a pair
      break;
  }
}

void Pair::end_out_of_memory(Operation& operation) {
  if (operation.state() != OperationState::kPending) return;
  end(operation, Code::kOutOfMemory,
      text_or_none([&] { return fmt::format("{}: out of memory", describe(operation)); }));
}

void Pair::end_send(Operation& send, Code code, std::string text) {
  if (send.transfer.send != nullptr) {
    send.transfer.send->end(code, std::move(text));
    return;
  }
  outbox_.remove(send);
  end_unsent(send, code, std::move(text));
}

// Ends an eager send that has not left, or not wholly.
void Pair::end_unsent(Operation& send, Code code, std::string text) {
  const uint64_t pull_id = send.run.pull_id;
  const bool begun = send.run.sent > 0 || pull_id != 0;
  common_.completer.complete(send, code, std::move(text));
  if (begun) send_control(MessageKind::kWithdraw, pull_id, static_cast<uint64_t>(code), nullptr, 0);
}

// --- protocol messages ------------------------------------------------------

void Pair::send_control(MessageKind kind, uint64_t tag, uint64_t value, const void* body,
                        size_t size, Place place) {
  if (state_ == State::kLost || starved_) return;
  try {
    queue_control(kind, tag, value, body, size, place);
  } catch (const std::bad_alloc&) {
    starve();
  }
}

// A gap in what the peer is told: nothing that comes behind it may leave.
void Pair::starve() {
  if (state_ == State::kLost) return;
  starved_ = true;
  state_ = State::kConnecting;
  common_.schedule.update_due(*this);
}

void Pair::queue_control(MessageKind kind, uint64_t tag, uint64_t value, const void* body,
                         size_t size, Place place) {
  if (may_send()) {
    const WireHeader header{.kind = kind, .tag = tag, .value = value};
    iovec storage;
    if (send_sequenced(header, view(body, size, &storage)) == Code::kOk) {
      access_.left(kind, place);
      return;
    }
  }
  ControlMessage message{kind, tag, value, static_cast<uint32_t>(size), {}, received_, place};
  if (size > 0) std::memcpy(message.body.data(), body, size);
  control_.push_back(message);
}

// True when none is left.
bool Pair::send_waiting_control() {
  if (control_.empty()) return true;
  for (; control_sent_ < control_.size(); ++control_sent_) {
    const ControlMessage& message = control_[control_sent_];
    const WireHeader header{.kind = message.kind, .tag = message.tag, .value = message.value};
    iovec storage;
    // No more than what it may acknowledge: what this side refused meanwhile comes behind it.
    if (send_sequenced(header, view(message.body.data(), message.size, &storage),
                       message.received) != Code::kOk) {
      return false;
    }
    access_.left(message.kind, message.place);
  }
  control_.clear();
  control_sent_ = 0;
  if (received_ != reported_received_) common_.schedule.update_due(*this);
  return true;
}

void Pair::return_credit(uint64_t bytes) {
  credit_returned_ += static_cast<uint32_t>(bytes);
  if (credit_returned_ - credit_reported_ >= credit_granted_ / 4)
    common_.schedule.update_due(*this);
}

void Pair::acknowledgement_due() {
  owed_ = received_;
  common_.schedule.acknowledgement_due(*this);
}

void Pair::send_update() {
  if (starved_) {
    out_of_memory();
    return;
  }
  report_refused_bulks();
  if (!owes_acknowledgement()) owed_ = reported_received_;  // so that the difference stays small
  if (state_ != State::kReady) return;
  if (!outbox_.empty() || access_.has_to_start()) pump();
  // What waits in |control_| comes before the acknowledgement of what it refuses.
  if (state_ != State::kReady || !control_.empty()) return;
  if (credit_returned_ == credit_reported_ && received_ == reported_received_) return;
  const WireHeader header{
      .kind = MessageKind::kUpdate, .acknowledged = received_, .credit = credit_returned_};
  if (rail_->endpoint().send(encode_header(header), SegmentView{}) != Code::kOk) {
    return;  // on_writable comes back to it
  }
  credit_reported_ = credit_returned_;
  reported_received_ = received_;
  bytes_unreported_ = 0;
}

void Pair::ask_for_acknowledgement() {
  if (state_ != State::kReady || retention_.empty() || !control_.empty()) return;
  const WireHeader header{.kind = MessageKind::kUpdate,
                          .flags = kFlagAnswer,
                          .acknowledged = received_,
                          .credit = credit_returned_};
  // Without room the caller asks again.
  if (rail_->endpoint().send(encode_header(header), SegmentView{}) != Code::kOk) return;
}

// --- bulk -------------------------------------------------------------------

// An endpoint that throws has not accepted it. The peer may ask for what this connection cannot do.
Code Pair::start_bulk(OwnedBulk& bulk) {
  const EndpointAbilities& can = bulk.rail->abilities();
  try {
    if (bulk.is_get) return can.gets != nullptr ? can.gets->get(bulk) : Code::kUnsupported;
    return can.puts != nullptr ? can.puts->put(bulk) : Code::kUnsupported;
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
}

void Pair::submit_bulk(OwnedBulk& bulk) {
  if (state_ == State::kReady) {
    const Code code = start_bulk(bulk);
    if (code == Code::kOk) {
      bulk.rail->sending.start(bulk.local.length, common_.now_ns());
      bulk.started = true;
      return;
    }
    if (code != Code::kWouldBlock && code != Code::kPeerLost) {
      // Not for want of room: it would be refused again.
      bulk.refused = code;
      refused_bulks_.push(bulk);
      common_.schedule.update_due(*this);
      return;
    }
  }
  bulk.waiting = true;
  waiting_bulks_.push(bulk);
}

void Pair::submit_waiting_bulks() {
  // Each once: it may come back to the end of the list.
  for (size_t left = waiting_bulks_.size(); left > 0; --left) {
    OwnedBulk& bulk = waiting_bulks_.pop();
    bulk.waiting = false;
    submit_bulk(bulk);
  }
}

void Pair::bulk_ended(OwnedBulk& bulk, Code code) {
  if (bulk.started) bulk.rail->sending.finish(bulk.local.length, common_.now_ns());
  if (code == Code::kOk) bulk.rail->counters().bulk_bytes += bulk.local.length;
  bulk.started = false;
  bulk.rail = nullptr;
  bulk.owner->on_bulk(bulk, code);
}

void Pair::report_refused_bulks() {
  while (!refused_bulks_.empty()) {
    OwnedBulk& bulk = refused_bulks_.pop();
    bulk_ended(bulk, std::exchange(bulk.refused, Code::kOk));
  }
}

void Pair::request_answered() {
  // Whoever waits for the bound starts at the end of the pass.
  if (unanswered_-- == kMaxRequests) common_.schedule.update_due(*this);
}

bool Pair::cancel_bulk(OwnedBulk& bulk) {
  bool breaks = false;
  const auto same = [&](const OwnedBulk& each) { return &each == &bulk; };
  if (bulk.refused != Code::kOk) {
    bulk.refused = Code::kOk;
    refused_bulks_.remove_if(same);
  } else if (bulk.waiting) {
    bulk.waiting = false;
    waiting_bulks_.remove_if(same);
  } else if (bulk.rail != nullptr) {
    const EndpointAbilities& can = bulk.rail->abilities();
    breaks = bulk.is_get ? can.gets->cancel(bulk) : can.puts->cancel(bulk);
    if (bulk.started) bulk.rail->sending.drop(bulk.local.length);
  }
  bulk.started = false;
  bulk.rail = nullptr;
  return breaks;
}

uint64_t Pair::service_time(uint64_t started_ns, uint64_t now_ns) {
  const uint64_t from = std::max(started_ns, last_transfer_ns_);
  last_transfer_ns_ = now_ns;
  return now_ns - from;
}

bool Pair::flushed() const {
  if (state_ == State::kLost || state_ == State::kIdle) return true;
  if (!outbox_.empty() || !control_.empty() || !access_.flushed()) return false;
  // What may be lost is still here until the peer has said that it has it.
  if (owes_acknowledgement()) return false;
  return retention_.empty() && std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) {
           return rail->endpoint().flushed();
         });
}

hetcomm_counters_t* Pair::counters_of(std::string_view transport) {
  for (hetcomm_counters_t& counters : counters_) {
    if (transport == counters.transport) return &counters;
  }
  hetcomm_counters_t& counters = counters_.emplace_back();
  const size_t length = std::min(transport.size(), sizeof(counters.transport) - 1);
  std::copy_n(transport.begin(), length, counters.transport);
  return &counters;
}

}  // namespace hetcomm
