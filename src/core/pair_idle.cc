// How the connections of a pair are closed that nobody uses, when descriptors run short.
//
//   one side                              the other
//     kCloseIdle, goes on as before  -->
//                                    <--    kMayClose (1): holds back what it has to send
//     closes its ends                -->    the ends of its connections: the pair is as never used
//     or kWake, since something          or
//     has begun meanwhile            -->    goes on
//
// Each side's messages come whole before the end of a connection, so nothing is lost where nothing
// is kept. Both may ask at once: then the lower rank's question counts.
#include <algorithm>

#include "src/base/text.h"
#include "src/core/mesh.h"
#include "src/core/pair.h"
#include "src/core/transfer.h"

namespace hetcomm {

// Nothing of this side's is to be done.
bool Pair::has_nothing_to_do() const {
  return outbox_first_ == nullptr && control_.empty() && waiting_bulks_.empty() &&
         refused_bulks_.empty() && unanswered_ == 0 && requests_held_ == 0 && sends_.empty() &&
         receives_.empty() && targets_.empty() && access_.is_idle();
}

// Nor is anything under way that this side knows of.
bool Pair::is_idle() const {
  return has_nothing_to_do() && arriving_ == nullptr && early_grants_.empty() &&
         std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) {
           return rail->known && rail->open && rail->open_sent && rail->endpoint().flushed();
         });
}

bool Pair::may_close_idle() const {
  return state_ == State::kReady && !left_ && !asked_to_close_ && is_idle();
}

void Pair::ask_to_close_idle() {
  if (!may_close_idle()) return;
  asked_to_close_ = true;
  send_control(MessageKind::kCloseIdle, 0, 0, nullptr, 0);
}

uint32_t Pair::count_idle() {
  const uint32_t traffic = sent_ + received_;
  idle_ = traffic == traffic_ ? idle_ + 1 : 0;
  traffic_ = traffic;
  return idle_;
}

void Pair::receive_close_idle() {
  const bool own_counts = asked_to_close_ && !mesh_is_higher_;
  const WireHeader yes{.kind = MessageKind::kMayClose, .tag = receiving_on_->id, .value = 1};
  // An answer that waited would be held back with the rest.
  if (own_counts || left_ || state_ != State::kReady || !is_idle() || !retention_.empty() ||
      receiving_on_ != rail_ || send_message(yes, SegmentView{}) != Code::kOk) {
    send_control(MessageKind::kMayClose, receiving_on_->id, 0, nullptr, 0);
    return;
  }
  for (const auto& rail : rails_) rail->leaving = true;
  wanted_again_ = false;
  state_ = State::kConnecting;
}

// On another connection it is an answer of before, which was sent again.
void Pair::receive_may_close(uint64_t rail, bool may) {
  const bool answers =
      std::exchange(asked_to_close_, false) && rail_ != nullptr && rail == rail_->id;
  if (!may) return;
  if (!answers || left_ || state_ != State::kReady || !is_idle() || !retention_.empty()) {
    send_control(MessageKind::kWake, 0, 0, nullptr, 0);
    return;
  }
  mesh_.log().info("rank {}: its idle connections are closed, since descriptors run short", rank_);
  drop_all_rails();
  state_ = State::kIdle;
}

// The peer uses its connections after all.
void Pair::stay_connected() {
  if (rail_ == nullptr || !rail_->leaving) return;
  for (const auto& rail : rails_) rail->leaving = false;
  resume();
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
    if (!replaced_ && (wanted_again_ || !has_nothing_to_do())) ensure_connected();
  }
}

}  // namespace hetcomm
