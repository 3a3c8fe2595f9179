#include "src/core/peer/idle_closer.h"

#include <algorithm>
#include <utility>

namespace hetcomm {

// Returns whether the pair has exactly one connection and, as far as this rank can see, nothing is
// in flight on it.
bool IdleCloser::is_idle() const {
  const RailSet& rails = association_.rails();
  return traffic_.is_idle() && traffic_.has_all_received() && rails.size() == 1 && rails[0].known &&
         rails[0].is_open_both_ways() && rails[0].endpoint().flushed();
}

bool IdleCloser::may_lose_connection() const {
  return !stopped_ && association_.is_ready() && is_idle() &&
         association_.sequencer().kept().empty();
}

uint32_t IdleCloser::count_messages() const {
  return association_.sequencer().sent() + association_.sequencer().received();
}

bool IdleCloser::may_ask(uint64_t now_ns) const {
  return association_.is_ready() && !stopped_ && !asked_ && now_ns >= ask_again_ns_ && is_idle();
}

void IdleCloser::ask() {
  asked_ = true;
  association_.send_protocol(MessageKind::kCloseIdle, 0, 0);
}

uint32_t IdleCloser::count_idle() {
  const uint32_t messages = count_messages();
  idle_ = messages == std::exchange(messages_, messages) ? idle_ + 1 : 0;
  return idle_;
}

// If both sides have sent kCloseIdle, the higher rank answers, and the lower rank does not.
bool IdleCloser::receive_question() {
  const bool is_higher = association_.is_higher();
  if (asked_ && !is_higher) return false;
  asked_ = false;
  if (association_.protocol().holds(MessageKind::kMayClose)) {
    association_.violated("it asks again before it was answered");
    return false;
  }
  const uint64_t rail = association_.receiving_on().id;
  const WireHeader yes{.kind = MessageKind::kMayClose, .tag = rail, .value = 1};
  // The kMayClose bypasses the protocol queue, which is held back from now on.
  if (may_lose_connection() && association_.sequencer().send(yes, ExtentView{}) == Code::kOk)
    return true;
  association_.send_protocol(MessageKind::kMayClose, rail, 0);
  return false;
}

// A kMayClose for a connection other than the current one is an old message that was resent.
bool IdleCloser::receive_answer(uint64_t rail, bool may) {
  const Rail* current = association_.rails().current();
  const bool answers = std::exchange(asked_, false) && current != nullptr && rail == current->id;
  if (!may) {
    constexpr uint64_t kFirstPauseNs = 20'000'000;
    constexpr unsigned kMaxDoublings = 9;
    refusals_ = std::min(refusals_ + 1, kMaxDoublings);
    ask_again_ns_ = engine_.refresh_now() + (kFirstPauseNs << refusals_);
    messages_ = count_messages();  // the two messages of this exchange do not count as use
    return false;
  }
  refusals_ = 0;
  if (answers && may_lose_connection()) return true;
  if (!association_.protocol().holds(MessageKind::kWake)) {
    association_.send_protocol(MessageKind::kWake, 0, 0);
  }
  return false;
}

}  // namespace hetcomm
