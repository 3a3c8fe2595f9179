#include "src/core/peer/extra_rails.h"

#include <algorithm>

#include "src/base/baton_role.h"

namespace hetcomm {

void ExtraRails::connect() {
  connect_at_ns_ = kForever;
  PairCommons& common = association_.common();
  if (stopped_ || !association_.is_ready() || common.rank > association_.rank()) return;
  const uint64_t now = common.engine.refresh_now();
  const RailEnds current = association_.rail()->ends;
  for (const RailEnds& ends : common.connector.useful_beside(association_.rank(), current)) {
    if (association_.rails().find_over(ends) != nullptr || cool_downs_.is_connecting(ends)) {
      continue;
    }
    if (const uint64_t not_before = cool_downs_.not_before_ns(ends); not_before > now) {
      connect_at_ns_ = std::min(connect_at_ns_, not_before);
      continue;
    }
    cool_downs_.begin_connecting(ends);
    common.connector.connect_over(association_.rank(), ends);
  }
  if (connect_at_ns_ != kForever) common.schedule.note_timer(connect_at_ns_);
}

void ExtraRails::connect_failed(const RailEnds& ends, const Status& why) {
  cool_downs_.stop_connecting(ends);
  if (association_.is_lost()) return;
  PairCommons& common = association_.common();
  common.log.info("rank {}: no further connection over {}: {}", association_.rank(),
                  common.connector.name_of(association_.rank(), ends), why.text());
  cool_downs_.failed(ends, common.engine.refresh_now());
  connect();
}

bool ExtraRails::uses(const Rail& rail) {
  return &rail == association_.rails().current() || !rail.endpoint().flushed() ||
         traffic_.uses(rail);
}

// The lower rank has no use for these connections any more, the higher one has been told so.
std::vector<Rail*> ExtraRails::superfluous() {
  std::vector<Rail*> found;
  PairCommons& common = association_.common();
  const Rail* const current = association_.rails().current();
  if (stopped_ || !association_.is_ready()) return found;
  const bool is_higher = common.rank > association_.rank();
  std::vector<RailEnds> useful;
  if (!is_higher) useful = common.connector.useful_beside(association_.rank(), current->ends);
  association_.rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
    if (&rail == current || !rail.known || !rail.is_open_both_ways()) return;
    const bool is_useful = std::find(useful.begin(), useful.end(), rail.ends) != useful.end();
    if (is_higher ? rail.retiring : !is_useful) found.push_back(&rail);
  });
  return found;
}

// They stay for a while: one may be needed again.
void ExtraRails::plan_to_close() {
  constexpr uint64_t kCoolDowns = 10;
  if (association_.rails().size() < 2 || superfluous().empty()) return;
  PairCommons& common = association_.common();
  close_at_ns_ = common.engine.refresh_now() + kCoolDowns * common.cool_down_ns;
  common.schedule.note_timer(close_at_ns_);
}

// The lower rank begins: it announces. The higher one closes what was announced, and answers.
void ExtraRails::close_unused() {
  close_at_ns_ = kForever;
  const bool is_higher = association_.common().rank > association_.rank();
  for (Rail* const rail : superfluous()) {
    if (!association_.is_ready()) return;
    if (rail->dropped || uses(*rail)) continue;
    if (is_higher) {
      association_.send_protocol(MessageKind::kRailClosed, rail->id, 0);
      if (!rail->dropped) association_.pair().close_unused(*rail);
    } else {
      // The peer may have ignored it before, since it used the connection.
      rail->retiring = true;
      association_.send_protocol(MessageKind::kRailUnused, rail->id, 0);
    }
  }
  plan_to_close();
}

void ExtraRails::receive_unused(uint64_t id) {
  // One that a message comes over is used after all.
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
}

}  // namespace hetcomm
