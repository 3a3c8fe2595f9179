// The receiving half of a pair: everything here is driven by what the peer sent and trusts none of
// it.
#include <algorithm>
#include <new>
#include <type_traits>

#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {
namespace {

// On a connection that may lose messages the peer keeps them until acknowledged; tell it often
// enough.
constexpr uint32_t kAcknowledgeEvery = 32;
constexpr uint64_t kAcknowledgeBytes = 64 * 1024;
constexpr size_t kMostEarlyGrants = 4096;
constexpr uint64_t kTellAgainNs = 10'000'000;

}  // namespace

Rail::Rail(Pair& pair, std::unique_ptr<Endpoint> endpoint, uint64_t rail_id, size_t transport_index,
           hetcomm_counters_t* counters)
    : id(rail_id),
      transport(transport_index),
      pair_(pair),
      endpoint_(std::move(endpoint)),
      capabilities_(endpoint_->capabilities()),
      counters_(counters),
      abilities_(endpoint_->abilities()) {
  if (capabilities_.lossless) return;
  capabilities_.max_payload_bytes = std::min(
      capabilities_.max_payload_bytes, pair.common().connector.kept_payload_bytes(pair.rank()));
}

// An upcall that runs out of memory half way has lost what it was about: nothing can be promised to
// the peer any more.
template <typename Upcall>
void Rail::guarded(Upcall&& upcall) {
  if (dropped) [[unlikely]]
    return;
  try {
    upcall();
  } catch (const std::bad_alloc&) {
    pair_.out_of_memory();
  }
}

void Rail::on_message(const MessageHeader& header, ConstByteSpan payload) {
  guarded([&] { pair_.receive(*this, header, payload); });
}
void Rail::on_put(uint64_t cookie, uint64_t length) {
  guarded([&] {
    if (PutTarget* target = pair_.targets_.find(cookie)) target->on_arrived(length);
  });
}
void Rail::on_bulk_complete(Bulk& bulk, Code code) {
  auto& owned = static_cast<OwnedBulk&>(bulk);
  guarded([&] { pair_.bulk_ended(owned, code); });
}
void Rail::on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) {
  guarded([&] { pair_.access_.mapped(*this, key, mapped); });
}
void Rail::on_unmap(const RemoteKey& key) {
  guarded([&] { pair_.access_.unmap(*this, key); });
}
void Rail::on_writable() {
  guarded([&] { pair_.writable(*this); });
}
void Rail::on_doubt(const StreamId& stream) {
  guarded([&] { pair_.common_.listener.on_doubt(pair_.rank_, stream); });
}
void Rail::on_failed(const Status& why) {
  guarded([&] { pair_.rail_failed(*this, why); });
}

void Pair::out_of_memory() {
  if (state_ == State::kLost) return;
  lose(status_or_code(Code::kOutOfMemory, [&] {
    return fmt::format("rank {} ran out of memory for messages of rank {}", common_.rank, rank_);
  }));
  tell_loss();
}

// The peer may wait for what this side has given up: it is told as soon as there is memory.
void Pair::tell_loss() {
  untold_ = true;
  try {
    common_.control->give_up(rank_, lost_.text());
    untold_ = false;
  } catch (const std::bad_alloc&) {
    retry_at_ns_ = common_.engine.refresh_now() + kTellAgainNs;
    common_.schedule.note_timer(retry_at_ns_);
  }
}

void Pair::violated(Rail& rail, std::string_view what) {
  rail_failed(rail, Status(Code::kPeerLost, fmt::format("protocol violated: {}", what)));
}

void Pair::receive(Rail& rail, const MessageHeader& raw, ConstByteSpan payload) {
  const WireHeader header = decode_header(raw);
  receiving_on_ = &rail;
  if (!rail.open) [[unlikely]] {
    receive_unopened(rail, header);
    return;
  }
  // What comes late, over a rail that is slower, knows less.
  const bool more_credit = static_cast<int32_t>(header.credit - credit_returned_by_peer_) > 0;
  if (more_credit) credit_returned_by_peer_ = header.credit;
  const bool awaited = access_.awaits_acknowledgement();
  if (!retention_.empty() || awaited) {
    if (!was_sent(rail, header.acknowledged)) return;
    retention_.acknowledge(header.acknowledged);
    access_.answers_acknowledged(header.acknowledged);
  }
  if (header.kind == MessageKind::kUpdate) {
    if ((header.flags & kFlagAnswer) != 0) common_.schedule.update_due(*this);
  } else {
    if (header.sequence != received_ + 1) [[unlikely]] {
      // Sent again after a broken connection; we have it already.
      if (static_cast<int32_t>(header.sequence - received_) <= 0) return;
      violated("message out of order");
      return;
    }
    received_ = header.sequence;
    const bool lossless = rail.capabilities().lossless;  // it may be gone afterwards
    if (header.kind == MessageKind::kEager) [[likely]] {
      receive_eager(header, payload);
    } else {
      dispatch(header, payload);
    }
    if (!lossless) {
      bytes_unreported_ += payload.size();
      if (received_ - reported_received_ >= kAcknowledgeEvery ||
          bytes_unreported_ >= kAcknowledgeBytes) {
        common_.schedule.update_due(*this);
      }
    }
  }
  // After the message, which may say that one of them was refused. What was sent meanwhile is not
  // acknowledged yet.
  if (awaited) [[unlikely]]
    access_.acknowledged(header.acknowledged);
  if (more_credit && (!outbox_.empty() || !control_.empty())) pump();
  if (more_credit && access_.waits_for_credit()) [[unlikely]]
    access_.credit_came();
}

bool Pair::was_sent(Rail& rail, uint32_t sequence) {
  if (static_cast<int32_t>(sequence - sent_) <= 0) [[likely]]
    return true;
  violated(rail, "acknowledgement of what was not sent");
  return false;
}

void Pair::receive_unopened(Rail& rail, const WireHeader& header) {
  if (header.kind == MessageKind::kOpen) {
    opened(rail, header);
  } else {
    violated(rail, "message before open");
  }
}

void Pair::dispatch(const WireHeader& header, ConstByteSpan payload) {
  switch (header.kind) {
    case MessageKind::kEagerFirst:
      receive_first(header, payload);
      return;
    case MessageKind::kEagerMore:
      receive_more(header, payload);
      return;
    case MessageKind::kPull:
      receive_pull(header, payload);
      return;
    case MessageKind::kPush:
      receive_push(header.tag);
      return;
    case MessageKind::kPullPause:
      receive_pull_pause(header);
      return;
    case MessageKind::kRequest:
      receive_request(header, payload);
      return;
    case MessageKind::kGrant: {
      GrantBody grant;
      if (!decode_body(payload, &grant)) {
        violated("grant of a wrong size");
      } else if (is_early(grant.rail)) {
        if (early_grants_.size() >= kMostEarlyGrants) {
          violated("too many grants for a connection that is not open");
          return;
        }
        early_grants_.push_back(grant);
      } else if (SendTransfer* transfer = sends_.find(grant.sender_id); transfer != nullptr) {
        transfer->granted(grant);
      }
      return;
    }
    case MessageKind::kDone:
      if (SendTransfer* transfer = sends_.find(header.tag); transfer != nullptr) transfer->done();
      return;
    case MessageKind::kStop:
      if (SendTransfer* transfer = sends_.find(header.tag); transfer != nullptr) {
        transfer->stopped(static_cast<Code>(static_cast<int32_t>(header.value)));
      }
      return;
    case MessageKind::kWithdraw:
      receive_withdraw(header);
      return;
    case MessageKind::kWake:
      stay_connected();
      return;
    case MessageKind::kRailDown:
      if (Rail* rail = find_rail(header.tag); rail != nullptr) {
        rail_failed(*rail, Status(Code::kPeerLost, "the peer has given it up"), false);
      } else if (is_early(header.tag)) {
        // It is one of those whose number has not come yet.
        fail_unknown_rails();
      }
      acknowledgement_due();  // a put may wait for that
      return;
    case MessageKind::kRailUnused:
      // One that a message comes over is used after all.
      if (Rail* rail = find_rail(header.tag); rail != nullptr && rail != receiving_on_) {
        rail->retiring = true;
        close_unused_rails();
      }
      return;
    case MessageKind::kRailClosed:
      if (Rail* rail = find_rail(header.tag); rail != nullptr && rail->retiring && rail != rail_) {
        close_unused(*rail);
      }
      return;
    case MessageKind::kCloseIdle:
      receive_close_idle();
      return;
    case MessageKind::kMayClose:
      receive_may_close(header.tag, header.value != 0);
      return;
    case MessageKind::kOpen:
      violated("second open");
      return;
    default:
      access_.receive(header, payload);
      return;
  }
}

// Eager messages are bounded by what was granted. False after a violation.
bool Pair::use_credit(uint64_t bytes) {
  credit_taken_ += static_cast<uint32_t>(bytes);
  if (credit_taken_ - credit_returned_ <= credit_granted_) [[likely]]
    return true;
  violated("more eager data than was granted");
  return false;
}

void Pair::count_received(uint64_t length) {
  hetcomm_counters_t& counters = receiving_on_->counters();
  ++counters.messages_received;
  counters.bytes_received += length;
}

void Pair::receive_eager(const WireHeader& header, ConstByteSpan payload) {
  if (length_of(header) != payload.size()) [[unlikely]] {
    violated("eager message of a wrong length");
    return;
  }
  const bool sampled = payload.size() >= PullClass::kLeastBytes && samples(payload.size());
  const uint64_t started_ns = sampled ? now_ns() : 0;
  const bool copied = take_eager(header, payload);
  if (sampled && copied) [[unlikely]]
    took(payload.size(), now_ns() - started_ns, 1);
}

// True when all of it was copied to host memory.
inline bool Pair::take_eager(const WireHeader& header, ConstByteSpan payload) {
  count_received(payload.size());
  const uint64_t credit = payload.size() + kMessageCost;
  if (!use_credit(credit)) return false;
  MatchTable* table =
      common_.channels.match_table(channel_of(header), (header.flags & kFlagCollective) != 0);
  if (table == nullptr) {
    return_credit(credit);
    return false;
  }
  if (Operation* receive = table->match_message(rank_, header.tag); receive != nullptr) [[likely]] {
    const bool copied = receive->buffers.on_host && payload.size() <= receive->length;
    common_.delivery.deliver(*receive, rank_, header.tag, payload, payload.size());
    return_credit(credit);
    return copied;
  }
  Incoming* message = new_incoming(header.tag, payload.size(), credit, Keeps::kBytes);
  if (message == nullptr) return false;
  if (!payload.empty()) copy_bytes(message->bytes, payload.data(), payload.size());
  message->received = payload.size();
  queue_unexpected(*table, *message, header);
  return true;
}

// A record for a message that is not (wholly) here, with room for eager bytes. Null after having
// failed the pair.
Incoming* Pair::new_incoming(uint64_t tag, uint64_t length, uint64_t credit, Keeps keeps) {
  void* memory = common_.blocks.take(sizeof(Incoming));
  if (memory == nullptr) [[unlikely]] {
    out_of_memory();
    return nullptr;
  }
  static_assert(std::is_trivially_destructible_v<Incoming>);
  static_assert(sizeof(Incoming) <= 256, "kMaxRequests says what they cost");
  auto* message = new (memory) Incoming;
  message->pair = this;
  message->source = rank_;
  message->tag = tag;
  message->length = length;
  message->credit = credit;
  if (keeps == Keeps::kBytes && !message->make_room(common_.blocks)) [[unlikely]] {
    free_incoming(message);
    out_of_memory();
    return nullptr;
  }
  return message;
}

void Pair::receive_first(const WireHeader& header, ConstByteSpan payload) {
  const uint64_t length = length_of(header);
  if (arriving_.find(0) != nullptr || payload.size() >= length || length > credit_granted_) {
    violated("beginning of a message where none may be");
    return;
  }
  if (!use_credit(length + kMessageCost)) return;
  count_received(length);
  MatchTable* table =
      common_.channels.match_table(channel_of(header), (header.flags & kFlagCollective) != 0);
  Operation* receive = match(table, header.tag);
  // Matched to host memory the fragments go straight there.
  const bool direct = receive != nullptr && receive->buffers.on_host;
  Incoming* message = new_incoming(header.tag, length, length + kMessageCost,
                                   direct ? Keeps::kNothing : Keeps::kBytes);
  if (message == nullptr) {
    if (receive != nullptr) common_.completer.complete(*receive, Code::kOutOfMemory);
    return;
  }
  arriving_sampled_ = length >= PullClass::kLeastBytes && samples(length);
  arriving_pieces_ = 0;
  arriving_ns_ = 0;
  await_bytes(*message, table, receive, header);
  receive_more(WireHeader{.kind = MessageKind::kEagerMore}, payload);
}

// Takes the first receive for a message out of |table|, which may be null. It is in no list then.
Operation* Pair::match(MatchTable* table, uint64_t tag) {
  Operation* receive = table != nullptr ? table->match_message(rank_, tag) : nullptr;
  if (receive != nullptr) receive->stage = OperationStage::kSubmitted;
  return receive;
}

// The bytes of |message| follow, in fragments.
void Pair::await_bytes(Incoming& message, MatchTable* table, Operation* receive,
                       const WireHeader& header) {
  arriving_.add(message);
  if (receive != nullptr) {
    attach(message, *receive);
  } else if (table != nullptr) {
    queue_unexpected(*table, message, header);
  }
}

void Pair::receive_more(const WireHeader& header, ConstByteSpan payload) {
  Incoming* message = arriving_.find(header.tag);
  // This side had pulled the message when the sender began to push it.
  if (message == nullptr && header.tag != 0) return;
  if (message == nullptr || payload.empty() || header.value != message->received ||
      payload.size() > message->length - message->received) {
    violated("part of a message where none may be");
    return;
  }
  const bool sampled = arriving_sampled_ && header.tag == 0;
  const uint64_t started_ns = sampled ? now_ns() : 0;
  if (message->bytes != nullptr) {
    std::memcpy(message->bytes + message->received, payload.data(), payload.size());
  } else if (message->operation != nullptr) {
    const uint64_t room = message->operation->length;
    if (message->received < room) {
      const uint64_t part = std::min<uint64_t>(payload.size(), room - message->received);
      scatter(message->operation->segments(), message->received, payload.first(part));
    }
  }
  message->received += payload.size();
  if (sampled) {
    ++arriving_pieces_;
    arriving_ns_ += now_ns() - started_ns;
  }
  if (message->received == message->length) finish_arriving(*message);
}

void Pair::finish_arriving(Incoming& message) {
  arriving_.remove(message);
  Operation* receive = message.operation;
  if (arriving_sampled_ && message.sender_id == 0) {
    const bool copied = message.queued || (receive != nullptr && receive->buffers.on_host &&
                                           message.length <= receive->length);
    if (copied) took(message.length, arriving_ns_, arriving_pieces_);
  }
  if (message.queued) return;  // complete now, and still unmatched
  if (receive != nullptr) {
    receive->pair = nullptr;
    common_.delivery.deliver(*receive, rank_, message.tag, message.payload(), message.length);
  }
  return_credit(message.credit);
  free_incoming(&message);
}

void Pair::receive_request(const WireHeader& header, ConstByteSpan payload) {
  RequestBody body;
  if (!decode_body(payload, &body)) {
    violated("request of a wrong size");
    return;
  }
  count_received(length_of(header));
  MatchTable* table =
      common_.channels.match_table(channel_of(header), (header.flags & kFlagCollective) != 0);
  if (table == nullptr) {
    refuse_request(channel_of(header), body.sender_id);
    return;
  }
  if (requests_held_ >= kMaxRequests) {
    violated("too many requests");
    return;
  }
  Incoming* message = new_incoming(header.tag, length_of(header), 0, Keeps::kNothing);
  if (message == nullptr) return;
  announce(*message, body);
  hand_over(*message, *table, match(table, header.tag), header);
}

// It names a channel that is not there.
void Pair::refuse_request(uint32_t channel, uint64_t sender_id) {
  // An abort reaches the sender by itself.
  if (common_.channels.is_aborted(channel)) return;
  send_control(MessageKind::kStop, sender_id, static_cast<uint64_t>(Code::kAborted), nullptr, 0);
}

// |request| says where the data of |message| is.
void Pair::announce(Incoming& message, const RequestBody& request) {
  ++requests_held_;
  message.rendezvous = true;
  message.sender_id = request.sender_id;
  message.rail = request.rail;
  message.source_key = request.source;
}

// |message| goes to |receive|, which was matched with it, or without one to the queue.
void Pair::hand_over(Incoming& message, MatchTable& table, Operation* receive,
                     const WireHeader& header) {
  if (receive == nullptr) {
    queue_unexpected(table, message, header);
  } else {
    attach_new(message, *receive);
  }
}

// Handles an eager message whose bytes this side reads itself, at once: a sender waits for no
// receive.
void Pair::receive_pull(const WireHeader& header, ConstByteSpan payload) {
  PullBody body;
  const uint64_t length = length_of(header);
  if (!decode_body(payload, &body) || body.sender_id == 0 || length > credit_granted_ ||
      length > PullClass::kMostBytes) {
    violated("message to be pulled where none may be");
    return;
  }
  const uint64_t credit = length + kMessageCost;
  if (!use_credit(credit)) return;
  count_received(length);
  MatchTable* table =
      common_.channels.match_table(channel_of(header), (header.flags & kFlagCollective) != 0);
  if (table == nullptr) {
    // The message is dropped, as one that was copied is.
    return_credit(credit);
    send_control(MessageKind::kDone, body.sender_id, 0, nullptr, 0);
    return;
  }
  Operation* receive = match(table, header.tag);
  const bool direct = receive != nullptr && receive->buffers.on_host;
  Incoming* message =
      new_incoming(header.tag, length, credit, direct ? Keeps::kNothing : Keeps::kBytes);
  if (message == nullptr) {
    if (receive != nullptr) common_.completer.complete(*receive, Code::kOutOfMemory);
    return;
  }
  iovec own{message->bytes, length};
  const uint64_t started_ns = now_ns();
  const Code code = direct ? pull(body, receive->segments(), std::min(length, receive->length))
                           : pull(body, Segments(&own, 1), length);
  if (code != Code::kOk) {
    // The sender copies it after all, or is about to say why not.
    const bool works = code == Code::kCancelled || code == Code::kPeerLost;
    if (!works && pull_chooser_.failed(length)) tell_pull_pause(length);
    message->sender_id = body.sender_id;
    await_bytes(*message, table, receive, header);
    send_control(MessageKind::kPush, body.sender_id, 0, nullptr, 0);
    return;
  }
  const bool whole = !direct || length <= receive->length;
  const bool tells =
      whole && pull_chooser_.pulled(length, now_ns() - started_ns, body.copy_ns_per_mib);
  if (direct) {
    common_.delivery.delivered(*receive, rank_, header.tag, length);
    return_credit(credit);
    free_incoming(message);
  } else {
    message->received = length;
    hand_over(*message, *table, receive, header);
  }
  send_control(MessageKind::kDone, body.sender_id, 0, nullptr, 0);
  if (tells) tell_pull_pause(length);
}

// kCancelled: not over this connection, or not any more.
Code Pair::pull(const PullBody& from, Segments into, uint64_t length) {
  Rail& rail = *receiving_on_;
  if (!rail.capabilities().gets_now || from.rail != rail.id || !rail.known) return Code::kCancelled;
  Bulk bulk;
  bulk.local = SegmentView{into, 0, length};
  bulk.key = from.source;
  const Code code = rail.abilities().immediate_gets->get_now(bulk);
  if (code == Code::kOk) {
    ++rail.counters().bulk_by_get;
    rail.counters().bulk_bytes += length;
  }
  return code;
}

// The peer cannot read a message.
void Pair::receive_push(uint64_t sender_id) {
  SendTransfer* transfer = sends_.find(sender_id);
  if (transfer == nullptr || !transfer->is_pulled()) return;
  push(*transfer);
  pump();
}

void Pair::receive_pull_pause(const WireHeader& header) {
  if (header.tag >= PullClass::kCount) {
    violated("pause for messages of no class");
    return;
  }
  pull_plan_.told(header.tag, header.value);
}

// True when taking out the eager message that has arrived shall be measured.
bool Pair::samples(uint64_t bytes) {
  if (!receiving_on_->capabilities().gets_now) return false;
  if (receiving_on_->capabilities().prefers_get && pull_chooser_.insist(bytes)) {
    tell_pull_pause(bytes);
  }
  return pull_chooser_.samples_next(bytes);
}

void Pair::took(uint64_t bytes, uint64_t elapsed_ns, uint64_t pieces) {
  if (pull_chooser_.took(bytes, elapsed_ns, pieces)) tell_pull_pause(bytes);
}

void Pair::tell_pull_pause(uint64_t bytes) {
  const size_t pull_class = PullClass::of(bytes);
  send_control(MessageKind::kPullPause, pull_class, pull_chooser_.pause_of(pull_class), nullptr, 0);
}

// |message| is in no list yet; both end if there is no memory for a transfer.
void Pair::attach_new(Incoming& message, Operation& receive) {
  receive.stage = OperationStage::kSubmitted;  // in no list
  try {
    attach(message, receive);
  } catch (const std::bad_alloc&) {
    if (receive.stage == OperationStage::kSubmitted) {
      free_incoming(&message);
      common_.completer.complete(receive, Code::kOutOfMemory);
    }
    throw;
  }
}

void Pair::attach(Incoming& message, Operation& receive) {
  if (message.rendezvous) {
    // Without memory the message stays where it is.
    auto transfer = make_pooled<ReceiveTransfer>(common_.blocks, *this, receive, message);
    if (message.queued) message.table->remove_unexpected(&message);
    receive.pair = this;
    receive.stage = OperationStage::kTransfer;
    receive.transfer.receive = transfer.release();
    return_credit(message.credit);
    free_incoming(&message);
    receive.transfer.receive->start();
    return;
  }
  if (message.queued) message.table->remove_unexpected(&message);
  if (message.arriving) {
    message.operation = &receive;
    receive.pair = this;
    receive.stage = OperationStage::kArriving;
    if (message.bytes != nullptr && receive.buffers.on_host) {
      // What is here moves now, the rest goes straight to the receiver.
      const uint64_t part = std::min(message.received, receive.length);
      scatter(receive.segments(), 0, message.payload().first(part));
      message.drop_bytes(common_.blocks);
    }
    return;
  }
  common_.delivery.deliver(receive, rank_, message.tag, message.payload(), message.length);
  return_credit(message.credit);
  free_incoming(&message);
}

void Pair::attach_request(Operation& receive, const RequestBody& body, uint64_t length) {
  receive.stage = OperationStage::kSubmitted;  // in no list
  Incoming* message = new_incoming(0, length, 0, Keeps::kNothing);
  if (message == nullptr) {
    common_.completer.complete(receive, Code::kOutOfMemory);
    return;
  }
  announce(*message, body);
  attach_new(*message, receive);
}

void Pair::detach_arriving(Operation& receive) {
  if (Incoming* message = arriving_.find(receive); message != nullptr) message->operation = nullptr;
  receive.pair = nullptr;
}

void Pair::queue_unexpected(MatchTable& table, Incoming& message, const WireHeader& header) {
  table.add_unexpected(&message);
  common_.engine.note_arrival();
  if ((header.flags & kFlagCollective) != 0) common_.listener.on_unexpected_part(rank_, header);
}

void Pair::free_incoming(Incoming* message) {
  if (message->rendezvous) --requests_held_;
  message->drop_bytes(common_.blocks);
  common_.blocks.give(message, sizeof(*message));
}

// The sender took back a rendezvous that may still be queued here.
void Pair::drop_withdrawn(uint64_t sender_id) {
  Incoming* found = nullptr;
  common_.channels.for_each_table([&](MatchTable& table) {
    for (Incoming* message = table.first_unexpected(); message != nullptr && found == nullptr;
         message = message->next_arrived) {
      if (message->source == rank_ && message->rendezvous && message->sender_id == sender_id) {
        found = message;
      }
    }
  });
  if (found == nullptr) return;
  found->table->remove_unexpected(found);
  return_credit(found->credit);
  free_incoming(found);
}

bool Pair::forget(Incoming& message) { return message.arriving; }

// The sender ended a message early: an eager one of which bytes are missing, or a rendezvous.
void Pair::receive_withdraw(const WireHeader& header) {
  if (Incoming* message = arriving_.find(header.tag); message != nullptr) {
    arriving_.remove(*message);
    if (message->queued) message->table->remove_unexpected(message);
    // After an abort the receive waits for the abort itself, which is its reason.
    const bool aborted = header.value == static_cast<uint64_t>(Code::kAborted);
    if (message->operation != nullptr && !aborted) {
      message->operation->pair = nullptr;
      common_.completer.complete(
          *message->operation, Code::kCancelled,
          fmt::format("receive: rank {} withdrew the message while it was sent", rank_));
    }
    return_credit(message->credit);
    free_incoming(message);
    return;
  }
  if (header.tag == 0) return;
  acknowledgement_due();  // the peer counts a withdrawn put until then
  ReceiveTransfer* found = nullptr;
  receives_.for_each([&](ReceiveTransfer& transfer) {
    if (transfer.sender_id() == header.tag) found = &transfer;
  });
  if (found != nullptr) {
    found->withdrawn(static_cast<Code>(static_cast<int32_t>(header.value)));
    return;
  }
  drop_withdrawn(header.tag);
}

}  // namespace hetcomm
