#include "src/core/peer/pacer.h"

#include <algorithm>

namespace hetcomm {
namespace {

// Tags count bytes over weight in this fraction. They do not overflow before 2^60 bytes.
constexpr uint64_t kTagsPerByte = 16;
constexpr uint64_t kNsPerSecond = 1'000'000'000;

// How long |bytes| take at |bytes_per_second|.
uint64_t duration_ns(uint64_t bytes, uint64_t bytes_per_second) {
  constexpr double kLongest = 1e18;
  const double ns = static_cast<double>(bytes) * static_cast<double>(kNsPerSecond) /
                    static_cast<double>(bytes_per_second);
  return static_cast<uint64_t>(std::min(ns, kLongest));
}

uint64_t piece_of(const LaneShare& share) {
  if (share.bytes_per_second == 0) return Pacer::kPieceBytes;
  return std::clamp(share.bytes_per_second / (kNsPerSecond / Pacer::kPieceNs),
                    Pacer::kLeastPieceBytes, Pacer::kPieceBytes);
}

}  // namespace

void Pacer::add(Flow& flow) {
  flow.pacer = this;
  flow.next_tag = now_tag_;
  flows_.push_back(&flow);
}

void Pacer::remove(Flow& flow) {
  if (flow.pacer != this) return;
  stop_waiting(flow);
  under_way_ -= flow.under_way;
  flow.under_way = 0;
  flow.pacer = nullptr;
  std::erase(flows_, &flow);
  if (waiting_ > 0) schedule_.update_due(pair_);
}

void Pacer::clear() {
  while (!flows_.empty()) remove(*flows_.back());
}

// A flow that had nothing to send keeps no claim on what it did not take.
uint64_t Pacer::tag_of(const Flow& flow) const { return std::max(flow.next_tag, now_tag_); }

uint64_t Pacer::allowed(Flow& flow, uint64_t wanted, uint64_t now_ns) {
  if (!paces(flow)) return wanted;
  // Behind earlier data of the same flow.
  if (flow.waits) return 0;
  const Flow* const other = first_waiting(now_ns);
  if (!has_room() || flow.earliest_ns > now_ns ||
      (other != nullptr && tag_of(*other) < tag_of(flow))) {
    let_wait(flow, now_ns);
    return 0;
  }
  return std::min(wanted, piece_of(flow.share));
}

uint64_t Pacer::started(Flow& flow, uint64_t bytes, uint64_t now_ns) {
  now_tag_ = tag_of(flow);
  flow.next_tag = now_tag_ + bytes * kTagsPerByte / flow.share.weight;
  if (flow.share.bytes_per_second > 0) {
    const uint64_t earliest = now_ns > kBurstNs ? now_ns - kBurstNs : 0;
    flow.earliest_ns =
        std::max(flow.earliest_ns, earliest) + duration_ns(bytes, flow.share.bytes_per_second);
  }
  flow.under_way += bytes;
  under_way_ += bytes;
  return bytes;
}

void Pacer::ended(Flow& flow, uint64_t bytes) {
  flow.under_way -= bytes;
  under_way_ -= bytes;
  if (waiting_ > 0) schedule_.update_due(pair_);
}

void Pacer::let_wait(Flow& flow, uint64_t now_ns) {
  flow.waits = true;
  ++waiting_;
  if (flow.earliest_ns <= now_ns) return;
  timer_ns_ = std::min(timer_ns_, flow.earliest_ns);
  schedule_.note_timer(timer_ns_);
}

void Pacer::stop_waiting(Flow& flow) {
  if (!flow.waits) return;
  flow.waits = false;
  --waiting_;
}

// Of those whose rate allows a piece, the one with the lowest tag.
Pacer::Flow* Pacer::first_waiting(uint64_t now_ns) const {
  if (waiting_ == 0) return nullptr;
  Flow* first = nullptr;
  for (Flow* flow : flows_) {
    if (!flow->waits || flow->earliest_ns > now_ns) continue;
    if (first == nullptr || tag_of(*flow) < tag_of(*first)) first = flow;
  }
  return first;
}

Pacer::Flow* Pacer::next(uint64_t now_ns) {
  timer_ns_ = kForever;
  for (const Flow* flow : flows_) {
    if (flow->waits && flow->earliest_ns > now_ns) {
      timer_ns_ = std::min(timer_ns_, flow->earliest_ns);
    }
  }
  if (timer_ns_ != kForever) schedule_.note_timer(timer_ns_);
  Flow* const first = has_room() ? first_waiting(now_ns) : nullptr;
  if (first != nullptr) stop_waiting(*first);
  return first;
}

}  // namespace hetcomm
