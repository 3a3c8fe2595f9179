// The policies of the background thread (background.h). They decide whether a long poll is
// worthwhile, and whether the thread is of use to the application's threads. The caller passes in
// all times, in ticks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hetcomm {

// Decides whether long polls for expected data are worthwhile. They are not if the data comes from
// a slow link or device and arrives only after the poll.
class LongPolls {
 public:
  static constexpr uint32_t kTrialsApart = 32;

  // Returns whether to make a long poll now. Even while long polls are not worthwhile, one is tried
  // occasionally.
  bool pay() { return score_ >= 0 || ++since_trial_ % kTrialsApart == 0; }
  void note_found() { score_ = std::min(score_ + 1, kMax); }
  // A fruitless long poll costs more than a successful one saves.
  void note_vain() { score_ = std::max(score_ - 2, -kMax); }

 private:
  static constexpr int kMax = 4;
  int score_ = kMax;
  uint32_t since_trial_ = 0;
};

// Measures whether the thread is of use to callers while it drives the engine. |waits| is the
// number of times that callers have waited so far. A caller that waits again within |soon_ticks|
// makes the progress itself, and a background thread on the same processor would only preempt it.
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
  // Records that the thread has woken up and made a pass. |ended| is true if an event woke it,
  // |found| if the pass found work, and |for_callers| if some of the work was for callers. Work
  // that is only for a peer needs the thread even if callers poll.
  void note_wake(uint64_t waits, bool ended, bool for_callers, bool found) {
    const bool callers_come = ended && waits != waits_before_sleep_ && slept_ticks_ < soon_ticks_;
    if (!callers_come || (found && !for_callers)) {
      vain_wakes_ = 0;
    } else {
      vain_wakes_ = for_callers ? kMaxVainWakes : vain_wakes_ + 1;
    }
  }
  // Returns whether callers would make the same progress just as soon without the thread.
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
