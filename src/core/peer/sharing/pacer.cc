#include "src/core/peer/sharing/pacer.h"

#include <algorithm>
#include <new>

namespace hetcomm {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;

// Returns the time that |bytes| take at |bytes_per_second|.
uint64_t duration_ns(uint64_t bytes, uint64_t bytes_per_second) {
  constexpr double kLongest = 1e18;
  const double ns = static_cast<double>(bytes) * static_cast<double>(kNsPerSecond) /
                    static_cast<double>(bytes_per_second);
  return static_cast<uint64_t>(std::min(ns, kLongest));
}

uint64_t piece_of(const TrackShare& share) {
  if (share.bytes_per_second == 0) return Pacer::kPieceBytes;
  return std::clamp(share.bytes_per_second / (kNsPerSecond / Pacer::kPieceNs),
                    Pacer::kMinPieceBytes, Pacer::kPieceBytes);
}

}  // namespace

void Pacer::add(Flow& flow) {
  flow.ways = std::make_unique<FlowWay[]>(kWays);
  flow.member = std::make_unique<LinkShare::Member[]>(kLinks);
  flows_.push_back(&flow);
  size_t joined = 0;
  try {
    for (; joined < kLinks; ++joined) {
      LinkShare::Member& member = flow.member[joined];
      member.pair = &pair_;
      member.weight = flow.share.weight;
      member.earliest_ns = &flow.earliest_ns;
      link(joined).add(member);
    }
  } catch (const std::bad_alloc&) {
    while (joined-- > 0) link(joined).forget(flow.member[joined]);
    flows_.pop_back();
    throw;
  }
  flow.pacer = this;
}

void Pacer::remove(Flow& flow, uint64_t now_ns) {
  if (flow.pacer != this) return;
  for (size_t way = 0; way < kWays; ++way) {
    stop_waiting(flow, way);
    ways_[way].under_way -= flow.ways[way].under_way;
  }
  std::erase(flows_, &flow);
  for (size_t i = 0; i < kLinks; ++i) link(i).remove(flow.member[i], now_ns);
  flow.pacer = nullptr;
  flow.ways.reset();
  flow.member.reset();
  set_timer(0);
  if (waiting_ > 0) turns_.update_due(pair_);
}

void Pacer::clear(uint64_t now_ns) {
  while (!flows_.empty()) remove(*flows_.back(), now_ns);
}

bool Pacer::has_room(size_t way) const {
  const LinkShare& share = link(ways_[way].link);
  if (share.contended()) return ways_[way].under_way < share.window_bytes();
  return ways_[way].under_way < (flows_.size() > 1 ? kWindowBytes : kWindowAloneBytes);
}

uint64_t Pacer::allowed(Flow& flow, const Path& path, uint64_t wanted, bool high, uint64_t now_ns) {
  const size_t way = way_of(path.rail);
  ways_[way].link = path.link;
  if (flow.earliest_ns > now_ns) {
    let_wait(flow, way);
    if (flow.earliest_ns < timer_ns_) {
      timer_ns_ = flow.earliest_ns;
      turns_.note_timer(timer_ns_);
    }
    return 0;
  }
  if (!high) {
    // The piece has to wait behind earlier data of the same flow.
    if (flow.ways[way].waits) return 0;
    if (!has_room(way)) {
      let_wait(flow, way);
      return 0;
    }
    const Flow* const other = first_waiting(way, now_ns);
    if (other != nullptr && is_before(*other, flow, way)) {
      let_wait(flow, way);
      turns_.update_due(pair_);  // |other| sends instead
      return 0;
    }
    if (!link(path.link).may_start(flow.member[path.link], now_ns)) {
      let_wait(flow, way);
      return 0;
    }
  }
  const LinkShare& share = link(path.link);
  return std::min(
      {wanted, piece_of(flow.share), share.contended() ? share.piece_bytes() : kPieceBytes});
}

Pacer::Piece Pacer::started(Flow& flow, const Path& path, uint64_t bytes, uint64_t now_ns) {
  const size_t way = way_of(path.rail);
  if (flow.share.bytes_per_second > 0) {
    const uint64_t earliest = now_ns > kBurstNs ? now_ns - kBurstNs : 0;
    flow.earliest_ns =
        std::max(flow.earliest_ns, earliest) + duration_ns(bytes, flow.share.bytes_per_second);
  }
  flow.ways[way].under_way += bytes;
  ways_[way].under_way += bytes;
  link(path.link).started(flow.member[path.link], bytes, now_ns);
  return {&flow, bytes, static_cast<uint8_t>(way), static_cast<uint8_t>(path.link)};
}

void Pacer::ended(const Piece& piece, uint64_t now_ns) {
  piece.flow->ways[piece.way].under_way -= piece.bytes;
  ways_[piece.way].under_way -= piece.bytes;
  link(piece.link).ended(piece.flow->member[piece.link], piece.bytes, now_ns);
  if (waiting_ > 0) turns_.update_due(pair_);
}

void Pacer::let_wait(Flow& flow, size_t way) {
  FlowWay& own = flow.ways[way];
  if (own.waits) return;
  own.waits = true;
  own.link = ways_[way].link;
  link(own.link).waits(flow.member[own.link]);
  ++ways_[way].waiting;
  ++waiting_;
}

void Pacer::stop_waiting(Flow& flow, size_t way) {
  FlowWay& own = flow.ways[way];
  if (!own.waits) return;
  own.waits = false;
  link(own.link).waits_no_more(flow.member[own.link]);
  --ways_[way].waiting;
  --waiting_;
}

// Returns the waiting flow with the lowest tag among those that can start a piece on |way|, or
// null.
Pacer::Flow* Pacer::first_waiting(size_t way, uint64_t now_ns) {
  if (ways_[way].waiting == 0) return nullptr;
  Flow* first = nullptr;
  for (Flow* flow : flows_) {
    if (!flow->ways[way].waits || flow->earliest_ns > now_ns) continue;
    if (first != nullptr && !is_before(*flow, *first, way)) continue;
    if (link(ways_[way].link).may_start(flow->member[ways_[way].link], now_ns)) first = flow;
  }
  return first;
}

// Sets the timer for the waiting flows whose rate allows no piece until after |now_ns|.
void Pacer::set_timer(uint64_t now_ns) {
  timer_ns_ = kForever;
  if (waiting_ == 0) return;
  for (const Flow* flow : flows_) {
    const auto waits = [](const FlowWay& own) { return own.waits; };
    if (flow->earliest_ns > now_ns &&
        std::any_of(flow->ways.get(), flow->ways.get() + kWays, waits)) {
      timer_ns_ = std::min(timer_ns_, flow->earliest_ns);
    }
  }
  if (timer_ns_ != kForever) turns_.note_timer(timer_ns_);
}

uint64_t Pacer::next_timer_ns() const {
  uint64_t next_ns = timer_ns_;
  if (waiting_ == 0) return next_ns;
  for (size_t i = 0; i < kLinks; ++i) {
    const auto waits = [i](const Flow* flow)
                           HETCOMM_UNDER_BATON { return flow->member[i].waits > 0; };
    if (std::any_of(flows_.begin(), flows_.end(), waits)) {
      next_ns = std::min(next_ns, link(i).next_timer_ns());
    }
  }
  return next_ns;
}

Pacer::Flow* Pacer::next(uint64_t now_ns) {
  set_timer(now_ns);
  for (size_t i = 0; i < LinkShares::kCount; ++i) {
    if (links_[i].contended()) links_[i].look(now_ns);
  }
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
