#include "src/core/peer/transfer/message_receiver.h"

#include <algorithm>
#include <new>
#include <type_traits>

#include "src/base/baton_role.h"
#include "src/base/copy.h"
#include "src/base/text.h"
#include "src/core/peer/transfer/transfers.h"

namespace hetcomm {

MessageReceiver::MessageReceiver(Association& association, TransferTable& transfers,
                                 PairListener& listener)
    : association_(association), transfers_(transfers), listener_(listener) {
  announced_.make_room();
}

MessageReceiver::~MessageReceiver() {
  while (!arriving_.empty()) {
    Incoming& message = arriving_.pop();
    if (message.operation == nullptr && !message.queued) free(message);
  }
}

// Keeps a message that has no receive yet. Returns whether all bytes were copied.
bool MessageReceiver::keep_eager(const WireHeader& header, ConstByteSpan payload,
                                 MatchTable& table) {
  Incoming* message =
      new_message(header.tag, payload.size(), payload.size() + kMessageCost, Keeps::kBytes);
  if (message == nullptr) return false;
  if (!payload.empty()) copy_bytes(message->bytes, payload.data(), payload.size());
  message->received = payload.size();
  queue_unexpected(table, *message, header);
  return true;
}

// Creates the record of a message that has begun to arrive, with space for its eager bytes if
// |keeps| is kBytes. If memory runs out, ends the pair and returns null.
Incoming* MessageReceiver::new_message(uint64_t tag, uint64_t length, uint64_t credit,
                                       Keeps keeps) {
  void* memory = data().blocks.take(sizeof(Incoming));
  if (memory == nullptr) [[unlikely]] {
    association_.pair().out_of_memory();
    return nullptr;
  }
  static_assert(std::is_trivially_destructible_v<Incoming>);
  static_assert(sizeof(Incoming) <= 256, "kMaxAnnounced says what they cost");
  auto* message = new (memory) Incoming;
  message->owner = this;
  message->source = rank();
  message->tag = tag;
  message->length = length;
  message->credit = credit;
  if (keeps == Keeps::kBytes && !message->make_room(data().blocks)) [[unlikely]] {
    free(*message);
    association_.pair().out_of_memory();
    return nullptr;
  }
  return message;
}

void MessageReceiver::receive_first(const WireHeader& header, ConstByteSpan payload) {
  const uint64_t length = length_of(header);
  if (arriving_.find(0) != nullptr || payload.size() >= length ||
      length > association_.receive_credit().granted()) {
    association_.violated("beginning of a message where none may be");
    return;
  }
  if (!association_.take_credit(length + kMessageCost)) return;
  count_received(length);
  MatchTable* table = table_for(header);
  Operation* receive = match(table, header.tag);
  // If the receive is in host memory, the fragments are copied directly into it.
  const bool direct = receive != nullptr && receive->buffers.on_host;
  Incoming* message = new_message(header.tag, length, length + kMessageCost,
                                  direct ? Keeps::kNothing : Keeps::kBytes);
  if (message == nullptr) {
    if (receive != nullptr) data().completer.complete(*receive, Code::kOutOfMemory);
    return;
  }
  arriving_sampled_ = length >= PullClass::kMinBytes && samples(length);
  arriving_fragments_ = 0;
  arriving_ns_ = 0;
  await_bytes(*message, table, receive, header);
  receive_more(WireHeader{.kind = MessageKind::kEagerMore}, payload);
}

// Removes and returns the first matching receive of |table|, which may be null. Returns null if
// there is no such receive.
Operation* MessageReceiver::match(MatchTable* table, uint64_t tag) {
  Operation* receive = table != nullptr ? table->match_message(rank(), tag) : nullptr;
  if (receive != nullptr) receive->phase = OperationPhase::kSubmitted;
  return receive;
}

// Lists |message|, whose bytes are still to arrive in fragments. Attaches it to |receive| or, if
// that is null, queues it in |table|. Either may be null.
void MessageReceiver::await_bytes(Incoming& message, MatchTable* table, Operation* receive,
                                  const WireHeader& header) {
  arriving_.add(message);
  if (receive != nullptr) {
    attach(message, *receive);
  } else if (table != nullptr) {
    queue_unexpected(*table, message, header);
  }
}

void MessageReceiver::receive_more(const WireHeader& header, ConstByteSpan payload) {
  Incoming* message = arriving_.find(header.tag);
  // A pushed message that is not found was pulled before the sender began to push it. The pushed
  // part is dropped.
  if (message == nullptr && header.tag != 0) return;
  if (message == nullptr || payload.empty() || header.value != message->received ||
      payload.size() > message->length - message->received) {
    association_.violated("part of a message where none may be");
    return;
  }
  const bool sampled = arriving_sampled_ && header.tag == 0;
  const uint64_t started_ns = sampled ? now_ns() : 0;
  if (message->bytes != nullptr) {
    copy_long(message->bytes + message->received, payload.data(), payload.size());
  } else if (message->operation != nullptr) {
    const uint64_t room = message->operation->length;
    if (message->received < room) {
      const uint64_t part = std::min<uint64_t>(payload.size(), room - message->received);
      scatter(message->operation->extents(), message->received, payload.first(part));
    }
  }
  message->received += payload.size();
  if (sampled) {
    ++arriving_fragments_;
    arriving_ns_ += now_ns() - started_ns;
  }
  if (message->received == message->length) finish_arriving(*message);
}

void MessageReceiver::finish_arriving(Incoming& message) {
  arriving_.remove(message);
  Operation* receive = message.operation;
  if (arriving_sampled_ && message.sender_id == 0) {
    const bool copied = message.queued || (receive != nullptr && receive->buffers.on_host &&
                                           message.length <= receive->length);
    if (copied) took(message.length, arriving_ns_, arriving_fragments_);
  }
  if (message.queued) return;  // complete, but still unmatched
  if (receive != nullptr) {
    receive->carrier = nullptr;
    data().delivery.deliver(*receive, rank(), message.tag, message.payload(), message.length);
  }
  association_.give_back_credit(message.credit);
  free(message);
}

void MessageReceiver::receive_announced(const WireHeader& header, ConstByteSpan payload) {
  AnnounceBody body;
  if (!decode_body(payload, &body)) {
    association_.violated("announcement of a wrong size");
    return;
  }
  count_received(length_of(header));
  MatchTable* table = table_for(header);
  if (table == nullptr) {
    refuse_announced(channel_of(header), body.sender_id);
    return;
  }
  if (announced_.count() >= kMaxAnnounced) {
    association_.violated("too many announcements");
    return;
  }
  Incoming* message = new_message(header.tag, length_of(header), 0, Keeps::kNothing);
  if (message == nullptr) return;
  announce(*message, body);
  hand_over(*message, *table, match(table, header.tag), header);
}

// Notifies the sender that the message will never be received.
void MessageReceiver::refuse_announced(uint32_t channel, uint64_t sender_id) {
  // The sender is notified of an abort separately.
  if (data().channels.is_aborted(channel)) return;
  const Channel* const own = data().channels.find(channel);
  if (own != nullptr && !own->closed) {
    association_.send_reason(MessageKind::kStop, sender_id, own->collectives_failed);
  } else {
    association_.send_protocol(MessageKind::kStop, sender_id, Code::kAborted);
  }
}

// Records in |message| the location of its data, which |announcement| contains.
void MessageReceiver::announce(Incoming& message, const AnnounceBody& announcement) {
  announced_.make_room();  // does not throw, since the constructor called it first
  announced_.insert(message, announcement.sender_id);
  message.rendezvous = true;
  message.sender_id = announcement.sender_id;
  message.rail = announcement.rail;
  message.source_key = announcement.source;
  message.transports = announcement.transports;
}

// Attaches |message| to |receive|, which it was matched with. If |receive| is null, queues
// |message| as unexpected.
void MessageReceiver::hand_over(Incoming& message, MatchTable& table, Operation* receive,
                                const WireHeader& header) {
  if (receive == nullptr) {
    queue_unexpected(table, message, header);
  } else {
    attach_new(message, *receive);
  }
}

// Handles an eager message whose bytes this rank reads from the sender's memory. It reads them
// immediately, since the sender does not wait for a matching receive.
void MessageReceiver::receive_pull(const WireHeader& header, ConstByteSpan payload) {
  PullBody body;
  const uint64_t length = length_of(header);
  if (!decode_body(payload, &body) || body.sender_id == 0 ||
      length > association_.receive_credit().granted() || length > PullClass::kMaxBytes) {
    association_.violated("message to be pulled where none may be");
    return;
  }
  const uint64_t credit = length + kMessageCost;
  if (!association_.take_credit(credit)) return;
  count_received(length);
  MatchTable* table = table_for(header);
  if (table == nullptr) {
    // The message will never be received. This rank drops it and reports it as done, which
    // completes the send.
    association_.give_back_credit(credit);
    association_.send_protocol(MessageKind::kDone, body.sender_id, 0);
    return;
  }
  Operation* receive = match(table, header.tag);
  const bool direct = receive != nullptr && receive->buffers.on_host;
  Incoming* message =
      new_message(header.tag, length, credit, direct ? Keeps::kNothing : Keeps::kBytes);
  if (message == nullptr) {
    if (receive != nullptr) data().completer.complete(*receive, Code::kOutOfMemory);
    return;
  }
  iovec own{message->bytes, length};
  const uint64_t started_ns = now_ns();
  const Code code = direct ? pull(body, receive->extents(), std::min(length, receive->length))
                           : pull(body, Extents(&own, 1), length);
  if (code != Code::kOk) {
    // These codes concern only this connection, so later messages may still be pulled.
    const bool works = code == Code::kCancelled || code == Code::kPeerLost;
    if (!works && pull_chooser_.failed(length)) tell_pull_pause(length);
    message->sender_id = body.sender_id;
    await_bytes(*message, table, receive, header);
    // The sender then copies the message into the connection, or reports why it cannot.
    association_.send_protocol(MessageKind::kPush, body.sender_id, 0);
    return;
  }
  const bool whole = !direct || length <= receive->length;
  const bool tells =
      whole && pull_chooser_.pulled(length, now_ns() - started_ns, body.copy_ns_per_mib);
  if (direct) {
    data().delivery.delivered(*receive, rank(), header.tag, length);
    association_.give_back_credit(credit);
    free(*message);
  } else {
    message->received = length;
    hand_over(*message, *table, receive, header);
  }
  association_.send_protocol(MessageKind::kDone, body.sender_id, 0);
  if (tells) tell_pull_pause(length);
}

// Reads |length| bytes from the sender's memory. Returns kCancelled if this connection cannot read
// them, or can no longer do so.
Code MessageReceiver::pull(const PullBody& from, Extents into, uint64_t length) {
  Rail& rail = association_.receiving_on();
  if (!rail.capabilities().gets_now || from.rail != rail.id || !rail.known) return Code::kCancelled;
  Bulk bulk;
  bulk.local = ExtentView{into, 0, length};
  bulk.key = from.source;
  const Code code = rail.abilities().immediate_gets->get_now(bulk);
  if (code == Code::kOk) {
    ++rail.counters().bulk_by_get;
    rail.counters().bulk_bytes += length;
  }
  return code;
}

// Returns whether the copy of an eager message of |bytes| that has arrived should be measured. If
// the connection prefers gets, also switches such messages to pulling.
bool MessageReceiver::samples(uint64_t bytes) {
  if (!association_.receiving_on().capabilities().gets_now) return false;
  if (association_.receiving_on().capabilities().prefers_get && pull_chooser_.insist(bytes)) {
    tell_pull_pause(bytes);
  }
  return pull_chooser_.samples_next(bytes);
}

void MessageReceiver::took(uint64_t bytes, uint64_t elapsed_ns, uint64_t fragments) {
  if (pull_chooser_.took(bytes, elapsed_ns, fragments)) tell_pull_pause(bytes);
}

void MessageReceiver::tell_pull_pause(uint64_t bytes) {
  const size_t pull_class = PullClass::of(bytes);
  association_.send_protocol(MessageKind::kPullPause, pull_class,
                             pull_chooser_.pause_of(pull_class));
}

// Matches |message|, which is in no list yet, with |receive|. If memory runs out, frees |message|,
// fails |receive| and throws std::bad_alloc.
void MessageReceiver::attach_new(Incoming& message, Operation& receive) {
  receive.phase = OperationPhase::kSubmitted;  // in no list
  try {
    attach(message, receive);
  } catch (const std::bad_alloc&) {
    if (receive.phase == OperationPhase::kSubmitted) {
      free(message);
      data().completer.complete(receive, Code::kOutOfMemory);
    }
    throw;
  }
}

void MessageReceiver::attach(Incoming& message, Operation& receive) {
  if (message.rendezvous) {
    // If this throws, the message stays in the list that it is in.
    auto transfer = make_pooled<ReceiveTransfer>(data().blocks, transfers_, receive, message);
    if (message.queued) message.table->remove_unexpected(&message);
    receive.carrier = &association_.pair();
    receive.phase = OperationPhase::kTransfer;
    transfers_of(receive).receive = transfer.release();
    association_.give_back_credit(message.credit);
    free(message);
    transfers_of(receive).receive->start();
    return;
  }
  if (message.queued) message.table->remove_unexpected(&message);
  if (message.arriving) {
    message.operation = &receive;
    receive.carrier = &association_.pair();
    receive.phase = OperationPhase::kArriving;
    if (message.bytes != nullptr && receive.buffers.on_host) {
      // The bytes that have arrived are copied to the receive now. The rest will be copied there
      // directly.
      const uint64_t part = std::min(message.received, receive.length);
      scatter(receive.extents(), 0, message.payload().first(part));
      message.drop_bytes(data().blocks);
    }
    return;
  }
  data().delivery.deliver(receive, rank(), message.tag, message.payload(), message.length);
  association_.give_back_credit(message.credit);
  free(message);
}

void MessageReceiver::attach_announced(Operation& receive, const AnnounceBody& body,
                                       uint64_t length) {
  receive.phase = OperationPhase::kSubmitted;  // in no list
  Incoming* message = new_message(0, length, 0, Keeps::kNothing);
  if (message == nullptr) {
    data().completer.complete(receive, Code::kOutOfMemory);
    return;
  }
  announce(*message, body);
  attach_new(*message, receive);
}

void MessageReceiver::detach(Operation& receive) {
  if (Incoming* message = arriving_.find(receive); message != nullptr) {
    message->operation = nullptr;
    // The receive was matched, so its outcome names the message, which is lost.
    receive.outcome.source = rank();
    receive.outcome.matched_tag = message->tag;
  }
  receive.carrier = nullptr;
}

void MessageReceiver::queue_unexpected(MatchTable& table, Incoming& message,
                                       const WireHeader& header) {
  table.add_unexpected(&message);
  data().engine.note_arrival();
  if ((header.flags & kFlagCollective) != 0) listener_.on_unexpected_message(rank(), header);
}

void MessageReceiver::free(Incoming& message) {
  if (message.rendezvous) announced_.erase(message);
  message.drop_bytes(data().blocks);
  data().blocks.give(&message, sizeof(message));
}

void MessageReceiver::drop(Incoming& message, Tell tell) {
  if (message.arriving) return;  // freed when its last fragment has arrived
  if (message.rendezvous && tell == Tell::kSender) {
    association_.send_protocol(MessageKind::kStop, message.sender_id, Code::kAborted);
  }
  association_.give_back_credit(message.credit);
  free(message);
}

void MessageReceiver::fail_everything(const Status& why) {
  while (!arriving_.empty()) {
    Incoming& message = arriving_.pop();
    if (message.queued) message.table->remove_unexpected(&message);
    if (message.operation != nullptr) {
      data().completer.complete(
          *message.operation, why.code(), text_or_none([&]() HETCOMM_UNDER_BATON {
            return fmt::format("receive from rank {}: {}", rank(), why.text());
          }));
    }
    free(message);
  }
}

// Drops a rendezvous that the sender has withdrawn, if it is still queued here.
void MessageReceiver::drop_withdrawn(uint64_t sender_id) {
  Incoming* const found = announced_.find(sender_id);
  if (found == nullptr || !found->queued) return;
  found->table->remove_unexpected(found);
  association_.give_back_credit(found->credit);
  free(*found);
}

// Handles the withdrawal of a message by its sender: an eager one with missing bytes, or a
// rendezvous.
void MessageReceiver::receive_withdraw(const WireHeader& header, ConstByteSpan payload) {
  const PeerReason why(rank(), header, payload);
  if (Incoming* message = arriving_.find(header.tag); message != nullptr) {
    arriving_.remove(*message);
    if (message->queued) message->table->remove_unexpected(message);
    // If the communicator was aborted, the abort itself ends the receive, with the abort's reason.
    if (message->operation != nullptr && !why.is_abort()) {
      Operation& receive = *message->operation;
      receive.carrier = nullptr;
      const Status told = why.status();
      data().completer.complete(receive, told.code(), text_of_told(receive, told));
    }
    association_.give_back_credit(message->credit);
    free(*message);
    return;
  }
  if (header.tag == 0) return;
  association_.acknowledgement_due();  // the peer counts a put until its withdrawal is acknowledged
  ReceiveTransfer* const found = transfers_.find_receive(header.tag);
  if (found != nullptr) {
    found->withdrawn(why);
    return;
  }
  drop_withdrawn(header.tag);
}

}  // namespace hetcomm
