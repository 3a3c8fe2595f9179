// Decides what the background thread does (background.h): whether a long poll pays, and whether the
// thread is of use to the application's threads. The caller passes all times in, in ticks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hetcomm {

// Decides whether long polls for expected data pay. They do not pay if data from a slow link or
// device arrives only after the poll.
class LongPolls {
 public:
  static constexpr uint32_t kTrialsApart = 32;

  // Returns whether to poll long now. A long poll is tried occasionally even while long polls do
  // not pay.
  bool pay() { return score_ >= 0 || ++since_trial_ % kTrialsApart == 0; }
  void note_found() { score_ = std::min(score_ + 1, kMax); }
  // A fruitless long poll costs more than a successful one saves.
  void note_vain() { score_ = std::max(score_ - 2, -kMax); }

 private:
  static constexpr int kMax = 4;
  int score_ = kMax;
  uint32_t since_trial_ = 0;
};

// Measures whether the thread is of use to callers while it drives the engine. |waits| is how often
// callers have waited so far. A caller that waits again within |soon_ticks| makes the progress
// itself: a background thread on the same processor would only displace it.
class Usefulness {
 public:
  static constexpr uint32_t kMaxVainWakes = 3;

  Usefulness(uint64_t now_ticks, uint64_t waits, uint64_t soon_ticks)
      : soon_ticks_(soon_ticks), start_ticks_(now_ticks), waits_at_start_(waits) {}

  // Records that a pass has found work.
  void note_found(uint64_t now_ticks) { found_ticks_ = now_ticks; }
  void begin_sleep(uint64_t now_ticks, uint64_t waits) {
    sleep_began_ticks_ = now_ticks;
    waits_before_sleep_ = waits;
  }
  void end_sleep(uint64_t now_ticks) { slept_ticks_ = now_ticks - sleep_began_ticks_; }
  // Records that the thread has woken up and made a pass. |ended|: an event has woken it. |found|:
  // the pass has found work. |for_callers|: some of the work was for callers. Work for a peer alone
  // needs the thread even if callers poll.
  void note_wake(uint64_t waits, bool ended, bool for_callers, bool found) {
    const bool callers_come = ended && waits != waits_before_sleep_ && slept_ticks_ < soon_ticks_;
    if (!callers_come || (found && !for_callers)) {
      vain_wakes_ = 0;
    } else {
      vain_wakes_ = for_callers ? kMaxVainWakes : vain_wakes_ + 1;
    }
  }
  // Returns whether callers would make the same progress as soon without the thread.
  bool in_the_way() const { return vain_wakes_ >= kMaxVainWakes; }
  // Returns whether the callers' waits were more than |soon_ticks| apart on average, up to the last
  // pass that found work.
  bool of_use(uint64_t waits) const {
    const uint64_t times = std::max<uint64_t>(waits - waits_at_start_, 1);
    return found_ticks_ > start_ticks_ + times * soon_ticks_;
  }

 private:
  const uint64_t soon_ticks_;
  const uint64_t start_ticks_;
  const uint64_t waits_at_start_;
  uint64_t found_ticks_ = 0;
  uint64_t waits_before_sleep_ = 0;
  uint64_t sleep_began_ticks_ = 0;
  uint64_t slept_ticks_ = 0;
  uint32_t vain_wakes_ = 0;
};

}  // namespace hetcomm
