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
  flow.ways = std::make_unique<Place[]>(kWays);
  flows_.push_back(&flow);
  for (size_t way = 0; way < kWays; ++way) flow.ways[way].next_tag = ways_[way].now_tag;
  flow.pacer = this;
}

void Pacer::remove(Flow& flow) {
  if (flow.pacer != this) return;
  for (size_t way = 0; way < kWays; ++way) {
    stop_waiting(flow, way);
    ways_[way].under_way -= flow.ways[way].under_way;
  }
  flow.pacer = nullptr;
  flow.ways.reset();
  std::erase(flows_, &flow);
  set_timer(0);
  if (waiting_ > 0) schedule_.update_due(pair_);
}

void Pacer::clear() {
  while (!flows_.empty()) remove(*flows_.back());
}

// A flow that had nothing to send keeps no claim on what it did not take.
uint64_t Pacer::tag_of(const Flow& flow, size_t way) const {
  return std::max(flow.ways[way].next_tag, ways_[way].now_tag);
}

uint64_t Pacer::allowed(Flow& flow, uint64_t rail, uint64_t wanted, bool high, uint64_t now_ns) {
  const size_t way = way_of(rail);
  if (flow.earliest_ns > now_ns) {
    let_wait(flow, way);
    if (flow.earliest_ns < timer_ns_) {
      timer_ns_ = flow.earliest_ns;
      schedule_.note_timer(timer_ns_);
    }
    return 0;
  }
  if (!high) {
    // Behind earlier data of the same flow.
    if (flow.ways[way].waits) return 0;
    const Flow* const other = first_waiting(way, now_ns);
    if (!has_room(way) || (other != nullptr && tag_of(*other, way) < tag_of(flow, way))) {
      let_wait(flow, way);
      return 0;
    }
  }
  return std::min(wanted, piece_of(flow.share));
}

Pacer::Piece Pacer::started(Flow& flow, uint64_t rail, uint64_t bytes, uint64_t now_ns) {
  const size_t way = way_of(rail);
  Place& place = flow.ways[way];
  ways_[way].now_tag = tag_of(flow, way);
  place.next_tag = ways_[way].now_tag + bytes * kTagsPerByte / flow.share.weight;
  if (flow.share.bytes_per_second > 0) {
    const uint64_t earliest = now_ns > kBurstNs ? now_ns - kBurstNs : 0;
    flow.earliest_ns =
        std::max(flow.earliest_ns, earliest) + duration_ns(bytes, flow.share.bytes_per_second);
  }
  place.under_way += bytes;
  ways_[way].under_way += bytes;
  return {&flow, bytes, static_cast<uint8_t>(way)};
}

void Pacer::ended(const Piece& piece) {
  piece.flow->ways[piece.way].under_way -= piece.bytes;
  ways_[piece.way].under_way -= piece.bytes;
  if (waiting_ > 0) schedule_.update_due(pair_);
}

void Pacer::let_wait(Flow& flow, size_t way) {
  if (flow.ways[way].waits) return;
  flow.ways[way].waits = true;
  ++ways_[way].waiting;
  ++waiting_;
}

void Pacer::stop_waiting(Flow& flow, size_t way) {
  if (!flow.ways[way].waits) return;
  flow.ways[way].waits = false;
  --ways_[way].waiting;
  --waiting_;
}

// Of those whose rate allows a piece, the one with the lowest tag.
Pacer::Flow* Pacer::first_waiting(size_t way, uint64_t now_ns) const {
  if (ways_[way].waiting == 0) return nullptr;
  Flow* first = nullptr;
  for (Flow* flow : flows_) {
    if (!flow->ways[way].waits || flow->earliest_ns > now_ns) continue;
    if (first == nullptr || tag_of(*flow, way) < tag_of(*first, way)) first = flow;
  }
  return first;
}

// For those that wait and whose rate allows nothing before |now_ns|.
void Pacer::set_timer(uint64_t now_ns) {
  timer_ns_ = kForever;
  if (waiting_ == 0) return;
  for (const Flow* flow : flows_) {
    const auto waits = [](const Place& place) { return place.waits; };
    if (flow->earliest_ns > now_ns &&
        std::any_of(flow->ways.get(), flow->ways.get() + kWays, waits)) {
      timer_ns_ = std::min(timer_ns_, flow->earliest_ns);
    }
  }
  if (timer_ns_ != kForever) schedule_.note_timer(timer_ns_);
}

Pacer::Flow* Pacer::next(uint64_t now_ns) {
  set_timer(now_ns);
  for (size_t way = 0; way < kWays; ++way) {
    if (ways_[way].waiting == 0) continue;
    Flow* const first = has_room(way) ? first_waiting(way, now_ns) : nullptr;
    if (first == nullptr) continue;
    stop_waiting(*first, way);
    return first;
  }
  return nullptr;
}

}  // namespace hetcomm
