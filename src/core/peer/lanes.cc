#include "src/core/peer/lanes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/room.h"
#include "src/base/text.h"

namespace hetcomm {
// --- opening and closing ------------------------------------------------------

void Lanes::open(Lane& lane, const Status& lost) {
  if (!lost.ok()) {
    lane.set_closed(lost);
  } else if (lane.is_sending()) {
    open_sending(lane);
  } else {
    open_receiving(lane);
  }
}

void Lanes::open_sending(Lane& lane) {
  while (sending_.contains(next_number_)) next_number_ = (next_number_ + 1) & kMaxLaneNumber;
  make_room(left_, sending_.size() + 1);
  sending_.emplace(next_number_, &lane);
  lane.opened(next_number_);
  lane.flow().lane = next_number_;
  if (lane.flow().share.weight > 0) pacer_.add(lane.flow());
  next_number_ = (next_number_ + 1) & kMaxLaneNumber;
  const bool has_rate = lane.flow().share.bytes_per_second > 0;
  const LaneOpenBody body{.channel = lane.channel(),
                          .number = lane.number(),
                          .depth = static_cast<uint16_t>(lane.terms().depth),
                          .has_rate = static_cast<uint16_t>(has_rate),
                          .use = lane.terms().use,
                          .content = lane.terms().content,
                          .most_bytes = lane.terms().most_bytes,
                          .transports = lane.terms().transports};
  association_.send_protocol(MessageKind::kLaneOpen, lane.terms().tag, lane.terms().plan, &body,
                             sizeof(body));
}

void Lanes::open_receiving(Lane& lane) {
  receiving_.reserve(receiving_.size() + 1);
  const LaneTerms& terms = lane.terms();
  const std::optional<Opening> found = openings_.take(key_of(lane), terms.content, terms.plan);
  if (!found) {
    drop_gone();
    unopened_.add({lane.channel(), terms.use, terms.tag, terms.plan, terms.content, &lane, {}});
  } else if (!found->closed.ok()) {
    lane.set_closed(found->closed);
  } else {
    lane.peer_is_at(found->at);
    bind(lane, found->body);
  }
}

void Lanes::receive_open(const WireHeader& header, ConstByteSpan payload) {
  LaneOpenBody body;
  if (!decode_body(payload, &body) || body.number > kMaxLaneNumber ||
      receiving_.contains(body.number)) {
    association_.violated("lane that cannot be opened");
    return;
  }
  const Channel* channel = common().channels.find(body.channel);
  if (channel == nullptr || channel->closed) {
    // An abort reaches the sender by itself.
    if (!common().channels.is_aborted(body.channel)) {
      tell_closed(closed_end(body.number, true), closed_here(), {});
    }
    return;
  }
  receiving_.reserve(receiving_.size() + 1);
  const std::optional<Unopened> own = unopened_.take(
      {body.channel, body.use, header.tag}, body.content, static_cast<uint32_t>(header.value));
  if (!own) {
    drop_gone();
    if (openings_.size() >= kMaxOpenings) {
      association_.violated("too many lanes that nobody here has opened");
      return;
    }
    openings_.add({.tag = header.tag, .plan = header.value, .body = body, .closed = {}});
    return;
  }
  if (own->lane == nullptr) {
    tell_closed(closed_end(body.number, true), own->why, {});
  } else {
    bind(*own->lane, body);
  }
}

// Forgets ends of communicators that are gone, which nobody opens any more.
void Lanes::drop_gone() {
  const auto gone = [&](uint32_t channel)
                        HETCOMM_UNDER_BATON { return common().channels.find(channel) == nullptr; };
  unopened_.tidy(gone, [](const Unopened& each) { return each.is_gone(); });
  openings_.tidy(gone, [](const Opening&) { return true; });
}

// The two ends have found each other.
void Lanes::bind(Lane& lane, const LaneOpenBody& body) {
  lane.opened(body.number);
  lane.set_transports(body.transports);
  lane.set_peer_has_rate(body.has_rate != 0);
  receiving_.emplace(body.number, &lane);
  if (body.depth != lane.terms().depth || body.most_bytes != lane.terms().most_bytes) {
    break_off(lane, misfit(lane, body));
    return;
  }
  start_waiting(lane);
}

// Starts what the sender may hear of now, and tells it of what has ended before.
void Lanes::start_waiting(Lane& lane) {
  const auto in_reach = [&](uint64_t run)
                            HETCOMM_UNDER_BATON { return lane.ahead(run) < Lane::kMaxAhead; };
  size_t told = 0;
  for (const Lane::UntoldStop& stop : lane.untold()) {
    if (!in_reach(stop.run)) break;
    association_.send_reason(MessageKind::kStop, run_id(lane.number(), stop.run), stop.why);
    ++told;
  }
  lane.untold().erase(lane.untold().begin(), lane.untold().begin() + static_cast<ptrdiff_t>(told));
  while (!lane.waiting().empty()) {
    Operation& run = lane.waiting().front();
    if (!in_reach(run.transfer.run)) return;
    lane.waiting().remove(run);
    run.phase = OperationPhase::kSubmitted;
    begin_receive(lane, run);
  }
}

// |lane| is going away without having been opened for its owner.
void Lanes::forget(Lane& lane) {
  pacer_.remove(lane.flow(), common().now_ns());
  unopened_.erase(name_of(lane));
  for (auto* lanes : {&sending_, &receiving_}) {
    std::erase_if(*lanes, [&](const auto& each) { return each.second == &lane; });
  }
}

void Lanes::close(Lane& lane, const Status& why, bool unmatched) {
  if (unmatched) {
    unopened_.erase(name_of(lane));
  } else {
    unopened_.change(name_of(lane), [&](Unopened& each) {
      each.lane = nullptr;
      each.why = why;
    });
  }
  if (!lane.is_open()) return;
  pacer_.remove(lane.flow(), common().now_ns());
  auto& lanes = lane.is_sending() ? sending_ : receiving_;
  const auto own = lanes.find(lane.number());
  if (own == lanes.end() || own->second != &lane) return;
  lanes.erase(own);
  // The peer knows of an end that it has closed itself.
  if (!lane.closed().ok()) return;
  // The first one that has ended out of the sender's reach, and all behind it, have not begun.
  const uint64_t runs = lane.untold().empty() ? lane.next_run() : lane.untold().front().run;
  tell_closed(lane, why, {.runs = runs, .unmatched = unmatched ? uint64_t{1} : 0});
  if (lane.is_sending()) tell_given_up(lane);
}

// The peer hears of runs that ended here and that it has not granted: nobody looks at its grants any
// more. It starts no further ones.
void Lanes::tell_given_up(Lane& lane) {
  for (uint64_t run = lane.runs().first(); run < lane.runs().end(); ++run) {
    const SendRun* entry = lane.runs().find(run);
    if (entry == nullptr || entry->state != SendRun::State::kUntold) continue;
    association_.send_reason(MessageKind::kWithdraw, run_id(lane.number(), run), entry->why);
  }
}

void Lanes::tell_closed(const Lane& lane, const Status& why, const LaneClosedBody& body) {
  tell_closed(closed_end(lane.number(), !lane.is_sending()), why, body);
}

void Lanes::tell_closed(uint64_t end, const Status& why, const LaneClosedBody& body) {
  const Status told = reason_for_others(common().rank, why);
  std::array<std::byte, sizeof(body) + kMaxReasonBytes> payload;
  const size_t size = std::min(told.text().size(), kMaxReasonBytes);
  std::memcpy(payload.data(), &body, sizeof(body));
  std::memcpy(payload.data() + sizeof(body), told.text().data(), size);
  association_.send_protocol(MessageKind::kLaneClosed, end, static_cast<uint64_t>(why.code()),
                             payload.data(), sizeof(body) + size);
}

// What the peer is told of an end that was closed, or never will be opened, without a failure.
Status Lanes::closed_here() {
  return status_or_code(Code::kAborted, [&]() HETCOMM_UNDER_BATON {
    return fmt::format("rank {} closed its end", common().rank);
  });
}

// Says that the peer's end was opened with other terms.
Status Lanes::misfit(const Lane& lane, const LaneOpenBody& theirs) {
  return status_or_code(Code::kMismatch, [&]() HETCOMM_UNDER_BATON {
    return fmt::format(
        "rank {} opened its end for items of up to {} bytes and {} at a time, rank {} for items of "
        "up to {} bytes and {} at a time",
        association_.rank(), theirs.most_bytes, theirs.depth, common().rank,
        lane.terms().most_bytes, lane.terms().depth);
  });
}

void Lanes::receive_closed(const WireHeader& header, ConstByteSpan payload) {
  LaneClosedBody body;
  const auto number = static_cast<uint32_t>(header.tag >> 1);
  const bool receiving = (header.tag & 1) != 0;
  if (payload.size() < sizeof(body) || !decode_body(payload.first(sizeof(body)), &body) ||
      header.value == 0) {
    association_.violated("lane that was closed for no reason");
    return;
  }
  const Status why =
      PeerReason(association_.rank(), header, payload.subspan(sizeof(body))).status();
  if (!receiving) {
    if (body.unmatched != 0) {
      openings_.erase(number);
    } else {
      openings_.change(number, [&](Opening& each) { each.closed = why; });
    }
  }
  Lane* lane = find(receiving ? sending_ : receiving_, number);
  if (lane == nullptr || !lane->closed().ok()) return;
  end_runs(*lane, body.runs, why);
}

// No run of |lane| starts any more, and those under way end, from number |from| on.
void Lanes::end_runs(Lane& lane, uint64_t from, const Status& why) {
  lane.set_closed(why);
  end_waiting(lane, why);
  if (lane.is_sending()) {
    // A run that ends may move the others.
    for (uint64_t run = std::max(from, lane.runs().first()); run < lane.runs().end(); ++run) {
      SendRun* entry = lane.runs().find(run);
      if (entry != nullptr && entry->transfer != nullptr) {
        entry->transfer->closed(why);
      }
    }
    return;
  }
  if (lane.taken() == 0) return;  // most lanes are closed when nothing is under way
  transfers_.receives().for_each([&](ReceiveTransfer& transfer) HETCOMM_UNDER_BATON {
    const uint64_t id = transfer.sender_id();
    if (is_run_id(id) && lane_of(id) == lane.number() && run_of(id) >= from) {
      transfer.closed(why);
    }
  });
}

void Lanes::end_waiting(Lane& lane, const Status& why) {
  while (!lane.waiting().empty()) {
    Operation& run = lane.waiting().front();
    lane.waiting().remove(run);
    refuse(run, why);
  }
}

// --- runs ---------------------------------------------------------------------

void Lanes::start(Operation& run) {
  Lane& lane = *run.transfer.lane;
  if (!lane.closed().ok()) {
    refuse(run, lane.closed());
  } else if (lane.is_sending()) {
    start_send(lane, run);
  } else {
    start_receive(lane, run);
  }
}

// |run| ends before it has begun. The peer knows, or is told by others.
void Lanes::refuse(Operation& run, Code code, std::string text) {
  run.phase = OperationPhase::kSubmitted;
  common().completer.complete(run, code, std::move(text));
}

void Lanes::refuse(Operation& run, const Status& why) {
  refuse(run, why.code(), text_of_told(run, why));
}

// This side ends the lane: the peer can no longer tell which run is which.
void Lanes::break_off(Lane& lane, const Status& why) {
  if (lane.is_open()) tell_closed(lane, why, LaneClosedBody{});
  end_runs(lane, 0, why);
}

void Lanes::start_send(Lane& lane, Operation& run) {
  // Items that were given up, and which nobody has asked for.
  const uint64_t held = lane.next_run() - lane.runs().first();
  if (lane.terms().use == 0 && held >= Lane::kMaxAhead) {
    refuse_far(lane, run, "receiver", held);
    return;
  }
  try {
    (void)lane.runs().reach(lane.next_run());
  } catch (const std::bad_alloc&) {
    break_off(lane, Code::kOutOfMemory);
    refuse(run, Code::kOutOfMemory, {});
    return;
  }
  const uint64_t number = run.transfer.run = lane.take_number();
  tell_at(lane);
  SendRun* entry = lane.runs().find(number);
  if (entry->state == SendRun::State::kStopped) {
    const Status why = entry->why;
    entry->state = SendRun::State::kOver;
    lane.runs().drop_old();
    refuse(run, why);
    return;
  }
  try {
    auto transfer = make_pooled<SendTransfer>(common().blocks, transfers_, run);
    entry->transfer = transfer.get();
    run.phase = OperationPhase::kTransfer;
    run.transfer.send = transfer.release();
  } catch (const std::bad_alloc&) {
    const bool granted = !entry->grants.empty();
    if (granted) {
      association_.send_reason(MessageKind::kWithdraw, run_id(lane.number(), number),
                               Code::kOutOfMemory);
    }
    lane.run_ended(number, Code::kOutOfMemory, granted);
    refuse(run, Code::kOutOfMemory, {});
    return;
  }
  entry->state = SendRun::State::kStarted;
  if (entry->grants.empty()) return;
  if (run.length <= kMaxAtOnce) {
    take_grants(lane, number);
  } else {
    if (!std::exchange(lane.is_left, true)) left_.push_back(lane.number());
    common().turns.update_due(association_.pair());
  }
}

bool Lanes::skip(Lane& lane, uint64_t runs) {
  if (!lane.closed().ok()) return true;
  if (!lane.is_sending()) {
    lane.pass(runs);
    return true;
  }
  try {
    if (!lane.runs().skip(lane.next_run(), runs, Lane::kMaxAhead)) return false;
    lane.pass(runs);
    tell_at(lane);
  } catch (const std::bad_alloc&) {
    break_off(lane, Code::kOutOfMemory);
  }
  return true;
}

void Lanes::give_up(Lane& lane, uint64_t from, uint64_t runs) {
  if (!lane.is_sending()) return;
  const uint64_t end = std::min(from + runs, lane.next_run());
  for (uint64_t run = std::max(from, lane.runs().first()); run < end; ++run) {
    SendRun* const entry = lane.runs().find(run);
    if (entry == nullptr) break;
    entry->is_given_up = true;
    if (entry->state == SendRun::State::kUntold) entry->state = SendRun::State::kOver;
  }
  lane.runs().drop_old();
}

// A receiver that is far ahead waits for this.
void Lanes::tell_at(Lane& lane) {
  if (lane.is_open() && lane.take_telling()) [[unlikely]] {
    association_.send_protocol(MessageKind::kLaneAt, lane.number(), lane.next_run());
  }
}

// Gives the transfer of run |number| the grants that came before its start. They may end the run.
void Lanes::take_grants(Lane& lane, uint64_t number) {
  SendRun* entry = lane.runs().find(number);
  while (entry != nullptr && entry->transfer != nullptr && !entry->grants.empty()) {
    const Grant grant = entry->grants.front();
    entry->grants.erase(entry->grants.begin());
    entry->transfer->granted(grant);
    entry = lane.runs().find(number);  // it may have moved
  }
}

void Lanes::move_left() {
  const size_t count = left_.size();
  for (size_t i = 0; i < count; ++i) {
    Lane* const lane = find(sending_, left_[i]);
    if (lane == nullptr) continue;
    lane->is_left = false;
    for (uint64_t run = lane->runs().first(); run < lane->runs().end(); ++run) {
      take_grants(*lane, run);
    }
  }
  left_.erase(left_.begin(), left_.begin() + static_cast<ptrdiff_t>(count));
}

// Those that wait for their turn go on, in turns.
void Lanes::move_paced() {
  const uint64_t now_ns = common().now_ns();
  while (Pacer::Flow* flow = pacer_.next(now_ns)) {
    Lane* const own = find(sending_, flow->lane);
    if (own == nullptr) continue;
    Lane& lane = *own;
    // Data of high priority goes first.
    for (const bool high : {true, false}) {
      for (uint64_t run = lane.runs().first(); run < lane.runs().end(); ++run) {
        const SendRun* entry = lane.runs().find(run);
        if (entry == nullptr || entry->transfer == nullptr) continue;
        if (entry->transfer->is_high() == high) entry->transfer->go_on();
      }
    }
  }
}

// The peer, which is the |other| of the lane, does not come after: the number is not taken.
void Lanes::refuse_far(Lane& lane, Operation& run, std::string_view other, uint64_t items) {
  refuse(run, Code::kBusy, text_or_none([&]() HETCOMM_UNDER_BATON {
           return fmt::format("{}: the {}, rank {}, is {} items behind", describe(run), other,
                              lane.peer(), items);
         }));
}

void Lanes::start_receive(Lane& lane, Operation& run) {
  const uint64_t ahead = lane.ahead(lane.next_run());
  const bool is_far = ahead >= Lane::kMaxAhead;
  if (is_far && lane.terms().use == 0) {
    refuse_far(lane, run, "sender", ahead);
    return;
  }
  if (!lane.is_open() || is_far) {
    try {
      lane.make_room();
    } catch (const std::bad_alloc&) {
      refuse(run, Code::kOutOfMemory, {});  // the next one takes the number
      return;
    }
    run.phase = OperationPhase::kUnopened;
    run.transfer.run = lane.take_number();
    lane.waiting().push_back(run);
    return;
  }
  run.transfer.run = lane.take_number();
  begin_receive(lane, run);
}

void Lanes::begin_receive(Lane& lane, Operation& run) {
  Incoming message{};
  message.sender_id = run_id(lane.number(), run.transfer.run);
  message.transports = lane.transports();
  message.tag = run.tag;
  message.length = run.length;
  try {
    auto transfer = make_pooled<ReceiveTransfer>(common().blocks, transfers_, run, message);
    run.phase = OperationPhase::kTransfer;
    run.transfer.receive = transfer.release();
  } catch (const std::bad_alloc&) {
    association_.send_reason(MessageKind::kStop, message.sender_id, Code::kOutOfMemory);
    refuse(run, Code::kOutOfMemory, {});
    return;
  }
  run.transfer.receive->start();
}

void Lanes::end_unopened(Operation& run, Code code, std::string text) {
  Lane& lane = *run.transfer.lane;
  lane.waiting().remove(run);
  // There is room. They stay in the order of their numbers.
  const auto behind =
      std::find_if(lane.untold().begin(), lane.untold().end(),
                   [&](const Lane::UntoldStop& each) { return each.run > run.transfer.run; });
  lane.untold().insert(behind, {run.transfer.run, status_or_code(code, [&] { return text; })});
  refuse(run, code, std::move(text));
}

// --- what arrives ---------------------------------------------------------------

Lane* Lanes::find(const std::unordered_map<uint32_t, Lane*>& lanes, uint32_t number) {
  const auto found = lanes.find(number);
  return found == lanes.end() ? nullptr : found->second;
}

SendTransfer* Lanes::find_send(uint64_t id) {
  Lane* lane = find(sending_, lane_of(id));
  SendRun* entry = lane != nullptr ? lane->runs().find(run_of(id)) : nullptr;
  return entry != nullptr ? entry->transfer : nullptr;
}

void Lanes::granted(const Grant& grant) {
  Lane* lane = find(sending_, lane_of(grant.sender_id));
  const uint64_t run = run_of(grant.sender_id);
  if (lane == nullptr || run < lane->runs().first()) return;
  if (run - lane->runs().first() >= Lane::kMaxSpan) {
    association_.violated("grant for a run that is too far ahead");
    return;
  }
  SendRun& entry = lane->runs().reach(run);
  switch (entry.state) {
    case SendRun::State::kStarted:
      entry.transfer->granted(grant);
      break;
    case SendRun::State::kUntold:
      association_.send_reason(MessageKind::kWithdraw, grant.sender_id, entry.why);
      entry.state = SendRun::State::kOver;
      lane->runs().drop_old();
      break;
    case SendRun::State::kAhead:
      if (entry.grants.size() >= kMaxGrants || holds_too_many(*lane, run)) {
        association_.violated("too many grants for runs that have not begun");
        return;
      }
      entry.grants.push_back(grant);
      break;
    case SendRun::State::kStopped:
    case SendRun::State::kOver:
      break;
  }
}

// A receiver has no more runs under way than the depth says: others that it is ahead were given up.
bool Lanes::holds_too_many(Lane& lane, uint64_t run) {
  const uint64_t depth = lane.terms().depth;
  if (run - lane.runs().first() < 2 * depth) [[likely]]
    return false;
  size_t held = 0;
  lane.runs().for_each([&](const SendRun& each) { held += each.grants.size(); });
  return held >= 2 * depth * kMaxGrants;
}

void Lanes::stopped(uint64_t id, const PeerReason& why) {
  Lane* lane = find(sending_, lane_of(id));
  const uint64_t run = run_of(id);
  if (lane == nullptr || run < lane->runs().first()) return;
  if (run - lane->runs().first() >= Lane::kMaxSpan) {
    association_.violated("end of a run that is too far ahead");
    return;
  }
  SendRun& entry = lane->runs().reach(run);
  if (entry.state == SendRun::State::kStarted) {
    entry.transfer->stopped(why);
    return;
  }
  if (entry.state == SendRun::State::kAhead) {
    entry.grants.clear();
    entry.why = why.status();
    entry.state = SendRun::State::kStopped;
  } else if (entry.state == SendRun::State::kUntold) {
    entry.state = SendRun::State::kOver;
    lane->runs().drop_old();
  }
}

// The sending end has passed all runs before |header.value|.
void Lanes::receive_at(const WireHeader& header) {
  if (header.tag > kMaxLaneNumber) {
    association_.violated("lane that cannot be");
    return;
  }
  const auto number = static_cast<uint32_t>(header.tag);
  openings_.change(number, [&](Opening& each) { each.at = std::max(each.at, header.value); });
  Lane* lane = find(receiving_, number);
  if (lane == nullptr) return;
  lane->peer_is_at(header.value);
  if (lane->closed().ok()) start_waiting(*lane);
}

void Lanes::receive_length(const WireHeader& header) {
  ReceiveTransfer* const found = transfers_.find_receive(header.tag);
  if (found != nullptr && is_run_id(header.tag) && !found->shorten(header.value)) {
    association_.violated("length of a message that is longer");
  }
}

// --- connections ----------------------------------------------------------------

template <typename Use>
void Lanes::for_each(Use&& use) {
  for (auto& [number, lane] : sending_) use(*lane);
  for (auto& [number, lane] : receiving_) use(*lane);
  unopened_.for_each([&](const Unopened& each) HETCOMM_UNDER_BATON {
    if (each.lane != nullptr) use(*each.lane);
  });
}

void Lanes::rail_failed(const Rail& rail) {
  const uint64_t gone = rail.id;
  for (auto& [number, lane] : sending_) {
    lane->runs().for_each([gone](SendRun& run) {
      std::erase_if(run.grants, [gone](const Grant& grant) { return grant.rail == gone; });
    });
  }
}

bool Lanes::uses(const Rail& rail) {
  const uint64_t wanted = rail.id;
  bool used = false;
  for (auto& [number, lane] : sending_) {
    lane->runs().for_each([&used, wanted](const SendRun& run) {
      used = used || std::any_of(run.grants.begin(), run.grants.end(),
                                 [wanted](const Grant& grant) { return grant.rail == wanted; });
    });
  }
  return used;
}

void Lanes::fail_everything(const Status& why) {
  for_each([&](Lane& lane) HETCOMM_UNDER_BATON {
    lane.set_closed(why);
    end_waiting(lane, lane.closed());
  });
  pacer_.clear(common().now_ns());
  sending_.clear();
  receiving_.clear();
  unopened_.clear();
  openings_.clear();
}

}  // namespace hetcomm
