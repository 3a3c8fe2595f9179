#include "src/core/peer/traffic.h"

#include <utility>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/transfer/transfers.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxEarlyGrants = 4096;

}  // namespace

// --- operations ---------------------------------------------------------------

void Traffic::pump() {
  if (!association_.is_ready() || !association_.send_waiting_protocol()) return;
  access_.owner().start_waiting();
  // No operation may overtake a pending protocol message.
  OperationQueue& outbox = association_.outbox();
  while (!outbox.empty() && association_.may_send()) {
    Operation& operation = outbox.front();
    outbox.remove(operation);
    if (!start_or_end(operation)) {
      outbox.push_front(operation);
      operation.phase = OperationPhase::kQueued;
      break;
    }
  }
  access_.initiator().start_waiting();
  if (association_.is_ready()) association_.bulks().submit_waiting();
}

void Traffic::end(Operation& operation, Code code, std::string text) {
  switch (operation.phase) {
    case OperationPhase::kQueued:
      association_.outbox().remove(operation);
      association_.end_unsent(operation, code, std::move(text));
      break;
    case OperationPhase::kArriving:
      receiver_.detach(operation);
      completer_.complete(operation, code, std::move(text));
      break;
    case OperationPhase::kTransfer:
      if (transfers_of(operation).send != nullptr) {
        transfers_of(operation).send->end(code, std::move(text));
      } else {
        transfers_of(operation).receive->end(code, std::move(text));
      }
      break;
    case OperationPhase::kAwaiting:
    case OperationPhase::kDirect:
      access_.end(operation, code, std::move(text));
      break;
    case OperationPhase::kUnopened:
      tracks_.end_unopened(operation, code, std::move(text));
      break;
    case OperationPhase::kCopying:
      break;  // all bytes have arrived; the operation completes with the copy
    case OperationPhase::kSubmitted:
    case OperationPhase::kCollected:
    case OperationPhase::kBehind:
    case OperationPhase::kPosted:
    case OperationPhase::kCollective:
      // Operations in these phases are in no list of this object.
      completer_.complete(operation, code, std::move(text));
      break;
  }
}

// --- arriving messages ----------------------------------------------------------

void Traffic::receive(Rail& rail, const MessageHeader& raw, ConstByteSpan payload) {
  const WireHeader header = decode_header(raw);
  Sequencer& sequencer = association_.sequencer();
  association_.set_receiving_on(rail);
  const bool more_credit = association_.send_credit().learn(header.credit);
  const bool awaited = access_.awaits_acknowledgement();
  if (!sequencer.kept().empty() || awaited) {
    if (!sequencer.was_sent(header.acknowledged)) [[unlikely]] {
      association_.violated("acknowledgement of what was not sent");
      return;
    }
    sequencer.acknowledge(header.acknowledged);
    access_.answers_acknowledged(header.acknowledged);
  }
  if (!deal_with(rail, header, payload)) [[unlikely]]
    return;
  // The acknowledgement is applied after the message, since the message may refuse one of the
  // acknowledged operations. It does not cover operations that were sent while the message was
  // handled.
  if (awaited) [[unlikely]]
    access_.acknowledged(header.acknowledged);
  if (!more_credit) return;
  if (!association_.outbox().empty() || !association_.protocol().empty()) pump();
  if (access_.initiator().waits_for_credit()) [[unlikely]]
    access_.initiator().credit_came();
}

// Returns false if the message was dropped and has no effect.
inline bool Traffic::deal_with(const Rail& rail, const WireHeader& header, ConstByteSpan payload) {
  if (header.kind == MessageKind::kUpdate) {
    if ((header.flags & kFlagAnswer) != 0) {
      association_.update_due();
    }
    return true;
  }
  Sequencer& sequencer = association_.sequencer();
  if (!sequencer.is_next(header.sequence)) [[unlikely]] {
    if (!sequencer.had(header.sequence)) association_.violated("message out of order");
    return false;
  }
  sequencer.take_next();
  const bool lossless = rail.capabilities().lossless;  // |rail| may be gone after dispatch()
  if (header.kind == MessageKind::kEager) [[likely]] {
    receiver_.receive_eager(header, payload);
  } else {
    dispatch(header, payload);
  }
  if (!lossless && sequencer.count_unreported(payload.size())) {
    association_.update_due();
  }
  return true;
}

void Traffic::dispatch(const WireHeader& header, ConstByteSpan payload) {
  switch (header.kind) {
    case MessageKind::kEagerFirst:
      return receiver_.receive_first(header, payload);
    case MessageKind::kEagerMore:
      return receiver_.receive_more(header, payload);
    case MessageKind::kPull:
      return receiver_.receive_pull(header, payload);
    case MessageKind::kAnnounce:
      return receiver_.receive_announced(header, payload);
    case MessageKind::kWithdraw:
      return receiver_.receive_withdraw(header, payload);
    case MessageKind::kPush:
      return receive_push(header.tag);
    case MessageKind::kPullPause:
      return receive_pull_pause(header);
    case MessageKind::kGrant:
      return receive_grant(header, payload);
    case MessageKind::kOffer:
      return receive_offer(header, payload);
    case MessageKind::kTaken:
      return receive_taken(header);
    case MessageKind::kDone:
      return receive_done(header.tag);
    case MessageKind::kStop:
      return receive_stop(header, payload);
    case MessageKind::kTrackOpen:
      return tracks_.receive_open(header, payload);
    case MessageKind::kTrackLength:
      return tracks_.receive_length(header);
    case MessageKind::kTrackAt:
      return tracks_.receive_at(header);
    case MessageKind::kTrackClosed:
      return tracks_.receive_closed(header, payload);
    case MessageKind::kReshardText:
      return reshard_notes_.receive_text(payload);
    case MessageKind::kReshardNote:
      return reshard_notes_.receive(header, payload);
    case MessageKind::kOpen:
    case MessageKind::kWake:
    case MessageKind::kRailDown:
    case MessageKind::kRailUnused:
    case MessageKind::kRailClosed:
    case MessageKind::kCloseIdle:
    case MessageKind::kMayClose:
    case MessageKind::kRailsWanted:
      return association_.pair().receive_connection_message(header);
    default:
      return access_.receive(header, payload);
  }
}

void Traffic::receive_grant(const WireHeader& header, ConstByteSpan payload) {
  Grant grant;
  grant.offers_to = header.tag;
  grant.wants_offers = header.value == 1;
  if (!decode_body<GrantBody>(payload, &grant)) {
    association_.violated("grant of a wrong size");
  } else if (early_grants_.size() >= kMaxEarlyGrants && association_.rails().is_early(grant.rail)) {
    association_.violated("too many grants for a connection that is not open");
  } else {
    take(grant);
  }
}

// Applies |grant|, or keeps it if it names a connection that has no number yet.
void Traffic::take(const Grant& grant) {
  if (association_.rails().is_early(grant.rail)) {
    early_grants_.push_back(grant);
  } else if (is_run_id(grant.sender_id)) {
    tracks_.granted(grant);
  } else if (SendTransfer* transfer = transfers_.sends().find(grant.sender_id);
             transfer != nullptr) {
    transfer->granted(grant);
  }
}

void Traffic::take_early_grants() {
  if (early_grants_.empty()) return;
  std::vector<Grant> grants;
  grants.swap(early_grants_);
  for (const Grant& grant : grants) take(grant);
}

void Traffic::receive_offer(const WireHeader& header, ConstByteSpan payload) {
  OfferBody offer;
  if (!decode_body(payload, &offer)) {
    association_.violated("offer of a wrong size");
  } else if (PutTarget* target = transfers_.targets().find(header.tag)) {
    target->on_offered(offer, header.value);
  }
}

void Traffic::receive_taken(const WireHeader& header) {
  SendTransfer* const transfer = find_send(header.tag);
  if (transfer == nullptr) return;
  transfer->offer_answered(static_cast<uint32_t>(header.value), header.value >> 32 != 0);
}

void Traffic::on_mapped(Rail& rail, const RemoteKey& key, const Result<MappedRegion>& mapped) {
  if (!transfers_.offers().mapped(rail, key, mapped)) {
    access_.initiator().mapped().mapped(rail, key, mapped);
    return;
  }
  transfers_.receives().for_each([](ReceiveTransfer& transfer)
                                     HETCOMM_UNDER_BATON { transfer.take_offers(); });
  transfers_.offers().forget_refused();
}

void Traffic::on_unmap(Rail& rail, const RemoteKey& key) {
  transfers_.offers().unmap(rail, key);
  access_.initiator().mapped().unmap(rail, key);
}

void Traffic::receive_stop(const WireHeader& header, ConstByteSpan payload) {
  const PeerReason why(association_.rank(), header, payload);
  if (is_run_id(header.tag)) {
    tracks_.stopped(header.tag, why);
  } else if (SendTransfer* transfer = transfers_.sends().find(header.tag); transfer != nullptr) {
    transfer->stopped(why);
  }
}

void Traffic::receive_done(uint64_t id) {
  SendTransfer* transfer = find_send(id);
  if (transfer == nullptr) return;
  if (transfer->is_pulled()) sender_.pull_answered(transfer->length());
  transfer->done();
}

// Pushes a message that the peer cannot pull.
void Traffic::receive_push(uint64_t id) {
  SendTransfer* transfer = transfers_.sends().find(id);
  if (transfer == nullptr || !transfer->is_pulled()) return;
  sender_.push(*transfer);
  pump();
}

void Traffic::receive_pull_pause(const WireHeader& header) {
  if (header.tag >= PullClass::kCount) {
    association_.violated("pause for messages of no class");
    return;
  }
  sender_.learn_pause(header.tag, header.value);
}

void Traffic::send_update() {
  tracks_.go_on();
  if (!association_.outbox().empty() || access_.has_to_start()) pump();
  // A queued protocol message must be sent before the acknowledgement of the message that it
  // refuses.
  if (!association_.may_send()) return;
  Sequencer& sequencer = association_.sequencer();
  ReceiveCredit& credit = association_.receive_credit();
  if (credit.is_reported() && sequencer.is_reported()) return;
  if (!association_.send_update(0)) return;  // retried when the connection is writable
  credit.report();
  sequencer.report();
}

void Traffic::ask_for_acknowledgement() {
  if (association_.may_send() && !association_.sequencer().kept().empty()) {
    association_.send_update(kFlagAnswer);
  }
}

// --- connections ----------------------------------------------------------------

void Traffic::restart() {
  tracks_.go_on();
  transfers_.sends().for_each([](SendTransfer& transfer) HETCOMM_UNDER_BATON { transfer.go_on(); });
  transfers_.receives().for_each([](ReceiveTransfer& transfer)
                                     HETCOMM_UNDER_BATON { transfer.rail_ready(); });
  access_.initiator().direct().go_on();
  if (sender_.push_at_ns() != kForever) sender_.push_overdue(association_.now_ns());
}

void Traffic::rail_failed(const Rail& rail, bool peer_has_to_know) {
  transfers_.sends().for_each([&](SendTransfer& transfer)
                                  HETCOMM_UNDER_BATON { transfer.rail_failed(rail); });
  transfers_.receives().for_each([&](ReceiveTransfer& transfer)
                                     HETCOMM_UNDER_BATON { transfer.rail_failed(rail); });
  transfers_.offers().rail_failed(rail);
  access_.initiator().rail_failed(rail, peer_has_to_know);
  tracks_.rail_failed(rail);
  association_.bulks().forget(rail);
}

bool Traffic::uses(const Rail& rail) {
  bool used = access_.initiator().direct().uses(rail) || tracks_.uses(rail);
  transfers_.sends().for_each([&](const SendTransfer& transfer)
                                  HETCOMM_UNDER_BATON { used = used || transfer.uses(rail); });
  transfers_.receives().for_each([&](const ReceiveTransfer& transfer)
                                     HETCOMM_UNDER_BATON { used = used || transfer.uses(rail); });
  return used;
}

// --- as a whole -------------------------------------------------------------------

bool Traffic::flushed() const {
  if (!association_.outbox().empty() || !association_.protocol().empty() ||
      !access_.has_all_started()) {
    return false;
  }
  // Messages that may be lost are kept until the peer has acknowledged them.
  const Sequencer& sequencer = association_.sequencer();
  return !sequencer.owes() && sequencer.kept().empty() && association_.rails().all_flushed();
}

bool Traffic::is_idle() const {
  return association_.outbox().empty() && association_.protocol().empty() &&
         association_.bulks().empty() && transfers_.empty() && !receiver_.holds_announced() &&
         access_.is_idle();
}

void Traffic::fail_everything(const Status& why) {
  const auto text = [&] { return text_or_none([&] { return std::string(why.text()); }); };
  association_.protocol().clear();
  transfers_.sends().for_each([&](SendTransfer& transfer)
                                  HETCOMM_UNDER_BATON { transfer.end(why.code(), text()); });
  transfers_.receives().for_each([&](ReceiveTransfer& transfer)
                                     HETCOMM_UNDER_BATON { transfer.end(why.code(), text()); });
  access_.fail_everything(why);
  OperationQueue& outbox = association_.outbox();
  while (!outbox.empty()) {
    Operation& operation = outbox.front();
    outbox.remove(operation);
    completer_.complete(operation, why.code(), text_or_none([&]() HETCOMM_UNDER_BATON {
                          return fmt::format("{}: {}", describe(operation), why.text());
                        }));
  }
  receiver_.fail_everything(why);
  tracks_.fail_everything(why);
}

}  // namespace hetcomm
