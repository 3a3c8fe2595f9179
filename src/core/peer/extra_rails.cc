#include "src/core/peer/extra_rails.h"

#include <algorithm>

#include "src/base/baton_role.h"

namespace hetcomm {
namespace {

// The time for which data waits for the first connection between the network interfaces near it.
constexpr uint64_t kPatienceNs = 1'000'000'000;

}  // namespace

void ExtraRails::need(const RailMasks& masks) {
  if (stopped_) return;
  const bool is_higher = association_.is_higher();
  expect();
  if (is_higher) {
    association_.send_protocol(MessageKind::kRailsWanted, masks.peer, masks.own);
  } else {
    connect();
  }
  if (!services_.paths.advisor.serves(association_.rank(), masks)) return;
  if (!is_higher && !is_under_way(masks)) return;
  const uint64_t until = services_.engine.refresh_now() + kPatienceNs;
  association_.needs().wait(masks, until);
  association_.note_timer(until);
}

void ExtraRails::wanted_by_peer(const RailMasks& masks) {
  // |masks| refer to transports of the same kind as the connection on which the message arrived.
  const RailMasks known = masks & association_.receiving_on().kin;
  if (known.own == 0 || known.peer == 0) return;
  if (association_.needs().note(known)) need(known);
}

// Returns whether a connection between transports of |masks| is being made and has not failed yet.
bool ExtraRails::is_under_way(const RailMasks& masks) {
  bool some =
      cool_downs_.is_connecting_any([&](const RailEnds& ends) { return masks.admit(ends); });
  association_.rails().for_each([&](const Rail& rail) HETCOMM_UNDER_BATON {
    some = some || (!rail.is_open_both_ways() && masks.admit(rail.ends));
  });
  return some;
}

// Ends the waits that have lasted too long or are hopeless. The data then uses other connections.
void ExtraRails::settle(uint64_t now_ns) {
  const bool is_higher = association_.is_higher();
  const bool some =
      association_.needs().settle(now_ns, [&](const RailMasks& masks) HETCOMM_UNDER_BATON {
        return !is_higher && !is_under_way(masks);
      });
  if (some) traffic_.restart();
}

std::vector<RailEnds> ExtraRails::useful() {
  const Rail& current = *association_.rails().current();
  std::vector<RailEnds> ends = services_.paths.advisor.useful_beside(
      association_.rank(), current.ends, association_.needs().all());
  const RailEnds first = preferred();
  if (first != current.ends && std::find(ends.begin(), ends.end(), first) == ends.end()) {
    ends.push_back(first);
  }
  return ends;
}

RailEnds ExtraRails::preferred() {
  const Rail& current = *association_.rails().current();
  if (current.capabilities().lossless) return current.ends;
  return services_.paths.advisor.preferred(association_.rank(), current.ends);
}

// Only the lower rank returns to the preferred rail. The higher rank follows when the lower rank
// reports the other rail as unused (RailSwitch::follow_peer).
bool ExtraRails::is_better(const Rail& rail) {
  if (association_.rails().is_better(rail)) return true;
  const Rail* const current = association_.rails().current();
  if (current == nullptr || &rail == current || !rail.is_open_both_ways()) return false;
  const bool is_lower = association_.own_rank() < association_.rank();
  return is_lower && rail.kind == current->kind && rail.ends == preferred();
}

// Estimates how many connections will share the bulk data. Until they are open, only a little bulk
// data is assigned to each open one (ReceiveTransfer::pick_rail).
void ExtraRails::expect() {
  if (association_.rails().current() == nullptr) return;
  const Rail& current = *association_.rails().current();
  if (current.capabilities().lossless) return;
  const std::vector<RailEnds> ends = services_.paths.advisor.useful_beside(
      association_.rank(), current.ends, association_.needs().all());
  const uint64_t now = services_.engine.refresh_now();
  const auto beside =
      std::count_if(ends.begin(), ends.end(), [&](const RailEnds& each) HETCOMM_UNDER_BATON {
        const bool is_made = association_.rails().find_over(each) != nullptr ||
                             cool_downs_.not_before_ns(each) <= now;
        return is_made && services_.paths.directory.transport_kind(each.own) == current.kind;
      });
  if (beside == 0) return;
  association_.expect_rails(1 + static_cast<size_t>(beside), now + kPatienceNs);
  association_.note_timer(now + kPatienceNs);
}

Rail* ExtraRails::better_one() {
  Rail* found = nullptr;
  association_.rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
    if (found == nullptr && is_better(rail)) found = &rail;
  });
  return found;
}

void ExtraRails::connect() {
  connect_at_ns_ = kForever;
  if (stopped_ || !association_.is_ready() || association_.is_higher()) return;
  const uint64_t now = services_.engine.refresh_now();
  for (const RailEnds& ends : useful()) {
    if (association_.rails().find_over(ends) != nullptr || cool_downs_.is_connecting(ends)) {
      continue;
    }
    if (const uint64_t not_before = cool_downs_.not_before_ns(ends); not_before > now) {
      connect_at_ns_ = std::min(connect_at_ns_, not_before);
      continue;
    }
    cool_downs_.begin_connecting(ends);
    services_.paths.connector.connect_over(association_.rank(), ends);
  }
  if (connect_at_ns_ != kForever) association_.note_timer(connect_at_ns_);
}

void ExtraRails::connect_failed(const RailEnds& ends, const Status& why) {
  cool_downs_.stop_connecting(ends);
  if (association_.is_lost()) return;
  services_.log.info("rank {}: no further connection over {}: {}", association_.rank(),
                     services_.paths.directory.name_of(association_.rank(), ends), why.text());
  const uint64_t now = services_.engine.refresh_now();
  cool_downs_.failed(ends, now, services_.paths.advisor.are_apart(association_.rank(), ends));
  connect();
  settle(now);
  const Rail* const current = association_.rails().current();
  const bool was_expected =
      current != nullptr && services_.paths.directory.transport_kind(ends.own) == current->kind;
  if (was_expected) association_.expect_one_less();
  traffic_.restart();
}

bool ExtraRails::uses(const Rail& rail) {
  return &rail == association_.rails().current() || !rail.endpoint().flushed() ||
         traffic_.uses(rail);
}

// Returns connections that are no longer useful. On the higher rank, these are the ones that the
// lower rank has announced.
std::vector<Rail*> ExtraRails::superfluous() {
  std::vector<Rail*> found;
  const Rail* const current = association_.rails().current();
  if (stopped_ || !association_.is_ready()) return found;
  const bool is_higher = association_.is_higher();
  std::vector<RailEnds> useful_ends;
  if (!is_higher) useful_ends = useful();
  association_.rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
    if (&rail == current || !rail.known || !rail.is_open_both_ways()) return;
    const bool is_useful =
        std::find(useful_ends.begin(), useful_ends.end(), rail.ends) != useful_ends.end();
    if (is_higher ? rail.retiring : !is_useful) found.push_back(&rail);
  });
  return found;
}

void ExtraRails::plan_to_close(uint64_t cool_downs) {
  if (association_.rails().size() < 2 || superfluous().empty()) return;
  close_at_ns_ = services_.engine.refresh_now() + cool_downs * services_.terms.cool_down_ns;
  association_.note_timer(close_at_ns_);
}

// The lower rank announces unused rails. The higher rank closes announced rails, and answers.
void ExtraRails::close_unused() {
  close_at_ns_ = kForever;
  const bool is_higher = association_.is_higher();
  bool some_are_used = false;
  for (Rail* const rail : superfluous()) {
    if (!association_.is_ready()) return;
    if (rail->dropped) continue;
    if (uses(*rail)) {
      some_are_used = true;
      continue;
    }
    if (is_higher) {
      association_.send_protocol(MessageKind::kRailClosed, rail->id, 0);
      if (!rail->dropped) association_.pair().close_unused(*rail);
    } else {
      // An announced rail is announced again, since the peer may have ignored the announcement
      // because it still used the rail.
      rail->retiring = true;
      association_.send_protocol(MessageKind::kRailUnused, rail->id, 0);
    }
  }
  // A rail over which the peer keeps sending is unused only briefly, so this rank checks again
  // soon.
  plan_to_close(some_are_used ? 1 : kCoolDowns);
}

void ExtraRails::receive_unused(uint64_t id) {
  // If the report itself arrived on that rail, the peer still uses the rail.
  Rail* rail = association_.rails().find(id);
  if (rail == nullptr || rail == &association_.receiving_on()) return;
  rail->retiring = true;
  close_unused();
}

void ExtraRails::receive_closed(uint64_t id) {
  Rail* rail = association_.rails().find(id);
  if (rail != nullptr && rail->retiring && rail != association_.rails().current()) {
    association_.pair().close_unused(*rail);
  }
}

void ExtraRails::tick(uint64_t now_ns) {
  if (stopped_) return;
  if (now_ns >= connect_at_ns_) connect();
  if (now_ns >= close_at_ns_) close_unused();
  if (now_ns >= association_.needs().next_timer_ns()) settle(now_ns);
  if (now_ns >= association_.expected_until_ns()) {
    association_.expect_rails(0, kForever);
    traffic_.restart();
  }
}

}  // namespace hetcomm
