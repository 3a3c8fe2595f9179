#include "src/core/peer/rail_switch.h"

#include "src/base/text.h"

namespace hetcomm {

void RailSwitch::use(Rail& rail) {
  if (association_.rails().current() == nullptr) {
    go_over_to(rail);
  } else if (extra_rails_.is_better(rail)) {
    take_over(rail);
  } else {
    traffic_.restart();
    extra_rails_.plan_to_close();
  }
}

// Messages that the peer may not have received are resent over |rail| before any new message, so
// |rail| must be able to carry the largest of them. It may be unable to if the ranks are configured
// differently. The switch then waits until the larger messages are acknowledged.
void RailSwitch::take_over(Rail& rail) {
  constexpr uint64_t kPauseNs = 1'000'000;
  const uint32_t most = rail.capabilities().max_payload_bytes;
  if (association_.sequencer().kept().largest() <= most) {
    go_over_to(rail);
    return;
  }
  association_.rails().current()->limit_payload(most);
  traffic_.ask_for_acknowledgement();
  take_over_at_ns_ = engine_.refresh_now() + kPauseNs;
  association_.note_timer(take_over_at_ns_);
}

void RailSwitch::go_over_to(Rail& rail) {
  association_.set_state(PairState::kConnecting);
  association_.rails().set_current(&rail);
  rail.retiring = false;
  association_.sequencer().begin_replay();
  resume();
}

void RailSwitch::resume() {
  if (association_.is_starved()) return;
  Sequencer& sequencer = association_.sequencer();
  if (sequencer.replaying()) {
    const Code code = sequencer.replay(*association_.rails().current());
    // The endpoint reports when it is writable again, or that it has failed.
    if (code == Code::kWouldBlock || code == Code::kPeerLost) return;
    if (code != Code::kOk) {
      association_.pair().give_up(
          Status(Code::kPeerLost,
                 fmt::format("rank {}: the new connection cannot carry what the last one lost: {}",
                             association_.rank(), code_text(code))));
      return;
    }
  }
  association_.set_state(PairState::kReady);
  traffic_.pump();
  traffic_.restart();
  traffic_.access().initiator().credit_came();
  if (association_.is_ready()) association_.update_due();
  extra_rails_.connect();
  extra_rails_.plan_to_close();
}

void RailSwitch::follow_peer() {
  const Rail* const current = association_.rails().current();
  Rail& used = association_.receiving_on();
  if (current == nullptr || !current->retiring || current->capabilities().lossless) return;
  const bool works = used.is_open_both_ways() && !used.leaving && !used.dropped;
  if (&used != current && works) take_over(used);
}

void RailSwitch::leave(const Rail& rail) {
  association_.rails().set_current(nullptr);
  association_.sequencer().stop_replay();
  if (association_.is_ready()) association_.set_state(PairState::kConnecting);
  if (rail.capabilities().lossless) association_.sequencer().lose_unkept();
}

void RailSwitch::tick(uint64_t now_ns) {
  if (now_ns < take_over_at_ns_) return;
  take_over_at_ns_ = kForever;
  if (Rail* better = extra_rails_.better_one(); better != nullptr) take_over(*better);
}

}  // namespace hetcomm
