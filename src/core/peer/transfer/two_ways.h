// TwoWays keeps the costs of two ways to move messages of one size class, and decides when to try
// the way that is not in use.
//
// Trials can take only a small share of the messages' total time. A hasty trial follows a sudden
// slowdown of the way in use, and does not count toward that share. After each hasty trial that
// changes nothing, more messages must pass before the next one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/base/baton_role.h"

namespace hetcomm {

// Says which side moves the bytes. With kPush, the sender writes them to memory from which the
// receiver copies them. With kPull, the receiver reads them from the sender's memory.
enum class Way : uint8_t { kPush, kPull };
inline Way other_way(Way way) { return way == Way::kPush ? Way::kPull : Way::kPush; }

class TwoWays {
 public:
  static constexpr uint32_t kBurst = 3;  // messages per trial
  // The minimum number of messages between two trials.
  static constexpr uint32_t kBetweenTrials = 32;
  static constexpr double kNever = 1e9;  // cost of a way that does not work

  // Returns the cost in ns per byte, or 0 if it has not been measured.
  double cost(Way way) const HETCOMM_UNDER_BATON { return costs_[static_cast<size_t>(way)]; }
  void set_cost(Way way, double cost) HETCOMM_UNDER_BATON {
    costs_[static_cast<size_t>(way)] = cost;
  }
  bool known() const HETCOMM_UNDER_BATON { return cost(Way::kPush) > 0 && cost(Way::kPull) > 0; }

  bool trying() const HETCOMM_UNDER_BATON { return to_measure_ > 0; }
  Way tried() const HETCOMM_UNDER_BATON { return tried_; }
  uint32_t to_measure() const HETCOMM_UNDER_BATON { return to_measure_; }
  // Begins a trial of |way|, regardless of its cost.
  void begin_trial(Way way) HETCOMM_UNDER_BATON;
  // Returns whether a trial of a way that costs |extra_ns| more per message can begin.
  bool may_try(double extra_ns) const HETCOMM_UNDER_BATON;
  // Returns the additional cost, in ns, of a message of |bytes| on the way other than |in_use|. The
  // result is 0 if that way is cheaper.
  double extra_ns(Way in_use, uint64_t bytes) const HETCOMM_UNDER_BATON;
  void allow_trial() HETCOMM_UNDER_BATON { since_trial_ = kBetweenTrials; }
  void stop_trial() HETCOMM_UNDER_BATON;

  // Records a message of the trial. Returns true when the trial has ended and cost() of the tried
  // way is known.
  bool measured_in_trial(double ns_per_byte) HETCOMM_UNDER_BATON;
  // Called after a trial. |in_use| is the way used from now on.
  void trial_ended(Way in_use) HETCOMM_UNDER_BATON;
  // Records a message outside of trials, which represents |count| similar ones. Returns true if a
  // hasty trial of the other way should begin now.
  bool measured_in_use(Way in_use, double ns_per_byte, double elapsed_ns,
                       uint32_t count = 1) HETCOMM_UNDER_BATON;
  void begin_hasty_trial(Way way) HETCOMM_UNDER_BATON;
  // Charges |extra_ns| for messages outside of trials that have not used the way in use.
  void charge(double extra_ns) HETCOMM_UNDER_BATON { budget_ns_ -= extra_ns; }

 private:
  // The additional cost of trials, as a share of the time that the way in use takes.
  static constexpr double kShare = 0.015;
  // The minimum number of messages between hasty trials doubles up to this value as long as those
  // trials change nothing.
  static constexpr uint32_t kMaxBeforeHasty = 8192;
  // This many consecutive messages that take more than twice as long as before indicate a change.
  static constexpr uint32_t kSlowInRow = 4;

  std::array<double, 2> costs_{};
  std::array<double, kBurst> trial_{};
  Way tried_ = Way::kPush;
  bool hasty_ = false;
  uint32_t to_measure_ = 0;  // messages of the trial still to measure
  uint32_t since_trial_ = 0;
  uint32_t before_hasty_ = kBetweenTrials;
  uint32_t slow_in_row_ = 0;
  double budget_ns_ = 0;
};

}  // namespace hetcomm
