#include "src/core/peer/sharing/holding_trial.h"

#include <algorithm>
#include <cmath>

namespace hetcomm {
namespace {

constexpr double kSecondNs = 1e9;

double rate_of(int64_t bytes, uint64_t ns) {
  return static_cast<double>(std::max<int64_t>(bytes, 0)) * kSecondNs /
         static_cast<double>(std::max<uint64_t>(ns, 1));
}

}  // namespace

void HoldingTrial::begin(Phase phase, uint64_t now_ns) {
  phase_ = phase;
  begun_ns_ = now_ns;
  left_ = 0;
}

HoldingTrial::Step HoldingTrial::settle(uint64_t under_way, Step step, uint64_t now_ns) {
  begin(Phase::kSettling, now_ns);
  settling_ = under_way;
  return step;
}

void HoldingTrial::forgive() {
  missed_ = 0;
  held_ns_ = 0;
  left_since_ = 0;
}

void HoldingTrial::start(uint64_t under_way, uint64_t now_ns) {
  forgive();
  suspected_ = false;
  settle(under_way, Step::kNone, now_ns);
}

void HoldingTrial::holding_begins(uint64_t now_ns) {
  looked_ns_ = now_ns;
  set_deadline(now_ns);
}

bool HoldingTrial::is_due(bool holding, uint64_t now_ns) const {
  if (phase_ == Phase::kHolding) return holding && now_ns >= deadline_ns_;
  return phase_ != Phase::kOff && now_ns >= begun_ns_ + kSettlingNs;
}

HoldingTrial::Step HoldingTrial::advance(int64_t left, bool holding, uint64_t under_way,
                                         uint64_t now_ns) {
  left_ += left;
  const uint64_t passed_ns = now_ns - begun_ns_;
  switch (phase_) {
    case Phase::kOff:
      return Step::kNone;
    case Phase::kSettling:
      if (passed_ns >= kMaxSettlingNs ||
          (passed_ns >= kSettlingNs && left_ >= static_cast<int64_t>(settling_))) {
        begin(Phase::kFree, now_ns);
      }
      return Step::kNone;
    case Phase::kFree:
      return measure(passed_ns, now_ns);
    case Phase::kHolding:
      if (holding && misses_too_much(left, now_ns)) {
        suspected_ = true;
        suspect_rate_ = rate_of(left_since_, held_ns_);
        forgive();
        return settle(under_way, Step::kSuspect, now_ns);
      }
      return now_ns < cycle_ns_ ? Step::kNone : settle(under_way, Step::kRelease, now_ns);
  }
  return Step::kNone;
}

HoldingTrial::Step HoldingTrial::measure(uint64_t passed_ns, uint64_t now_ns) {
  if (passed_ns < kMeasuredNs) return Step::kNone;
  if (left_ < static_cast<int64_t>(kMeasuredBytes) && passed_ns < kMaxMeasuredNs) {
    return Step::kNone;
  }
  // Sending has paused, or nothing was sent, so the measurement says nothing about the interface.
  if (passed_ns > 2 * kMaxMeasuredNs || left_ <= 0) {
    begin(Phase::kFree, now_ns);
    return Step::kNone;
  }
  return take_rate(rate_of(left_, passed_ns), now_ns);
}

// Records |rate|, which was measured while no queue was held.
HoldingTrial::Step HoldingTrial::take_rate(double rate, uint64_t now_ns) {
  const bool similar = std::abs(rate - free_rate_) < kSimilar * free_rate_;
  const double before = free_rate_;
  free_rate_ = similar ? (rate + free_rate_) / 2 : rate;
  // Rescales the shortfall to the new rate. Expressed as a time, it stays the same.
  if (before > 0) missed_ *= free_rate_ / before;
  cycle_ns_ = now_ns + std::clamp(kCycleTimes * (now_ns - begun_ns_), kCycleNs, kLongestCycleNs);
  begin(Phase::kHolding, now_ns);
  const bool to_blame = suspected_ && suspect_rate_ < kBlamed * rate;
  suspected_ = false;
  return to_blame ? Step::kBlame : Step::kHold;
}

// Adds to the shortfall while any queue is held. Returns whether it is too large.
bool HoldingTrial::misses_too_much(int64_t left, uint64_t now_ns) {
  const uint64_t passed_ns = now_ns - looked_ns_;
  missed_ += kExpected * free_bytes(passed_ns) - static_cast<double>(left);
  looked_ns_ = now_ns;
  if (missed_ <= 0) {
    forgive();
  } else {
    held_ns_ += passed_ns;
    left_since_ += left;
  }
  set_deadline(now_ns);
  return missed_ > free_bytes(kMissedNs);
}

double HoldingTrial::free_bytes(uint64_t ns) const {
  return free_rate_ * static_cast<double>(ns) / kSecondNs;
}

void HoldingTrial::set_deadline(uint64_t now_ns) {
  constexpr double kLongestNs = 1e12;
  const double ns = std::max(free_bytes(kMissedNs) - missed_, 0.0) * kSecondNs /
                    std::max(kExpected * free_rate_, 1.0);
  deadline_ns_ = now_ns + 1 + static_cast<uint64_t>(std::min(ns, kLongestNs));
}

}  // namespace hetcomm
