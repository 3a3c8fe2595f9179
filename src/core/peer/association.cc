#include "src/core/peer/association.h"

#include <algorithm>
#include <new>

#include "src/base/baton_role.h"
#include "src/base/text.h"

namespace hetcomm {

Association::Association(const PairServices& services, PairBase& pair, int rank, uint32_t credit)
    : terms_(services.terms),
      engine_(services.data.engine),
      directory_(services.connections.paths.directory),
      turns_(services.turns),
      links_(services.links),
      completer_(services.data.completer),
      pair_(pair),
      rank_(rank),
      rails_(terms_.rank <= rank),
      sequencer_(rails_, terms_.first_sequence, terms_.credit_granted),
      send_credit_(credit, terms_.first_sequence),
      bulks_(engine_, turns_, pair, state_) {}

// --- connections ------------------------------------------------------------

size_t Association::count_bulk_rails(const RailMasks& masks) {
  size_t count = 0;
  for_each_bulk_rail(masks, [&](Rail&) { ++count; });
  return count;
}

// Returns the transports of |masks| that are also in |kin|, the set of all transports of one kind.
// If a side's mask contains none of them, that side gets all of |kin|. This happens because a peer
// can send an invalid mask.
static RailMasks of_kind(const RailMasks& masks, const RailMasks& kin) {
  const RailMasks common = masks & kin;
  return {common.own != 0 ? common.own : kin.own, common.peer != 0 ? common.peer : kin.peer};
}

RailMasks Association::choose_near_rails(const RailMasks& masks) {
  const RailMasks near = of_kind(masks, rails_.current()->kin);
  bool some = false;
  rails_.for_each_bulk([&](const Rail& rail)
                           HETCOMM_UNDER_BATON { some = some || near.admit(rail.ends); });
  if (some) return near;
  return needs_.is_waited_for(near) ? kNoRails : RailMasks{};
}

void Association::need_rails(const RailMasks& masks) {
  if (!is_ready() || rails_.current()->capabilities().lossless) return;
  const RailMasks near = of_kind(masks, rails_.current()->kin);
  if (needs_.knows(near)) [[likely]]
    return;
  if (needs_.note(near)) pair_.rails_needed(near);
}

// --- protocol messages ------------------------------------------------------

void Association::send_protocol(MessageKind kind, uint64_t tag, uint64_t value, const void* body,
                                size_t size, Permit permit) {
  if (is_lost() || starved_) return;
  const WireHeader header{.kind = kind, .tag = tag, .value = value};
  try {
    if (may_send() && try_send(header, body, size, sequencer_.received(), permit)) return;
    protocol_.push(header, body, size, sequencer_.received(), permit);
  } catch (const std::bad_alloc&) {
    starve();
  }
}

void Association::send_reason(MessageKind kind, uint64_t tag, const Status& why, Permit permit) {
  const Status told = reason_for_others(terms_.rank, why);
  const size_t size = std::min(told.text().size(), kMaxReasonBytes);
  send_protocol(kind, tag, static_cast<uint64_t>(why.code()), told.text().data(), size, permit);
}

bool Association::try_send(const WireHeader& header, const void* body, size_t size,
                           uint32_t acknowledged, Permit permit) {
  iovec storage{const_cast<void*>(body), size};
  const Code code =
      sequencer_.send(header, ExtentView{Extents(&storage, 1), 0, size}, acknowledged);
  if (code != Code::kOk) return false;
  if (permit == Permit::kOwner) {
    permits_.answered(sequencer_.sent());
  } else if (permit == Permit::kInitiator || header.kind == MessageKind::kRailDown) [[unlikely]] {
    pair_.protocol_message_left(header.kind);
  }
  return true;
}

bool Association::send_waiting_protocol() {
  if (protocol_.empty()) return true;
  // Each message acknowledges only what had arrived when it was queued. Otherwise it would
  // acknowledge operations whose refusals are queued behind it.
  const bool all = protocol_.send_all([this](const ProtocolMessage& message) HETCOMM_UNDER_BATON {
    return try_send(message.header, message.body.data(), message.size, message.received,
                    message.permit);
  });
  if (all && !sequencer_.is_reported()) update_due();
  return all;
}

bool Association::send_update(uint8_t flags) {
  const WireHeader header{.kind = MessageKind::kUpdate,
                          .flags = flags,
                          .acknowledged = sequencer_.received(),
                          .credit = receive_credit().returned()};
  return rails_.current()->endpoint().send(encode_header(header), ExtentView{}) == Code::kOk;
}

void Association::starve() {
  if (is_lost()) return;
  starved_ = true;
  state_ = PairState::kConnecting;
  update_due();
}

// --- operations -------------------------------------------------------------

// Both branches notify the peer if the operation has begun.
void Association::end_started(Operation& operation) {
  if (operation.phase == OperationPhase::kQueued || operation.phase == OperationPhase::kSubmitted) {
    end_unsent(operation, Code::kOutOfMemory, {});
  } else {
    end_out_of_memory(operation);
  }
}

bool Association::refused(Operation& operation, Code code) {
  if (code == Code::kWouldBlock || code == Code::kPeerLost) return false;
  end_unsent(operation, code, fmt::format("send to rank {}: {}", rank_, code_text(code)));
  return true;
}

void Association::end_unsent(Operation& send, Code code, std::string text) {
  const uint64_t pull_id = send.run.pull_id;
  const bool begun = send.run.sent > 0 || pull_id != 0;
  const bool aborted = is_aborted(send, code);
  const Status why = status_or_code(code, [&] { return text; });
  completer_.complete(send, code, std::move(text));
  if (!begun) return;
  if (aborted) {
    send_protocol(MessageKind::kWithdraw, pull_id, code);
  } else {
    send_reason(MessageKind::kWithdraw, pull_id, why);
  }
}

void Association::end_out_of_memory(Operation& operation) {
  if (operation.state() != OperationState::kPending) return;
  pair_.end(operation, Code::kOutOfMemory, text_or_none([&]() HETCOMM_UNDER_BATON {
              return fmt::format("{}: out of memory", describe(operation));
            }));
}

}  // namespace hetcomm
