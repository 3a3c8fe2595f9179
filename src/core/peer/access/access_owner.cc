#include "src/core/peer/access/access_owner.h"

#include <algorithm>
#include <new>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/device/memory.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/peer/wire/atomics.h"

namespace hetcomm {

bool AccessOwner::hold() {
  if (permits_.hold()) [[likely]]
    return true;
  association_.violated("more one-sided operations than may be asked for at a time");
  return false;
}

// Notifies the initiator that operation |id| is refused. Call this after hold(), and before any
// message that acknowledges the operation.
void AccessOwner::refuse(uint64_t id, Code code) {
  association_.send_protocol(MessageKind::kRefused, id, code, Permit::kOwner);
}

void AccessOwner::refuse(Operation& answer) {
  access_of(answer).holds_permit = false;
  refuse(access_of(answer).id, answer.outcome.code);
}

Code AccessOwner::check(const Registration* registration) {
  if (registration == nullptr || registration->closing) return Code::kStaleHandle;
  return messaging(registration->communicator()).channel().aborted.ok() ? Code::kOk
                                                                        : Code::kAborted;
}

void AccessOwner::receive_ask(uint64_t id) {
  const Code code = check(services_.registrations.find(id));
  if (code != Code::kOk) association_.send_protocol(MessageKind::kNoMemory, id, code);
}

Registration* AccessOwner::find(const AccessBody& range, uint32_t right, Code* code) {
  Registration* registration = services_.registrations.find(range.region);
  *code = check(registration);
  if (*code != Code::kOk) return nullptr;
  if (!registration->communicator().contains(association_.rank())) {
    *code = Code::kPermissionDenied;
    note_refusal("it is registered on a communicator that this rank does not belong to");
  } else if ((registration->rights() & right) == 0) {
    *code = Code::kPermissionDenied;
    note_refusal("that access was not granted");
  } else if (!registration->memory().contains(range.offset, range.length)) {
    *code = Code::kOutOfRange;
  } else {
    return registration;
  }
  return nullptr;
}

// Logs one line for each rank and reason. A peer that respects the exported rights causes no such
// line.
void AccessOwner::note_refusal(const char* why) {
  try {
    services_.log.warn_once(fmt::format("rank {} is refused memory: {}", association_.rank(), why));
  } catch (const std::bad_alloc&) {
    // Only the log line is lost.
  }
}

Operation* AccessOwner::begin(OperationKind kind, Registration& registration,
                              const AccessBody& range) {
  Operation* operation =
      messaging(registration.communicator())
          .starter()
          .begin_for_peer(kind, association_.rank(), registration, range.offset, range.length);
  if (operation == nullptr) return nullptr;
  operation->carrier = &association_.pair();
  access_of(*operation).ledger = &ledger_;
  return operation;
}

// --- puts ---------------------------------------------------------------------

void AccessOwner::accepted(const Operation& accept) {
  if (accept.outcome.code != Code::kOk) {
    if (access_of(accept).notify) association_.give_back_credit(kMessageCost);
    return;
  }
  const uint64_t ahead = accept.target.ahead;
  const AccessBody range{access_of(accept).registration->id, accept.target.offset - ahead,
                         accept.length + ahead};
  finish_put(*access_of(accept).registration, range,
             {.kind = MessageKind::kAnnouncePut,
              .flags = access_of(accept).notify ? kFlagNotify : uint8_t{0},
              .value = access_of(accept).operand});
}

// Delivers the notification, if any, of a put whose bytes are all in place.
void AccessOwner::finish_put(Registration& registration, const AccessBody& range,
                             const WireHeader& header) {
  if ((header.flags & kFlagNotify) == 0) return;
  const int32_t source = registration.communicator().rank_of(association_.rank());
  registration.notify(association_, {header.value, source, 0, range.offset, range.length});
  services_.engine.note_arrival();
}

void AccessOwner::receive_put(const WireHeader& header, ConstByteSpan payload) {
  const bool notify = (header.flags & kFlagNotify) != 0;
  const bool placed = (header.flags & kFlagPlaced) != 0;
  AccessBody body;
  const size_t bytes = payload.size() - std::min(payload.size(), sizeof(body));
  if (payload.size() < sizeof(body) || !decode_body(payload.first(sizeof(body)), &body) ||
      bytes != (placed ? 0 : body.length)) {
    association_.violated("put of a wrong size");
    return;
  }
  if (notify && !association_.take_credit(kMessageCost)) return;
  Code code = Code::kOk;
  Registration* registration = find(body, HETCOMM_ACCESS_PUT, &code);
  if (registration != nullptr && bytes > 0 && !registration->memory().host_accessible()) {
    code = Code::kUnsupported;
  }
  if (code == Code::kOk && placed && bytes == 0 && body.length > 0) {
    code = registration->memory().flush_remote_writes().code();
  }
  if (code == Code::kOk) {
    if (bytes > 0) {
      copy_bytes(static_cast<std::byte*>(registration->memory().address()) + body.offset,
                 payload.data() + sizeof(body), bytes);
    }
    finish_put(*registration, body, header);
  } else {
    if (notify) association_.give_back_credit(kMessageCost);
    if (!hold()) return;
    refuse(header.tag, code);
  }
  association_.acknowledgement_due();
}

void AccessOwner::receive_announced_put(const WireHeader& header, ConstByteSpan payload) {
  AnnouncePutBody body;
  if (!decode_body(payload, &body)) {
    association_.violated("put announcement of a wrong size");
    return;
  }
  const bool notify = (header.flags & kFlagNotify) != 0;
  if (notify && !association_.take_credit(kMessageCost)) return;
  if (!hold()) return;
  Code code = Code::kOutOfRange;
  Registration* registration = nullptr;
  if (body.ahead <= body.range.offset && body.ahead <= UINT64_MAX - body.range.length) {
    const AccessBody whole{body.range.region, body.range.offset - body.ahead,
                           body.range.length + body.ahead};
    registration = find(whole, HETCOMM_ACCESS_PUT, &code);
  }
  Operation* accept = nullptr;
  const Status device = registration != nullptr ? registration->memory().check() : Status();
  if (registration != nullptr && device.ok()) {
    accept = begin(OperationKind::kAccept, *registration, body.range);
    if (accept == nullptr) code = Code::kOutOfMemory;
  }
  if (accept == nullptr) {
    if (notify) association_.give_back_credit(kMessageCost);
    const uint64_t id = body.announcement.sender_id;
    if (device.ok()) {
      association_.send_protocol(MessageKind::kStop, id, code, Permit::kOwner);
    } else {
      association_.send_reason(MessageKind::kStop, id, device, Permit::kOwner);
    }
    return;
  }
  access_of(*accept).holds_permit = true;
  accept->target.ahead = body.ahead;
  access_of(*accept).notify = notify;
  access_of(*accept).operand = header.value;
  receiver_.attach_announced(*accept, body.announcement, body.range.length);
}

// --- gets ---------------------------------------------------------------------

void AccessOwner::receive_get(const WireHeader& header, ConstByteSpan payload) {
  AccessBody body;
  if (!decode_body(payload, &body)) {
    association_.violated("get of a wrong size");
    return;
  }
  if (!hold()) return;
  Code code = Code::kOk;
  Registration* registration = find(body, HETCOMM_ACCESS_GET, &code);
  Operation* answer = nullptr;
  if (registration != nullptr && !registration->memory().check().ok()) {
    code = Code::kDeviceLost;
  } else if (registration != nullptr) {
    answer = begin(OperationKind::kAnswer, *registration, body);
    if (answer == nullptr) code = Code::kOutOfMemory;
  }
  if (answer == nullptr) {
    refuse(header.tag, code);
    return;
  }
  access_of(*answer).id = header.tag;
  access_of(*answer).holds_permit = true;
  try {
    submit(*answer);
  } catch (const std::bad_alloc&) {
    association_.end_out_of_memory(*answer);  // the answer is in no list
    throw;
  }
}

void AccessOwner::submit(Operation& answer) {
  if (!waiting_.empty() || !association_.may_send() || !start(answer)) [[unlikely]]
    waiting_.add(answer);
}

void AccessOwner::start_waiting() {
  waiting_.start_all([] { return true; },
                     [this](Operation& answer) HETCOMM_UNDER_BATON { return start(answer); });
}

bool AccessOwner::start(Operation& answer) {
  const Capabilities& capabilities = association_.rail()->capabilities();
  const bool may_keep = capabilities.lossless ||
                        association_.sequencer().kept().bytes() + answer.length <= kMaxKeptAnswers;
  if (!answer.buffers.on_host || answer.length > capabilities.eager_limit_bytes ||
      answer.length > capabilities.max_payload_bytes || !may_keep) {
    auto transfer = make_pooled<SendTransfer>(transfers_.data().blocks, transfers_, answer);
    const AnnounceBody body = transfer->make_announcement();
    const WireHeader header{
        .kind = MessageKind::kAnnounceGet, .tag = access_of(answer).id, .value = answer.length};
    const Code code = SendTransfer::announce(transfer, header, body);
    if (code != Code::kOk) return association_.refused(answer, code);
    access_of(answer).asked = true;
    return true;
  }
  const WireHeader header{
      .kind = MessageKind::kGetData, .tag = access_of(answer).id, .value = answer.length};
  const Code code =
      association_.sequencer().send(header, ExtentView{answer.extents(), 0, answer.length});
  if (code != Code::kOk) return association_.refused(answer, code);
  access_of(answer).asked = true;
  permits_.answered(association_.sequencer().sent());
  access_of(answer).holds_permit = false;
  transfers_.data().completer.complete(answer);
  return true;
}

void AccessOwner::end(Operation& answer, Code code, std::string text) {
  if (access_of(answer).waiting) waiting_.remove(answer);
  transfers_.data().completer.complete(answer, code, std::move(text));
}

void AccessOwner::fail_everything(const Status& why) {
  while (!waiting_.empty()) {
    Operation& answer = waiting_.front();
    end(answer, why.code(), text_or_none([&]() HETCOMM_UNDER_BATON {
          return fmt::format("{}: {}", describe(answer), why.text());
        }));
  }
}

// --- atomics --------------------------------------------------------------------

void AccessOwner::receive_atomic(const WireHeader& header, ConstByteSpan payload) {
  AtomicBody body;
  if (!decode_body(payload, &body) || body.range.length != sizeof(uint64_t)) {
    association_.violated("atomic of a wrong size");
    return;
  }
  if (!hold()) return;
  Code code = Code::kOk;
  Registration* registration = find(body.range, HETCOMM_ACCESS_ATOMIC, &code);
  if (registration == nullptr) {
    refuse(header.tag, code);
    return;
  }
  std::byte* at = static_cast<std::byte*>(registration->memory().address()) + body.range.offset;
  if (!is_aligned_word(at) ||
      (body.action != AtomicAction::kAdd && body.action != AtomicAction::kCompareSwap)) {
    refuse(header.tag, Code::kInvalidArgument);
    return;
  }
  association_.send_protocol(MessageKind::kAtomicDone, header.tag, do_atomic(at, body), nullptr, 0,
                             Permit::kOwner);
}

}  // namespace hetcomm
