#include "src/core/peer/access/access_initiator.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/memory/access_state.h"
#include "src/core/memory/device_access.h"
#include "src/core/peer/wire/atomics.h"
#include "src/core/peer/wire/reason.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxExtents = 8;  // most extents of a put that is sent as one message

// Returns whether the bytes of |put| can be sent in one message, from which the owner copies them.
bool fits_message(const Operation& put, const Rail& rail) HETCOMM_UNDER_BATON {
  const Capabilities& capabilities = rail.capabilities();
  return put.buffers.on_host && access_of(put).remote->host_accessible() &&
         put.length <= capabilities.eager_limit_bytes &&
         put.length + sizeof(AccessBody) <= capabilities.max_payload_bytes &&
         put.extents().size() <= kMaxExtents;
}

}  // namespace

// --- starting ---------------------------------------------------------------

bool AccessInitiator::start(Operation& operation) {
  Rail& rail = *association_.rail();
  if (mapped_.start(operation, rail)) return true;
  switch (operation.kind) {
    case OperationKind::kPut:
      return start_put(operation, rail);
    case OperationKind::kGet:
      return start_get(operation, rail);
    default:
      return start_atomic(operation);
  }
}

bool AccessInitiator::start_put(Operation& put, Rail& rail) {
  // If the first bytes of a put are already in place, its notification must still name the whole
  // range. Only kAnnouncePut can do that.
  const bool fits = fits_message(put, rail) && put.target.ahead == 0;
  // A small put with a notification is sent as one message. If the connection wrote the bytes
  // directly, the notification would need a separate message, which would have to wait for the
  // bytes.
  if (!access_of(put).placed && !(fits && access_of(put).notify) && direct_.may_start(put, rail)) {
    direct_.start(put);
    return true;
  }
  if (access_of(put).notify && !pay_for_notification(put)) return true;
  return fits || access_of(put).placed ? start_put_message(put) : announce_put(put);
}

// Returns false if there is no credit. |put| then waits for credit, and does not block the outbox.
bool AccessInitiator::pay_for_notification(Operation& put) {
  if (association_.send_credit().available() >= kMessageCost) return true;
  put.phase = OperationPhase::kAwaiting;
  access_of(put).awaits_credit = true;
  awaiting_credit_.push_back(put);
  return false;
}

void AccessInitiator::credit_came() {
  if (awaiting_credit_.empty()) return;
  // Moves all puts to the outbox before pump(), which may run out of memory.
  while (!awaiting_credit_.empty()) {
    Operation& put = awaiting_credit_.front();
    stop_awaiting_credit(put);
    association_.enqueue(put);
  }
  association_.pair().pump();
}

void AccessInitiator::stop_awaiting_credit(Operation& put) {
  access_of(put).awaits_credit = false;
  awaiting_credit_.remove(put);
}

bool AccessInitiator::start_put_message(Operation& put) {
  const AccessBody body = access_body_of(put);
  std::array<iovec, 1 + kMaxExtents> pieces;
  pieces[0] = {const_cast<AccessBody*>(&body), sizeof(body)};
  size_t count = 1;
  uint64_t length = sizeof(body);
  uint8_t flags = access_of(put).notify ? kFlagNotify : uint8_t{0};
  if (access_of(put).placed) {
    flags |= kFlagPlaced;
  } else {
    for (const iovec& extent : put.extents()) pieces[count++] = extent;
    length += put.length;
  }
  const WireHeader header{
      .kind = MessageKind::kPut, .flags = flags, .value = access_of(put).operand};
  return ask(put, header, Extents(pieces.data(), count), length);
}

bool AccessInitiator::announce_put(Operation& put) {
  if (!may_ask(put)) return true;
  auto transfer = make_pooled<SendTransfer>(transfers_.data().blocks, transfers_, put);
  const AnnouncePutBody body{access_body_of(put), put.target.ahead, transfer->make_announcement()};
  const WireHeader header{.kind = MessageKind::kAnnouncePut,
                          .flags = access_of(put).notify ? kFlagNotify : uint8_t{0},
                          .tag = access_of(put).id,
                          .value = access_of(put).operand};
  const Code code = SendTransfer::announce(transfer, header, body);
  if (code != Code::kOk) return association_.refused(put, code);
  access_of(put).holds_permit = true;
  note_asked(put);
  return true;
}

bool AccessInitiator::start_get(Operation& get, Rail& rail) {
  if (direct_.may_start(get, rail)) {
    direct_.start(get);
    return true;
  }
  const AccessBody body = access_body_of(get);
  iovec piece{const_cast<AccessBody*>(&body), sizeof(body)};
  const WireHeader header{.kind = MessageKind::kGet};
  return ask(get, header, Extents(&piece, 1), sizeof(body));
}

bool AccessInitiator::start_atomic(Operation& atomic) {
  AtomicBody body = atomic_body_of(atomic);
  iovec piece{&body, sizeof(body)};
  const WireHeader header{.kind = MessageKind::kAtomic};
  return ask(atomic, header, Extents(&piece, 1), sizeof(body));
}

// Returns false if |operation| now waits for a permit. It does not block the outbox while it waits.
bool AccessInitiator::may_ask(Operation& operation) {
  if (permits_.is_free() && (waiting_.empty() || access_of(operation).had_turn)) [[likely]]
    return true;
  waiting_.add(operation);
  return false;
}

// Sends a request. |operation| then waits for the owner's answer or, if it is a put, for the
// acknowledgement. Returns false if the caller must try again later.
bool AccessInitiator::ask(Operation& operation, WireHeader header, Extents payload,
                          uint64_t length) {
  if (!may_ask(operation)) return true;
  const bool is_put = header.kind == MessageKind::kPut;
  header.tag = asked_.insert(&operation);
  Code code;
  try {
    if (is_put) sent_puts_.push_back({association_.sequencer().sent() + 1, header.tag});
    code = association_.sequencer().send(header, ExtentView{payload, 0, length});
  } catch (const std::bad_alloc&) {
    code = Code::kOutOfMemory;
  }
  if (code != Code::kOk) {
    if (is_put && !sent_puts_.empty() && sent_puts_.back().id == header.tag) sent_puts_.pop_back();
    asked_.erase(header.tag);
    return association_.refused(operation, code);
  }
  access_of(operation).holds_permit = !is_put;  // a put's permit stays with |sent_puts_|
  access_of(operation).id = header.tag;
  operation.phase = OperationPhase::kAwaiting;
  note_asked(operation);
  return true;
}

// Records that the message that requests |operation| was just sent.
void AccessInitiator::note_asked(Operation& operation) {
  if (operation.kind == OperationKind::kPut && access_of(operation).notify) {
    association_.send_credit().use(kMessageCost);
  }
  count_access(operation, association_.rails().current()->counters());
  permits_.take();
  access_of(operation).asked = true;
}

// --- without the owner's help -------------------------------------------------

// Finishes |operation|, and informs the owner if it has to know.
void AccessInitiator::finish_direct(Operation& operation, Code code) {
  if (code == Code::kOk && !operation.buffers.on_host && operation.kind == OperationKind::kGet) {
    code = DeviceAccess::flush_remote_writes(operation).code();
  }
  // The owner must be informed of a put with a notification. It must also be informed of a put into
  // memory that its device has to flush before the bytes are used.
  const bool owner_has_to_know =
      access_of(operation).notify ||
      (operation.kind == OperationKind::kPut && access_of(operation).remote->needs_flush());
  if (code == Code::kOk && owner_has_to_know) {
    access_of(operation).placed = true;
    send_soon(operation);
  } else {
    completer().complete_access(operation, code);
  }
}

void AccessInitiator::go_by_message(Operation& operation, uint64_t placed) {
  access_of(operation).direct_failed = true;
  operation.drop_front(placed);
  send_soon(operation);
}

// Puts |operation| into the outbox, which is sent at the end of the pass.
void AccessInitiator::send_soon(Operation& operation) {
  association_.enqueue(operation);
  association_.update_due();
}

// --- permits and waiting operations ---------------------------------------------------------

void AccessInitiator::start_waiting() {
  waiting_.start_all([this]() HETCOMM_UNDER_BATON { return permits_.is_free(); },
                     [this](Operation& operation) HETCOMM_UNDER_BATON { return start(operation); });
}

// Releases a permit. Operations that wait for one start at the end of the pass.
void AccessInitiator::free_permit() {
  permits_.give_back();
  if (!waiting_.empty()) association_.update_due();
}

// Removes and returns the operation with |id|, which the owner has answered. Returns null if it has
// already ended; its permit is then released.
Operation* AccessInitiator::take_asked(uint64_t id) {
  Operation* operation = asked_.find(id);
  const bool waited = asked_.erase(id);
  if (operation == nullptr && waited) free_permit();
  return operation;
}

// --- answers ------------------------------------------------------------------

void AccessInitiator::receive_refused(const WireHeader& header) {
  Operation* operation = take_asked(header.tag);
  if (operation == nullptr) return;
  const auto code = static_cast<Code>(static_cast<int32_t>(header.value));
  // A device of the owner failed. To this rank's user, DEVICE_LOST would mean a device of this
  // rank.
  if (code == Code::kDeviceLost) {
    const Status why = told_by(association_.rank(), code, {});
    completer().complete(*operation, why.code(), text_of_told(*operation, why));
    return;
  }
  completer().complete_access(*operation, static_cast<int32_t>(code) < 0 ? code : Code::kInternal);
}

void AccessInitiator::acknowledged(uint32_t sequence) {
  while (!sent_puts_.empty() && static_cast<int32_t>(sequence - sent_puts_.front().sequence) >= 0) {
    const uint64_t id = sent_puts_.front().id;
    Operation* put = asked_.find(id);
    asked_.erase(id);
    sent_puts_.pop_front();
    free_permit();
    if (put != nullptr) completer().complete_access(*put, Code::kOk);  // null: the put ended early
  }
  direct_.acknowledged(sequence);
}

void AccessInitiator::protocol_message_left(MessageKind kind) {
  const uint32_t sent = association_.sequencer().sent();
  if (kind == MessageKind::kRailDown) {
    direct_.told_of_failure(sent);
  } else {
    sent_puts_.push_back({sent, 0});
  }
}

void AccessInitiator::receive_atomic_done(const WireHeader& header) {
  const Operation* known = asked_.find(header.tag);
  if (known != nullptr && !is_atomic(*known)) {
    association_.violated("answer of a wrong kind");
    return;
  }
  Operation* atomic = take_asked(header.tag);
  if (atomic == nullptr) return;
  if (access_of(*atomic).result != nullptr) *access_of(*atomic).result = header.value;
  completer().complete_access(*atomic, Code::kOk);
}

void AccessInitiator::receive_get_data(const WireHeader& header, ConstByteSpan payload) {
  const Operation* known = asked_.find(header.tag);
  if (known != nullptr && (known->kind != OperationKind::kGet || payload.size() != known->length)) {
    association_.violated("data of a get of a wrong length");
    return;
  }
  Operation* get = take_asked(header.tag);
  if (get == nullptr) return;
  transfers_.data().delivery.deliver(*get, association_.rank(), get->tag, payload, payload.size());
}

void AccessInitiator::receive_announced_get(const WireHeader& header, ConstByteSpan payload) {
  AnnounceBody body;
  if (!decode_body(payload, &body)) {
    association_.violated("announcement of a wrong size");
    return;
  }
  const Operation* known = asked_.find(header.tag);
  if (known != nullptr && (known->kind != OperationKind::kGet || header.value != known->length)) {
    association_.violated("data of a get of a wrong length");
    return;
  }
  // If the get has already ended, the owner must be notified before take_asked() lets this rank
  // request more.
  if (known == nullptr) {
    association_.send_protocol(MessageKind::kStop, body.sender_id, Code::kCancelled);
  }
  Operation* get = take_asked(header.tag);
  if (get != nullptr) receiver_.attach_announced(*get, body, header.value);
}

// --- ending -------------------------------------------------------------------

void AccessInitiator::end(Operation& operation, Code code, std::string text) {
  if (direct_of(operation) != nullptr) {
    if (direct_.cancel(operation, code, &text)) return;
  } else if (access_of(operation).waiting) {
    waiting_.remove(operation);
  } else if (!mapped_.stop(operation)) {
    if (access_of(operation).awaits_credit) stop_awaiting_credit(operation);
    withdraw_question(operation);
    if (is_atomic(operation) && access_of(operation).asked) {
      text = text_or_none([&] { return text + "; whether it happened cannot be learned"; });
      code = Code::kOutcomeUnknown;
    }
  }
  completer().complete(operation, code, std::move(text));
}

// Detaches |operation| from its request. The owner's answer will then find no operation.
void AccessInitiator::withdraw_question(Operation& operation) {
  if (std::exchange(access_of(operation).holds_permit, false)) {
    asked_.detach(access_of(operation).id);  // the id keeps the permit until the owner answers
  } else {
    asked_.erase(access_of(operation).id);
  }
}

bool AccessInitiator::is_idle() const {
  return has_all_started() && asked_.empty() && direct_.empty() && !direct_.is_barrier_up() &&
         sent_puts_.empty() && mapped_.is_idle();
}

// --- connections --------------------------------------------------------------

void AccessInitiator::rail_failed(const Rail& rail, bool peer_has_to_know) {
  mapped_.rail_failed(rail);
  direct_.rail_failed(rail, peer_has_to_know);
}

void AccessInitiator::start_again() {
  if (!mapped_.has_interrupted()) return;
  mapped_.enqueue_interrupted();
  association_.update_due();
}

void AccessInitiator::fail_everything(const Status& why) {
  sent_puts_.clear();
  direct_.forget_failures();
  const auto fail = [&](Operation& operation) HETCOMM_UNDER_BATON {
    end(operation, why.code(), text_or_none([&]() HETCOMM_UNDER_BATON {
          return fmt::format("{}: {}", describe(operation), why.text());
        }));
  };
  asked_.for_each(fail);
  while (!awaiting_credit_.empty()) fail(awaiting_credit_.front());
  while (!waiting_.empty()) fail(waiting_.front());
  direct_.lose_all(why);
  while (Operation* copying = mapped_.first_copying()) fail(*copying);
  mapped_.enqueue_interrupted();  // the caller fails the operations in the outbox next
}

}  // namespace hetcomm
