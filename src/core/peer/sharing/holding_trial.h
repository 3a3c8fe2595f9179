// HoldingTrial measures the cost of holding queues back to let others catch up.
//
// The path of a queue may have its own bottleneck beyond the network interface. Holding other
// queues for such a slow one would leave the interface idle. For this reason, all queues are
// released from time to time, and the rate is measured. While queues are held, the shortfall
// against that rate is summed up (a cumulative sum test: Page, "Continuous Inspection Schemes",
// Biometrika 1954). When the shortfall is too large, all queues are released for another
// measurement. If the rate is higher then, holding was the cause.
//
//   off <--> settling --> free --> holding
//               ^                     |    after a cycle, or after a large shortfall
//               +---------------------+
//
// stop() ends the trial in any phase. All callers hold the baton. LinkShare (link_share.h) uses
// this class.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/system/clock.h"

namespace hetcomm {

class HoldingTrial {
 public:
  // The rate without holding is measured over at least this many bytes and this time. After the
  // longest time, fewer bytes are enough.
  static constexpr uint64_t kMeasuredBytes = 4u << 20;
  static constexpr uint64_t kMeasuredNs = 200'000'000;
  static constexpr uint64_t kMaxMeasuredNs = 500'000'000;
  // Before a measurement, the connections fill up again. This settling takes at least kSettlingNs.
  // It ends when as many bytes have been sent as were in flight at its start, or after
  // kMaxSettlingNs.
  static constexpr uint64_t kSettlingNs = 100'000'000;
  static constexpr uint64_t kMaxSettlingNs = 200'000'000;
  // A measurement that differs from the current estimate by less than this fraction is averaged
  // with it.
  static constexpr double kSimilar = 0.3;
  // The fraction of the rate without holding that is expected while queues are held.
  static constexpr double kExpected = 0.85;
  // A shortfall is too large if it exceeds the bytes that are sent in this time at the rate without
  // holding. The time is longer than the 200 ms for which TCP pauses when the last segment of its
  // data is lost.
  static constexpr uint64_t kMissedNs = 250'000'000;
  // Holding counts as the cause of a shortfall if the rate with it was less than this fraction of
  // the rate without it.
  static constexpr double kBlamed = 0.85;
  // The time between two measurements is kCycleTimes times the duration of a measurement, within
  // the bounds kCycleNs and kLongestCycleNs.
  static constexpr uint64_t kCycleNs = 2'000'000'000;
  static constexpr uint64_t kLongestCycleNs = 8'000'000'000;
  static constexpr uint64_t kCycleTimes = 10;

  enum class Step : uint8_t {
    kNone,
    kRelease,  // no queue is held from now on
    kSuspect,  // like kRelease; the shortfall was too large
    kHold,     // queues may be held
    kBlame,    // like kHold; holding caused the shortfall at the last kSuspect
  };

  // Starts the trial because queues now share the interface. |under_way|: bytes in flight.
  void start(uint64_t under_way, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void stop() HETCOMM_UNDER_BATON { phase_ = Phase::kOff; }
  bool is_on() const HETCOMM_UNDER_BATON { return phase_ != Phase::kOff; }
  bool holds() const HETCOMM_UNDER_BATON { return phase_ == Phase::kHolding; }

  // Called when a queue is held and none was held before.
  void holding_begins(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Advances the trial. |left| is the number of bytes that were sent since the last call. It is
  // negative if some were counted too early. |holding| is true while any queue is held. |under_way|
  // is the number of bytes in flight.
  Step advance(int64_t left, bool holding, uint64_t under_way, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Returns whether advance() would now evaluate the rate. The caller must then pass an exact count
  // of the bytes that were sent.
  bool is_due(bool holding, uint64_t now_ns) const HETCOMM_UNDER_BATON;
  // Returns when advance() must be called next while a queue is held.
  uint64_t deadline_ns() const HETCOMM_UNDER_BATON { return deadline_ns_; }

  // Returns the rate while no queue is held, in bytes per second, or 0 if it is unknown.
  double free_rate() const HETCOMM_UNDER_BATON { return free_rate_; }
  // Returns the number of bytes that are sent in |ns| while no queue is held.
  double free_bytes(uint64_t ns) const HETCOMM_UNDER_BATON;

 private:
  enum class Phase : uint8_t { kOff, kSettling, kFree, kHolding };

  void begin(Phase phase, uint64_t now_ns) HETCOMM_UNDER_BATON;
  Step settle(uint64_t under_way, Step step, uint64_t now_ns) HETCOMM_UNDER_BATON;
  Step measure(uint64_t passed_ns, uint64_t now_ns) HETCOMM_UNDER_BATON;
  Step take_rate(double rate, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void set_deadline(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool misses_too_much(int64_t left, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Resets the shortfall to zero.
  void forgive() HETCOMM_UNDER_BATON;

  Phase phase_ = Phase::kOff;
  uint64_t begun_ns_ = 0;  // start of the phase
  int64_t left_ = 0;       // bytes that were sent in the phase
  uint64_t settling_ = 0;  // bytes in flight when the settling phase began
  uint64_t cycle_ns_ = 0;  // when the next measurement begins
  double free_rate_ = 0;   // bytes per second while no queue is held; 0: unknown

  // These fields are valid while any queue is held. |suspected_| and |suspect_rate_| stay valid
  // until the next measurement.
  double missed_ = 0;        // bytes short of the expected rate
  uint64_t looked_ns_ = 0;   // when |missed_| was last updated
  uint64_t held_ns_ = 0;     // time with held queues since the shortfall began
  int64_t left_since_ = 0;   // bytes that were sent in that time
  bool suspected_ = false;   // the shortfall was too large, for an unknown reason
  double suspect_rate_ = 0;  // bytes per second before |suspected_| was set
  uint64_t deadline_ns_ = kForever;
};

}  // namespace hetcomm
