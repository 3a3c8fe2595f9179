#include "src/core/peer/direct_access.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "src/core/peer/remote_access.h"

namespace hetcomm {

void DirectAccess::start() {
  if (operation_.length < 2 * kLeastPiece) {
    next_ = operation_.length;
    issue(*pair_.rail(), {0, operation_.length});
  } else {
    feed();
  }
}

bool DirectAccess::cancel(Code code, std::string* text) {
  if (cancelled_) return true;
  drop_parts();
  const bool is_put = operation_.kind == OperationKind::kPut;
  if (!is_put || (breaking_count_ == 0 && !access_.is_fence_open())) return false;
  cancelled_ = true;
  code_ = code;
  text_ = std::move(*text);
  return true;
}

void DirectAccess::lose(Code* code, std::string* text) {
  drop_parts();
  if (!cancelled_) return;
  *code = code_;
  *text = std::move(text_);
}

void DirectAccess::drop_parts() {
  for (size_t i = 0; i < count_; ++i) {
    const Rail* const rail = parts()[i].rail;
    if (rail == nullptr || !pair_.cancel_bulk(parts()[i])) continue;
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
    OwnedBulk& part = parts()[i];
    if (part.rail != &rail) continue;
    missing_[missing_count_++] = {part.local.offset, part.local.length};
    pair_.cancel_bulk(part);
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
  access_.forget_direct(operation_);
  PairCommons& common = pair_.common();
  common.retire(PoolPtr<DirectAccess>(this, {&common.blocks}));
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
      parts(), parts() + count_, [&](const OwnedBulk& part) { return part.rail == &rail; }));
}

// Gives pieces to connections that have few.
void DirectAccess::feed() {
  if (code_ != Code::kOk || !may_fail_again() || !is_missing_some()) return;
  std::array<Rail*, kMostRails> rails{};
  size_t count = 0;
  double total = 0;
  pair_.for_each_bulk_rail([&](Rail& rail) {
    if (count == rails.size() || !access_.may_go_direct(operation_, rail)) return;
    rails[count++] = &rail;
    total += rail.rate_of(rail.sending);
  });
  for (size_t depth = 1; depth <= kDepth; ++depth) {
    for (size_t i = 0; i < count && is_missing_some(); ++i) {
      Rail& rail = *rails[i];
      // A connection of one that failed may have taken its place, and all parts be in use.
      if (running_on(rail) >= depth || running_ == kMostParts) continue;
      issue(rail, take(count, rail.rate_of(rail.sending) / total));
    }
  }
}

// For one of |rails| connections, whose share of their rates is |share|.
DirectAccess::Range DirectAccess::take(size_t rails, double share) {
  if (missing_count_ > 0) return missing_[--missing_count_];
  const uint64_t rest = operation_.length - next_;
  uint64_t length = std::min(rest, kMostPiece);
  if (rails > 1) {
    const auto fair = static_cast<uint64_t>(static_cast<double>(rest) * share / kDepth);
    length = std::clamp((fair + kPieceUnit - 1) / kPieceUnit * kPieceUnit, kLeastPiece, kMostPiece);
  }
  if (rest < length + kLeastPiece) length = rest;
  const Range range{next_, length};
  next_ += length;
  return range;
}

void DirectAccess::issue(Rail& rail, Range range) {
  static_assert(std::is_trivially_destructible_v<OwnedBulk>);
  OwnedBulk* const unused = std::find_if(
      parts(), parts() + count_, [](const OwnedBulk& part) { return part.rail == nullptr; });
  if (unused == parts() + count_) ++count_;
  OwnedBulk& part = *std::construct_at(unused);
  part.owner = this;
  part.rail = &rail;
  part.is_get = operation_.kind == OperationKind::kGet;
  part.local = SegmentView{operation_.segments(), range.offset, range.length};
  part.key = operation_.access.remote->key(rail.transport);
  part.remote_offset = operation_.access.offset + range.offset;
  part.high_priority = operation_.options.high_priority;
  if (!operation_.buffers.on_host) rail.counters().device_bytes_direct += range.length;
  ++running_;
  pair_.submit_bulk(part);
}

// Ends it when nothing is under way and no connection takes more.
void DirectAccess::settle() {
  if (running_ > 0 || breaking_count_ > 0) return;
  // Also one that failed or goes on by message: nothing of it may arrive after its end.
  if (operation_.kind == OperationKind::kPut && access_.is_fence_open()) return;
  if (cancelled_) {
    retire();
    pair_.common().completer.complete(operation_, code_, std::move(text_));
    return;
  }
  if (code_ == Code::kOk && is_missing_some()) {
    if (pair_.rail() == nullptr) return;  // one comes, or the pair is lost
    const uint64_t placed = placed_in_front();
    retire();
    access_.go_by_message(operation_, placed);
    return;
  }
  retire();
  access_.finish_direct(operation_, code_);
}

uint64_t DirectAccess::placed_in_front() const {
  uint64_t placed = next_;
  for (size_t i = 0; i < missing_count_; ++i) placed = std::min(placed, missing_[i].offset);
  return placed;
}

}  // namespace hetcomm
