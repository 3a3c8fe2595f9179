#include "src/core/peer/pair.h"

#include <algorithm>
#include <new>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/wire/reason.h"

namespace hetcomm {

Pair::Pair(const PairServices& services, int rank, uint32_t credit)
    : services_(services.connections),
      data_(services.data),
      association_(services, *this, rank, credit),
      traffic_(association_, services),
      extra_rails_(association_, traffic_, services_),
      rail_switch_(association_, traffic_, extra_rails_, services_.engine),
      idle_closer_(association_, traffic_, services_.engine),
      reachability_(services.terms.detection_ns),
      received_when_asked_(services.terms.first_sequence) {}

// --- operations ---------------------------------------------------------------

void Pair::open_track(Track& track) {
  try {
    traffic_.tracks().open(track, association_.is_lost() ? lost_ : Status());
    if (!association_.is_lost()) ensure_connected();
  } catch (const std::bad_alloc&) {
    traffic_.tracks().forget(track);
    throw;
  }
}

void Pair::submit(Operation& operation) {
  operation.carrier = this;
  if (operation.options.on_track) [[unlikely]] {
    traffic_.tracks().start(operation);
    return;
  }
  if (operation.kind != OperationKind::kSend && access().accept(operation)) return;
  operation.run.sent = 0;
  if (traffic_.submit(operation)) [[likely]]
    return;
  if (association_.is_lost()) {
    data_.completer.complete(operation, lost_.code(), std::string(lost_.text()));
    return;
  }
  association_.enqueue(operation);
  ensure_connected();
}

bool Pair::flushed() const {
  return association_.is_lost() || state() == PairState::kIdle || traffic_.flushed();
}

// --- the peer's life ------------------------------------------------------------

bool Pair::has_received_since_asked(uint64_t now_ns, uint64_t longest_ns) {
  const bool lately = now_ns < std::exchange(asked_ns_, now_ns) + longest_ns;
  const uint32_t received = association_.sequencer().received();
  return std::exchange(received_when_asked_, received) != received && lately;
}

std::string Pair::trouble() {
  if (association_.is_lost()) return std::string(lost_.text());
  std::string now;
  rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
    if (rail.open && rail.endpoint().passage() == Passage::kPassed) trouble_ = Status();
    if (now.empty()) now = rail.endpoint().trouble();
  });
  if (!now.empty()) return now;
  if (!trouble_.ok()) return std::string(trouble_.text());
  return state() == PairState::kConnecting && rails().empty() ? "there is no connection yet" : "";
}

void Pair::give_up(const Status& why) {
  services_.control->give_up(rank(), why);
  lose(why);
}

void Pair::peer_left() {
  left_ = true;
  extra_rails_.stop();
  idle_closer_.stop();
  if (association_.is_lost() || !rails().empty()) return;  // lost once the last rail is gone
  lose(left_by(rank()));
}

void Pair::lose(const Status& why) {
  if (association_.is_lost()) return;
  association_.set_state(PairState::kLost);
  lost_ = why;
  retry_at_ns_ = kForever;
  traffic_.fail_everything(why);
  drop_all_rails();
  extra_rails_.stop();
  traffic_.sender().stop_pushing();
  rail_switch_.stop();
  services_.listener.on_rank_lost(rank(), why);
}

void Pair::out_of_memory() {
  if (association_.is_lost()) return;
  lose(status_or_code(Code::kOutOfMemory, [&]() HETCOMM_UNDER_BATON {
    return fmt::format("rank {} ran out of memory for messages of rank {}", association_.own_rank(),
                       rank());
  }));
  tell_loss();
}

// Notifies the peer, which may still be waiting, that this rank has declared it lost. Retries until
// enough memory is available.
void Pair::tell_loss() {
  constexpr uint64_t kTellAgainNs = 10'000'000;
  untold_ = true;
  try {
    services_.control->give_up(rank(), lost_);
    untold_ = false;
  } catch (const std::bad_alloc&) {
    retry_at(services_.engine.refresh_now() + kTellAgainNs);
  }
}

// --- at the end of a pass -------------------------------------------------------

void Pair::send_update() {
  if (association_.is_starved()) {
    out_of_memory();
    return;
  }
  association_.bulks().report_refused();
  if (!association_.sequencer().owes()) association_.sequencer().settle();
  if (association_.is_ready()) traffic_.send_update();
}

void Pair::retry_at(uint64_t at_ns) {
  retry_at_ns_ = at_ns;
  association_.note_timer(at_ns);
}

uint64_t Pair::unsent_bytes(size_t link) const {
  uint64_t bytes = 0;
  association_.rails().for_each([&](const Rail& rail) HETCOMM_UNDER_BATON {
    if (association_.link_of(rail) == link) bytes += rail.endpoint().unsent_bytes();
  });
  return bytes;
}

uint64_t Pair::next_timer_ns() const {
  // Tracks resume without a timer once there is a connection again.
  const uint64_t tracks_ns = association_.is_ready() ? traffic_.tracks().next_timer_ns() : kForever;
  return std::min({retry_at_ns_, rail_switch_.next_timer_ns(), extra_rails_.next_timer_ns(),
                   traffic_.sender().push_at_ns(), tracks_ns});
}

void Pair::tick(uint64_t now_ns) {
  extra_rails_.tick(now_ns);
  if (now_ns >= traffic_.sender().push_at_ns()) traffic_.sender().push_overdue(now_ns);
  rail_switch_.tick(now_ns);
  if (now_ns >= traffic_.tracks().next_timer_ns() && association_.is_ready()) {
    traffic_.tracks().go_on();
  }
  if (now_ns < retry_at_ns_) return;
  retry_at_ns_ = kForever;
  if (untold_) tell_loss();
  if (state() != PairState::kConnecting || !rails().empty()) return;
  if (!verdict_.ok()) {
    // The peer may not have noticed that the connection is lost, so it is notified through the
    // control plane.
    give_up(verdict_.annotate(fmt::format("rank {}", rank())));
    return;
  }
  services_.paths.connector.connect(rank());
}

}  // namespace hetcomm
