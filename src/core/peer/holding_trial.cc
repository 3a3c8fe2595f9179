#include "src/core/peer/holding_trial.h"

#include <algorithm>
#include <cmath>

namespace hetcomm {
namespace {

constexpr double kNsPerSecond = 1e9;

double rate_of(uint64_t bytes, uint64_t ns) {
  return static_cast<double>(bytes) * kNsPerSecond / static_cast<double>(std::max<uint64_t>(ns, 1));
}

}  // namespace

void HoldingTrial::begin(Phase phase, uint64_t now_ns) {
  phase_ = phase;
  begun_ns_ = now_ns;
  ended_ = 0;
}

HoldingTrial::Step HoldingTrial::settle(uint64_t under_way, Step step, uint64_t now_ns) {
  begin(Phase::kSettling, now_ns);
  settling_ = under_way;
  return step;
}

void HoldingTrial::start(uint64_t under_way, uint64_t now_ns) {
  missed_ = 0;
  suspected_ = false;
  settle(under_way, Step::kNone, now_ns);
}

void HoldingTrial::holding_begins(uint64_t now_ns) {
  looked_ns_ = now_ns;
  (void)misses_too_much(0, now_ns);
}

HoldingTrial::Step HoldingTrial::advance(uint64_t ended, bool holding, uint64_t under_way,
                                         uint64_t now_ns) {
  ended_ += ended;
  const uint64_t passed_ns = now_ns - begun_ns_;
  switch (phase_) {
    case Phase::kOff:
      return Step::kNone;
    case Phase::kSettling:
      if (ended_ >= settling_ || passed_ns >= kMeasuredNs) begin(Phase::kFree, now_ns);
      return Step::kNone;
    case Phase::kFree:
      if (passed_ns < kMeasuredNs) return Step::kNone;
      if (ended_ < kMeasuredBytes && passed_ns < kMostMeasuredNs) return Step::kNone;
      return take_rate(rate_of(ended_, passed_ns), now_ns);
    case Phase::kHolding:
      if (holding && misses_too_much(ended, now_ns)) {
        missed_ = 0;
        suspected_ = true;
        suspect_rate_ = rate_of(ended_since_, now_ns - missing_since_ns_);
        return settle(under_way, Step::kSuspect, now_ns);
      }
      return now_ns < cycle_ns_ ? Step::kNone : settle(under_way, Step::kRelease, now_ns);
  }
  return Step::kNone;
}

// It was measured while nobody was held.
HoldingTrial::Step HoldingTrial::take_rate(double rate, uint64_t now_ns) {
  const bool similar = std::abs(rate - free_rate_) < kSimilar * free_rate_;
  free_rate_ = similar ? (rate + free_rate_) / 2 : rate;
  cycle_ns_ = now_ns + std::max(kCycleNs, kCycleTimes * (now_ns - begun_ns_));
  begin(Phase::kHolding, now_ns);
  const bool to_blame = suspected_ && suspect_rate_ < kBlamed * rate;
  suspected_ = false;
  return to_blame ? Step::kBlame : Step::kHold;
}

// Sums up what is missing while somebody is held.
bool HoldingTrial::misses_too_much(uint64_t ended, uint64_t now_ns) {
  const double expected_rate = kExpected * free_rate_;
  missed_ += expected_rate * static_cast<double>(now_ns - looked_ns_) / kNsPerSecond -
             static_cast<double>(ended);
  looked_ns_ = now_ns;
  if (missed_ <= 0) {
    missed_ = 0;
    missing_since_ns_ = now_ns;
    ended_since_ = 0;
  } else {
    ended_since_ += ended;
  }
  const double most = free_rate_ * kMissedNs / kNsPerSecond;
  if (missed_ > most) return true;
  constexpr double kLongestNs = 1e12;
  const double ns = (most - missed_) * kNsPerSecond / std::max(expected_rate, 1.0);
  deadline_ns_ = now_ns + 1 + static_cast<uint64_t>(std::min(ns, kLongestNs));
  return false;
}

}  // namespace hetcomm
