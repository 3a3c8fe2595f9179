// How the connection of a pair is closed that nobody uses, when descriptors run short.
//
//   one side                              the other
//     kCloseIdle, goes on as before  -->
//                                    <--    kMayClose (1): holds back what it has to send
//     closes the connection          -->    its end: the pair is as if it had never been used
//     or kWake, since it uses the
//     connection again               -->    goes on
//
// Each side's messages come whole before the end of a connection, so nothing is lost where nothing
// is kept. Both may ask at once: then the lower rank's question counts. A pair with several
// connections keeps them.
#include <algorithm>
#include <utility>

#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {

// This side has nothing left to do.
bool Pair::has_nothing_to_do() const {
  return outbox_.empty() && control_.empty() && waiting_bulks_.empty() && refused_bulks_.empty() &&
         unanswered_ == 0 && requests_held_ == 0 && sends_.empty() && receives_.empty() &&
         targets_.empty() && access_.is_idle();
}

// This side knows of nothing that is under way on the one connection that there is.
bool Pair::is_idle() const {
  return has_nothing_to_do() && arriving_.empty() && early_grants_.empty() && rails_.size() == 1 &&
         rails_[0]->known && rails_[0]->open && rails_[0]->open_sent &&
         rails_[0]->endpoint().flushed();
}

bool Pair::may_close_idle(uint64_t now_ns) const {
  return state_ == State::kReady && !left_ && !asked_to_close_ && now_ns >= ask_again_ns_ &&
         is_idle();
}

void Pair::ask_to_close_idle() {
  asked_to_close_ = true;
  send_control(MessageKind::kCloseIdle, 0, 0, nullptr, 0);
}

uint32_t Pair::count_idle() {
  const uint32_t traffic = sent_ + received_;
  idle_ = traffic == traffic_ ? idle_ + 1 : 0;
  traffic_ = traffic;
  return idle_;
}

// Where both ask, the higher rank drops its own question, and the lower one does not answer it.
void Pair::receive_close_idle() {
  if (asked_to_close_ && !is_higher_) return;
  asked_to_close_ = false;
  if (waits(MessageKind::kMayClose)) {
    violated("it asks again before it was answered");
    return;
  }
  const WireHeader yes{.kind = MessageKind::kMayClose, .tag = receiving_on_->id, .value = 1};
  // An answer that waited would be held back with the rest.
  if (left_ || state_ != State::kReady || !is_idle() || !retention_.empty() ||
      send_message(yes, SegmentView{}) != Code::kOk) {
    send_control(MessageKind::kMayClose, receiving_on_->id, 0, nullptr, 0);
    return;
  }
  rail_->leaving = true;
  state_ = State::kConnecting;
}

// On another connection it is an answer of before, which was sent again.
void Pair::receive_may_close(uint64_t rail, bool may) {
  const bool answers =
      std::exchange(asked_to_close_, false) && rail_ != nullptr && rail == rail_->id;
  if (!may) {
    constexpr uint64_t kFirstPauseNs = 20'000'000;
    constexpr unsigned kMaxDoublings = 9;
    refusals_ = std::min(refusals_ + 1, kMaxDoublings);
    ask_again_ns_ = common_.engine.refresh_now() + (kFirstPauseNs << refusals_);
    traffic_ = sent_ + received_;  // question and answer do not count
    return;
  }
  refusals_ = 0;
  if (!answers || left_ || state_ != State::kReady || !is_idle() || !retention_.empty()) {
    if (!waits(MessageKind::kWake)) send_control(MessageKind::kWake, 0, 0, nullptr, 0);
    return;
  }
  common_.log.info("rank {}: its idle connection is closed, since descriptors run short", rank_);
  drop_all_rails();
  state_ = State::kIdle;
}

bool Pair::waits(MessageKind kind) const {
  return std::any_of(control_.begin(), control_.end(),
                     [kind](const ControlMessage& message) { return message.kind == kind; });
}

// The peer uses its connection after all.
void Pair::stay_connected() {
  for (const auto& rail : rails_) rail->leaving = false;
  if (rail_ != nullptr && state_ == State::kConnecting) resume();
}

// It has closed |rail|, as it was allowed to.
void Pair::left_by_peer(Rail& rail) {
  drop_rail(rail, false);
  if (state_ == State::kLost || rail_ != nullptr) return;
  if (left_ && rails_.empty()) {
    lose(status_or_code(Code::kPeerLost, [&] { return fmt::format("rank {} left", rank_); }));
  } else if (Rail* next = best_open_rail(); next != nullptr) {
    replay_on(*next);
  } else if (rails_.empty()) {
    state_ = State::kIdle;
    // A connection that is being made in place of this one is on its way.
    if (!replaced_ && !has_nothing_to_do()) ensure_connected();
  }
}

}  // namespace hetcomm
