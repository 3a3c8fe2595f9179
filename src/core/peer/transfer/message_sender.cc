#include "src/core/peer/transfer/message_sender.h"

#include <algorithm>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/transfer/transfers.h"

namespace hetcomm {
namespace {

// A message is pushed if the receiver has read none for this long.
constexpr uint64_t kPushAfterNs = 200'000;
// If a message seems to be late, this rank first handles arrived messages for this time. An answer
// of the receiver may be among them.
constexpr uint64_t kPushGraceNs = 20'000;

}  // namespace

bool MessageSender::send_at_once(uint32_t channel, uint64_t tag, iovec bytes) {
  if (!association_.outbox().empty() || !association_.may_send()) [[unlikely]]
    return false;
  const Capabilities& can = current().capabilities();
  const uint64_t length = bytes.iov_len;
  const uint64_t cost = length + kMessageCost;
  if (!can.lossless || length >= PullClass::kMinBytes || length > can.eager_limit_bytes ||
      length > can.max_payload_bytes || cost > association_.send_credit().available()) {
    return false;
  }
  const WireHeader header{.kind = MessageKind::kEager,
                          .channel = static_cast<uint16_t>(channel),
                          .tag = tag,
                          .value = addressee_value(channel, length)};
  if (association_.sequencer().send(header, ExtentView{Extents(&bytes, 1), 0, length}) != Code::kOk)
      [[unlikely]] {
    return false;
  }
  association_.send_credit().use(cost);
  note_sent(length, true);
  return true;
}

// Sends an eager message that is long enough to be pulled by the receiver.
bool MessageSender::start_long(Operation& send) {
  const uint64_t length = send.length;
  if (!current().capabilities().gets_now || length > PullClass::kMaxBytes) {
    return start_copied(send);
  }
  if (rule_.pulls(length, &now_ns)) {
    auto transfer = make_pooled<SendTransfer>(transfers_.data().blocks, transfers_, send);
    const AnnounceBody announcement = transfer->make_announcement();
    if (announcement.source != RemoteKey{})
      return start_pulled(send, std::move(transfer), announcement);
  }
  if (!rule_.samples_next(length)) return start_copied(send);
  const uint64_t started_ns = now_ns();
  if (!start_copied(send)) return false;
  rule_.copied(length, now_ns() - started_ns);
  return true;
}

bool MessageSender::start_pulled(Operation& send, PoolPtr<SendTransfer> transfer,
                                 const AnnounceBody& announcement) {
  const PullBody body{announcement.sender_id, announcement.rail, announcement.source,
                      rule_.copy_ns_per_mib(send.length)};
  const Code code = SendTransfer::announce(transfer, header_of(MessageKind::kPull, send), body);
  if (code != Code::kOk) return association_.refused(send, code);
  association_.send_credit().use(send.length + kMessageCost);
  const uint64_t now = now_ns();
  transfers_of(send).send->pull_sent(now);
  if (push_at_ns_ == kForever) {
    push_at_ns_ = now + kPushAfterNs;
    association_.note_timer(push_at_ns_);
  }
  note_sent(send.length, true);
  return true;
}

// The send must not wait for the receiver, which may not call the library for a long time.
void MessageSender::push(SendTransfer& transfer) {
  const uint64_t id = transfer.id();
  Operation& send = transfer.take_back();
  send.run.pull_id = id;
  association_.enqueue(send);
}

void MessageSender::push_overdue(uint64_t now_ns) {
  push_at_ns_ = kForever;
  // If this rank has not called the library for a long time, answers may have arrived that it has
  // not handled yet. Late messages are therefore checked a second time.
  const bool graced = std::exchange(push_grace_, false);
  transfers_.sends().for_each([&](SendTransfer& transfer) HETCOMM_UNDER_BATON {
    if (!transfer.is_pulled()) return;
    const uint64_t until = std::max(transfer.pulled_since_ns(), pull_answered_ns_) + kPushAfterNs;
    if (!transfer.lost_source() && (now_ns < until || !graced)) {
      push_grace_ = push_grace_ || now_ns >= until;
      push_at_ns_ = std::min(push_at_ns_, std::max(until, now_ns + kPushGraceNs));
      return;
    }
    if (!transfer.lost_source()) rule_.late(transfer.length());
    push(transfer);
  });
  if (push_at_ns_ != kForever) association_.note_timer(push_at_ns_);
  association_.pair().pump();
}

void MessageSender::pull_answered(uint64_t bytes) {
  rule_.answered(bytes);
  pull_answered_ns_ = now_ns();
}

// Sends an eager message that needs several transport messages. The receiver copies one while this
// rank fills the next.
bool MessageSender::send_fragments(Operation& send) {
  const uint64_t limit = current().capabilities().max_payload_bytes;
  const uint64_t pull_id = send.run.pull_id;
  while (send.run.sent < send.length) {
    const bool first = send.run.sent == 0 && pull_id == 0;
    WireHeader header = header_of(first ? MessageKind::kEagerFirst : MessageKind::kEagerMore, send);
    if (!first) {
      header.tag = pull_id;
      header.value = send.run.sent;
    }
    const uint64_t length = std::min(limit, send.length - send.run.sent);
    const Code code =
        association_.sequencer().send(header, ExtentView{send.extents(), send.run.sent, length});
    if (code != Code::kOk) return association_.refused(send, code);
    if (first) association_.send_credit().use(send.length + kMessageCost);
    send.run.sent += length;
  }
  finish(send);
  return true;
}

bool MessageSender::start_rendezvous(Operation& send) {
  if (!transfers_.may_announce()) return false;
  if (send.length > kMaxMessageBytes) [[unlikely]] {
    transfers_.data().completer.complete(send, Code::kOutOfRange,
                                         "a message has less than 2^48 bytes");
    return true;
  }
  auto transfer = make_pooled<SendTransfer>(transfers_.data().blocks, transfers_, send);
  const AnnounceBody body = transfer->make_announcement();
  const Code code = SendTransfer::announce(transfer, header_of(MessageKind::kAnnounce, send), body);
  if (code != Code::kOk) return association_.refused(send, code);
  transfers_.announcement_left();
  transfers_of(send).send->announcement_sent();
  note_sent(send.length, false);
  return true;
}

}  // namespace hetcomm
