// HoldingTrial: finds out what it costs to hold queues for the sake of others.
//
// The ways of queues over one network interface may have bottlenecks of their own beyond it, and
// those that are held for the sake of a slow one would leave the interface idle. So now and then
// nobody is held, and what leaves then is measured. While queues are held, what is missing of that
// is summed up (a cumulative sum test: Page, "Continuous Inspection Schemes", Biometrika 1954).
// When it has become too much, nobody is held again: if more leaves then, holding is to blame.
//
//   off <--> settling --> free --> holding
//               ^                     |    every kCycleNs, and when too much is missing
//               +---------------------+
//
// Under the baton. The unit above is link_share.h.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/system/clock.h"

namespace hetcomm {

class HoldingTrial {
 public:
  // The rate without holding is measured over so many bytes, and so long.
  static constexpr uint64_t kMeasuredBytes = 4u << 20;
  static constexpr uint64_t kMeasuredNs = 200'000'000;
  static constexpr uint64_t kMaxMeasuredNs = 500'000'000;
  // Before that, connections fill up again: so long, and until what was under way has left.
  static constexpr uint64_t kSettlingNs = 100'000'000;
  static constexpr uint64_t kMaxSettlingNs = 200'000'000;
  // A measurement that is as near to the last one counts half.
  static constexpr double kSimilar = 0.3;
  // While queues are held so much of that rate is expected. More than this time's worth of it is
  // not missed without asking why: TCP waits for 200 ms where it has lost the end of what it sent.
  static constexpr double kExpected = 0.85;
  static constexpr uint64_t kMissedNs = 250'000'000;
  // Holding is to blame where so much less left.
  static constexpr double kBlamed = 0.85;
  // So much time lies between two measurements, and at least so many times as long as one takes.
  static constexpr uint64_t kCycleNs = 2'000'000'000;
  static constexpr uint64_t kLongestCycleNs = 8'000'000'000;
  static constexpr uint64_t kCycleTimes = 10;

  enum class Step : uint8_t {
    kNone,
    kRelease,  // nobody is held from now on
    kSuspect,  // the same; too much was missing
    kHold,     // queues may be held
    kBlame,    // the same; what was missing at the last kSuspect was missing for the holding's sake
  };

  // Queues share the interface from now on, or do no more. |under_way|: bytes.
  void start(uint64_t under_way, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void stop() HETCOMM_UNDER_BATON { phase_ = Phase::kOff; }
  bool is_on() const HETCOMM_UNDER_BATON { return phase_ != Phase::kOff; }
  bool holds() const HETCOMM_UNDER_BATON { return phase_ == Phase::kHolding; }

  // Somebody is held, and nobody was.
  void holding_begins(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // |left| bytes have left since the last call; fewer than none where some were counted too early.
  // |holding|: somebody is held.
  Step advance(int64_t left, bool holding, uint64_t under_way, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // advance() will judge by what has left.
  bool is_due(bool holding, uint64_t now_ns) const HETCOMM_UNDER_BATON;
  // advance() has to be called then, while somebody is held.
  uint64_t deadline_ns() const HETCOMM_UNDER_BATON { return deadline_ns_; }

  // Bytes a second that leave while nobody is held; 0: not known.
  double free_rate() const HETCOMM_UNDER_BATON { return free_rate_; }
  // Returns the bytes that leave in |ns| while no queue is held.
  double free_bytes(uint64_t ns) const HETCOMM_UNDER_BATON;

 private:
  enum class Phase : uint8_t { kOff, kSettling, kFree, kHolding };

  void begin(Phase phase, uint64_t now_ns) HETCOMM_UNDER_BATON;
  Step settle(uint64_t under_way, Step step, uint64_t now_ns) HETCOMM_UNDER_BATON;
  Step measure(uint64_t passed_ns, uint64_t now_ns) HETCOMM_UNDER_BATON;
  Step take_rate(double rate, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void set_deadline(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool misses_too_much(int64_t left, uint64_t now_ns) HETCOMM_UNDER_BATON;

  Phase phase_ = Phase::kOff;
  uint64_t begun_ns_ = 0;  // the phase
  int64_t left_ = 0;       // bytes, in the phase
  uint64_t settling_ = 0;  // bytes that were under way when that phase began
  uint64_t cycle_ns_ = 0;  // when the next measurement begins
  double free_rate_ = 0;

  // While somebody is held:
  double missed_ = 0;        // bytes
  uint64_t looked_ns_ = 0;   // when that was summed up
  uint64_t held_ns_ = 0;     // since it was 0
  int64_t left_since_ = 0;   // bytes, in that time
  bool suspected_ = false;   // too much was missing, and it is not known why
  double suspect_rate_ = 0;  // bytes a second that left then
  uint64_t deadline_ns_ = kForever;
};

}  // namespace hetcomm
