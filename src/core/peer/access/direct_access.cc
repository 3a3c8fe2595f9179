#include "src/core/peer/access/direct_access.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <type_traits>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/room.h"
#include "src/base/text.h"
#include "src/core/memory/access_state.h"

namespace hetcomm {

DirectAccess::DirectAccess(DirectAccesses& all, Association& association, Operation& operation)
    : all_(all), association_(association), operation_(operation), near_(all.near(operation)) {}

void DirectAccess::start() {
  Rail& rail = *association_.rail();
  const bool is_little = operation_.length < 2 * kMinPiece;
  if (is_little && association_.choose_rails(near_).admit(rail.ends) &&
      all_.may_go(operation_, rail)) [[likely]] {
    next_ = operation_.length;
    issue(rail, {0, operation_.length});
    return;
  }
  association_.need_rails(near_);
  feed();
  settle();
}

bool DirectAccess::cancel(Code code, std::string* text) {
  if (cancelled_) return true;
  drop_pieces();
  const bool is_put = operation_.kind == OperationKind::kPut;
  if (!is_put || (breaking_count_ == 0 && !all_.is_barrier_up())) return false;
  cancelled_ = true;
  code_ = code;
  text_ = std::move(*text);
  return true;
}

void DirectAccess::lose(Code* code, std::string* text) {
  drop_pieces();
  if (!cancelled_) return;
  *code = code_;
  *text = std::move(text_);
}

void DirectAccess::drop_pieces() {
  for (size_t i = 0; i < count_; ++i) {
    const Rail* const rail = pieces()[i].rail;
    if (rail == nullptr || !association_.bulks().cancel(pieces()[i])) continue;
    if (!is_breaking(*rail)) breaking_[breaking_count_++] = rail;
  }
  running_ = 0;
}

void DirectAccess::rail_failed(const Rail& rail) {
  breaking_count_ = static_cast<size_t>(
      std::remove(breaking_.begin(), breaking_.begin() + breaking_count_, &rail) -
      breaking_.begin());
  bool had_some = false;
  for (size_t i = 0; i < count_; ++i) {
    OwnedBulk& piece = pieces()[i];
    if (piece.rail != &rail) continue;
    missing_[missing_count_++] = {piece.local.offset, piece.local.length};
    association_.bulks().cancel(piece);
    --running_;
    had_some = true;
  }
  if (had_some) ++failures_;
}

void DirectAccess::go_on() {
  feed();
  settle();
}

void DirectAccess::retire() {
  all_.forget(operation_);
  DataServices& data = all_.data();
  data.retire(PoolPtr<DirectAccess>(this, {&data.blocks}));
}

void DirectAccess::on_bulk(Bulk& /*bulk*/, Code code) {
  if (code != Code::kOk && code_ == Code::kOk) code_ = code;
  --running_;
  feed();
  settle();
}

bool DirectAccess::is_breaking(const Rail& rail) const {
  const auto end = breaking_.begin() + breaking_count_;
  return std::find(breaking_.begin(), end, &rail) != end;
}

size_t DirectAccess::running_on(const Rail& rail) {
  return static_cast<size_t>(std::count_if(
      pieces(), pieces() + count_, [&](const OwnedBulk& piece) { return piece.rail == &rail; }));
}

// Starts pieces on connections that have fewer than kDepth in flight.
void DirectAccess::feed() {
  if (code_ != Code::kOk || !may_fail_again() || !is_missing_some()) return;
  std::array<Rail*, kMaxRails> rails{};
  size_t count = 0;
  double total = 0;
  association_.for_each_bulk_rail(near_, [&](Rail& rail) HETCOMM_UNDER_BATON {
    if (count == rails.size() || !all_.may_go(operation_, rail)) return;
    rails[count++] = &rail;
    total += rail.rate_of(rail.sending);
  });
  for (size_t depth = 1; depth <= kDepth; ++depth) {
    for (size_t i = 0; i < count && is_missing_some(); ++i) {
      Rail& rail = *rails[i];
      // A new connection may have replaced a failed one while all pieces are in use.
      if (running_on(rail) >= depth || running_ == kMaxPieces) continue;
      issue(rail, take(count, rail.rate_of(rail.sending) / total));
    }
  }
}

// Removes and returns the next range to move, for one of |rails| connections. |share| is the share
// of this connection in the total rate.
DirectAccess::Range DirectAccess::take(size_t rails, double share) {
  if (missing_count_ > 0) return missing_[--missing_count_];
  const uint64_t rest = operation_.length - next_;
  uint64_t length = std::min(rest, kMaxPiece);
  if (rails > 1) {
    const auto fair = static_cast<uint64_t>(static_cast<double>(rest) * share / kDepth);
    length = std::clamp((fair + kPieceUnit - 1) / kPieceUnit * kPieceUnit, kMinPiece, kMaxPiece);
  }
  if (rest < length + kMinPiece) length = rest;
  const Range range{next_, length};
  next_ += length;
  return range;
}

void DirectAccess::issue(Rail& rail, Range range) {
  static_assert(std::is_trivially_destructible_v<OwnedBulk>);
  OwnedBulk* const unused = std::find_if(
      pieces(), pieces() + count_, [](const OwnedBulk& piece) { return piece.rail == nullptr; });
  if (unused == pieces() + count_) ++count_;
  OwnedBulk& piece = *std::construct_at(unused);
  piece.owner = this;
  piece.rail = &rail;
  piece.is_get = operation_.kind == OperationKind::kGet;
  piece.local = ExtentView{operation_.extents(), range.offset, range.length};
  piece.key = access_of(operation_).remote->key(rail.ends.peer);
  piece.remote_offset = operation_.target.offset + range.offset;
  piece.high_priority = operation_.options.high_priority;
  if (!operation_.buffers.on_host) rail.counters().device_bytes_direct += range.length;
  ++running_;
  association_.bulks().submit(piece);
}

// Completes the access, or continues it by message, when nothing is in flight and no connection
// accepts more pieces.
void DirectAccess::settle() {
  if (running_ > 0 || breaking_count_ > 0) return;
  // A put that has failed or continues by message also waits for the barrier, since no byte of it
  // may arrive after it has completed.
  if (operation_.kind == OperationKind::kPut && all_.is_barrier_up()) return;
  if (cancelled_) {
    retire();
    all_.data().completer.complete(operation_, code_, std::move(text_));
    return;
  }
  if (code_ == Code::kOk && is_missing_some()) {
    // The access waits until a connection opens or the pair is lost.
    if (association_.rail() == nullptr || association_.waits_for_rails(near_)) return;
    const uint64_t placed = placed_in_front();
    retire();
    all_.user().go_by_message(operation_, placed);
    return;
  }
  retire();
  all_.user().finish_direct(operation_, code_);
}

uint64_t DirectAccess::placed_in_front() const {
  uint64_t placed = next_;
  for (size_t i = 0; i < missing_count_; ++i) placed = std::min(placed, missing_[i].offset);
  return placed;
}

// --- all accesses of a pair -----------------------------------------------------

bool DirectAccesses::may_go(const Operation& operation, const Rail& rail) {
  return rail.capabilities().regions && operation.length > 0 &&
         !access_of(operation).direct_failed &&
         access_of(operation).remote->key(rail.ends.peer) != RemoteKey{} &&
         data_.reaches(operation, rail.ends.own);
}

RailMasks DirectAccesses::near(const Operation& operation) {
  return {.own = data_.near.of(operation), .peer = access_of(operation).remote->transports()};
}

// Returns whether |operation| can use connections other than |rail|, the current one, or should
// wait for one that is being made. The owner gives keys only for network interfaces near the
// memory, and |rail| may use another interface.
bool DirectAccesses::may_go_beside(const Operation& operation, const Rail& rail) {
  const RailMasks kin = near(operation) & rail.kin;
  if (!rail.capabilities().regions || operation.length == 0 || access_of(operation).direct_failed ||
      kin.peer == 0 || kin.own == 0) {
    return false;
  }
  association_.need_rails(kin);
  if (association_.waits_for_rails(kin)) {
    for (size_t i = 0; i < 64; ++i) {
      if ((kin.own >> i & 1) != 0 && data_.reaches(operation, i)) return true;
    }
    return false;
  }
  bool some = false;
  association_.for_each_bulk_rail(
      kin, [&](const Rail& each) HETCOMM_UNDER_BATON { some = some || may_go(operation, each); });
  return some;
}

void DirectAccesses::start(Operation& operation) {
  make_room(operations_);
  auto direct = make_pooled<DirectAccess>(data_.blocks, *this, association_, operation);
  hetcomm_counters_t& counters = association_.rail()->counters();
  count_access(operation, counters);
  ++counters.direct;
  operation.phase = OperationPhase::kDirect;
  assert(direct_of(operation) == nullptr);
  direct_of(operation) = direct.get();
  direct->position = operations_.size();
  operations_.push_back(&operation);
  direct.release()->start();
}

void DirectAccesses::forget(Operation& operation) {
  const size_t position = direct_of(operation)->position;
  operations_[position] = operations_.back();
  direct_of(*operations_[position])->position = position;
  operations_.pop_back();
  direct_of(operation) = nullptr;
}

bool DirectAccesses::cancel(Operation& operation, Code code, std::string* text) {
  DirectAccess& direct = *direct_of(operation);
  if (direct.cancel(code, text)) return true;
  direct.retire();
  return false;
}

void DirectAccesses::lose_all(const Status& why) {
  while (!operations_.empty()) lose(*operations_.back(), why);
}

void DirectAccesses::lose(Operation& operation, const Status& why) {
  Code code = why.code();
  std::string text = text_or_none(
      [&]() HETCOMM_UNDER_BATON { return fmt::format("{}: {}", describe(operation), why.text()); });
  DirectAccess& direct = *direct_of(operation);
  direct.lose(&code, &text);
  direct.retire();
  data_.completer.complete(operation, code, std::move(text));
}

void DirectAccesses::rail_failed(const Rail& rail, bool peer_has_to_know) {
  for (Operation* operation : operations_) direct_of(*operation)->rail_failed(rail);
  if (!peer_has_to_know) return;
  ++untold_failures_;
  if (rail.capabilities().regions) barrier_ = FailureBarrier::kWanted;
}

// The barrier is lifted when the peer acknowledges the last message that reports a failed
// connection. It does not wait for later messages, since the peer might never acknowledge them.
void DirectAccesses::told_of_failure(uint32_t sent) {
  --untold_failures_;
  if (barrier_ != FailureBarrier::kWanted || untold_failures_ > 0) return;
  barrier_ = FailureBarrier::kAsked;
  barrier_sequence_ = sent;
}

void DirectAccesses::acknowledged(uint32_t sequence) {
  if (barrier_ == FailureBarrier::kAsked &&
      static_cast<int32_t>(sequence - barrier_sequence_) >= 0) {
    barrier_ = FailureBarrier::kNone;
    go_on();
  }
}

void DirectAccesses::go_on() {
  ++round_;
  // When an access is retired, forget() moves the last one to its position. The loop has visited
  // that one already, or it is new and needs no visit.
  for (size_t i = operations_.size(); i-- > 0;) {
    if (i >= operations_.size()) continue;
    DirectAccess& direct = *direct_of(*operations_[i]);
    if (std::exchange(direct.round, round_) != round_) direct.go_on();
  }
}

bool DirectAccesses::uses(const Rail& rail) const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [&](const Operation* operation)
                         HETCOMM_UNDER_BATON { return direct_of(*operation)->uses(rail); });
}

}  // namespace hetcomm
