#include "src/core/peer/transfer/tracks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/room.h"
#include "src/base/text.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/peer/matching/track_base.h"
#include "src/core/peer/transfer/transfers.h"

namespace hetcomm {
namespace {

// The most grants for a run that can arrive before it starts.
constexpr size_t kMaxGrants = 64;

// Returns the tag of a kTrackClosed that reports that this rank has closed |track|.
uint64_t end_of(const Track& track) HETCOMM_UNDER_BATON {
  return closed_end(track.number(), !track.is_sending());
}

// Returns whether the peer has sent too many grants for runs that have not started. At most |depth|
// runs are in flight, but runs in between may have been given up, so a run far ahead is accepted
// unless too many grants are held.
bool holds_too_many(Track& track, uint64_t run) HETCOMM_UNDER_BATON {
  const uint64_t depth = track.terms().depth;
  if (run - track.runs().first() < 2 * depth) [[likely]]
    return false;
  size_t held = 0;
  track.runs().for_each([&](const SendRun& each) { held += each.grants.size(); });
  return held >= 2 * depth * kMaxGrants;
}

}  // namespace

// --- opening and closing ------------------------------------------------------

void Tracks::open(Track& track, const Status& lost) {
  if (!lost.ok()) {
    track.set_closed(lost);
  } else if (track.is_sending()) {
    open_sending(track);
  } else {
    open_receiving(track);
  }
}

void Tracks::open_sending(Track& track) {
  while (sending_.contains(next_number_)) next_number_ = (next_number_ + 1) & kMaxTrackNumber;
  make_room(left_, sending_.size() + 1);
  sending_.emplace(next_number_, &track);
  track.opened(next_number_);
  track.flow().track = next_number_;
  if (track.flow().share.weight > 0) pacer_.add(track.flow());
  next_number_ = (next_number_ + 1) & kMaxTrackNumber;
  const bool has_rate = track.flow().share.bytes_per_second > 0;
  const TrackOpenBody body{.channel = track.channel(),
                           .number = track.number(),
                           .depth = static_cast<uint16_t>(track.terms().depth),
                           .has_rate = static_cast<uint16_t>(has_rate),
                           .use = track.terms().use,
                           .content = track.terms().content,
                           .most_bytes = track.terms().most_bytes,
                           .transports = track.terms().transports};
  association_.send_protocol(MessageKind::kTrackOpen, track.terms().tag, track.terms().plan, &body,
                             sizeof(body));
}

void Tracks::open_receiving(Track& track) {
  receiving_.reserve(receiving_.size() + 1);
  const TrackTerms& terms = track.terms();
  const std::optional<Opening> found = openings_.take(key_of(track), terms.content, terms.plan);
  if (!found) {
    drop_gone();
    unopened_.add({track.channel(), terms.use, terms.tag, terms.plan, terms.content, &track, {}});
  } else if (!found->closed.ok()) {
    track.set_closed(found->closed);
  } else {
    track.peer_is_at(found->at);
    bind(track, found->body);
  }
}

void Tracks::receive_open(const WireHeader& header, ConstByteSpan payload) {
  TrackOpenBody body;
  if (!decode_body(payload, &body) || body.number > kMaxTrackNumber ||
      receiving_.contains(body.number)) {
    association_.violated("track that cannot be opened");
    return;
  }
  const Channel* channel = data().channels.find(body.channel);
  if (channel == nullptr || channel->closed) {
    // The sender learns of an abort separately.
    if (!data().channels.is_aborted(body.channel)) {
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
      association_.violated("too many tracks that nobody here has opened");
      return;
    }
    openings_.add({.tag = header.tag, .plan = header.value, .body = body, .closed = {}});
    return;
  }
  if (own->track == nullptr) {
    tell_closed(closed_end(body.number, true), own->why, {});
  } else {
    bind(*own->track, body);
  }
}

// Removes ends of destroyed communicators, whose partners will never be opened.
void Tracks::drop_gone() {
  const auto gone = [&](uint32_t channel)
                        HETCOMM_UNDER_BATON { return data().channels.find(channel) == nullptr; };
  unopened_.tidy(gone, [](const Unopened& each) { return each.is_gone(); });
  openings_.tidy(gone, [](const Opening&) { return true; });
}

// Joins |track| to the peer's end, or closes the track on both ranks if their terms differ.
void Tracks::bind(Track& track, const TrackOpenBody& body) {
  track.opened(body.number);
  track.set_transports(body.transports);
  track.set_peer_has_rate(body.has_rate != 0);
  receiving_.emplace(body.number, &track);
  if (body.depth != track.terms().depth || body.most_bytes != track.terms().most_bytes) {
    break_off(track, misfit(track, body));
    return;
  }
  start_waiting(track);
}

// Starts the waiting runs that are no longer too far ahead of the sender, and reports those that
// ended while they waited.
void Tracks::start_waiting(Track& track) {
  const auto in_reach = [&](uint64_t run)
                            HETCOMM_UNDER_BATON { return track.ahead(run) < Track::kMaxAhead; };
  size_t told = 0;
  for (const Track::UntoldStop& stop : track.untold()) {
    if (!in_reach(stop.run)) break;
    association_.send_reason(MessageKind::kStop, run_id(track.number(), stop.run), stop.why);
    ++told;
  }
  track.untold().erase(track.untold().begin(),
                       track.untold().begin() + static_cast<ptrdiff_t>(told));
  while (!track.waiting().empty()) {
    Operation& run = track.waiting().front();
    if (!in_reach(track_run(run).run)) return;
    track.waiting().remove(run);
    run.phase = OperationPhase::kSubmitted;
    begin_receive(track, run);
  }
}

void Tracks::forget(Track& track) {
  pacer_.remove(track.flow(), association_.now_ns());
  unopened_.erase(name_of(track));
  for (auto* tracks : {&sending_, &receiving_}) {
    std::erase_if(*tracks, [&](const auto& each) { return each.second == &track; });
  }
}

void Tracks::close(Track& track, const Status& why, bool unmatched) {
  if (unmatched) {
    unopened_.erase(name_of(track));
  } else {
    unopened_.change(name_of(track), [&](Unopened& each) {
      each.track = nullptr;
      each.why = why;
    });
  }
  if (!track.is_open()) return;
  pacer_.remove(track.flow(), association_.now_ns());
  auto& tracks = track.is_sending() ? sending_ : receiving_;
  const auto own = tracks.find(track.number());
  if (own == tracks.end() || own->second != &track) return;
  tracks.erase(own);
  // If the track is already closed, the peer knows. The peer is notified of an abort separately. A
  // message from here could arrive first, and would contain only a part of the reason.
  const bool is_aborted = !messaging(track.communicator()).channel().aborted.ok();
  if (!track.closed().ok() || is_aborted) return;
  // A run in untold() has not begun, and neither have the later ones.
  const uint64_t runs = track.untold().empty() ? track.next_run() : track.untold().front().run;
  tell_closed(end_of(track), why, {.runs = runs, .unmatched = unmatched ? uint64_t{1} : 0});
  if (track.is_sending()) tell_given_up(track);
}

// Notifies the peer of runs that ended here before it granted them, since later grants are no
// longer handled. |track| starts no further runs.
void Tracks::tell_given_up(Track& track) {
  for (uint64_t run = track.runs().first(); run < track.runs().end(); ++run) {
    const SendRun* entry = track.runs().find(run);
    if (entry == nullptr || entry->state != SendRun::State::kUntold) continue;
    association_.send_reason(MessageKind::kWithdraw, run_id(track.number(), run), entry->why);
  }
}

void Tracks::tell_closed(uint64_t end, const Status& why, const TrackClosedBody& body) {
  const Status told = reason_for_others(association_.own_rank(), why);
  std::array<std::byte, sizeof(body) + kMaxReasonBytes> payload;
  const size_t size = std::min(told.text().size(), kMaxReasonBytes);
  std::memcpy(payload.data(), &body, sizeof(body));
  std::memcpy(payload.data() + sizeof(body), told.text().data(), size);
  association_.send_protocol(MessageKind::kTrackClosed, end, static_cast<uint64_t>(why.code()),
                             payload.data(), sizeof(body) + size);
}

// Returns the status with which this rank reports that the peer's end will never have a partner
// here.
Status Tracks::closed_here() {
  return status_or_code(Code::kAborted, [&]() HETCOMM_UNDER_BATON {
    return fmt::format("rank {} closed its end", association_.own_rank());
  });
}

// Returns a status that reports that the peer's end was opened with other terms.
Status Tracks::misfit(const Track& track, const TrackOpenBody& theirs) {
  return status_or_code(Code::kMismatch, [&]() HETCOMM_UNDER_BATON {
    return fmt::format(
        "rank {} opened its end for items of up to {} bytes and {} at a time, rank {} for items of "
        "up to {} bytes and {} at a time",
        association_.rank(), theirs.most_bytes, theirs.depth, association_.own_rank(),
        track.terms().most_bytes, track.terms().depth);
  });
}

void Tracks::receive_closed(const WireHeader& header, ConstByteSpan payload) {
  TrackClosedBody body;
  const auto number = static_cast<uint32_t>(header.tag >> 1);
  const bool receiving = (header.tag & 1) != 0;
  if (payload.size() < sizeof(body) || !decode_body(payload.first(sizeof(body)), &body) ||
      header.value == 0) {
    association_.violated("track that was closed for no reason");
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
  Track* track = find(receiving ? sending_ : receiving_, number);
  if (track == nullptr || !track->closed().ok()) return;
  end_runs(*track, body.runs, why);
}

// Closes |track|, and ends its runs in flight that are numbered |from| or higher.
void Tracks::end_runs(Track& track, uint64_t from, const Status& why) {
  track.set_closed(why);
  end_waiting(track, why);
  if (track.is_sending()) {
    // When a run ends, the other entries may move, so each one is looked up.
    for (uint64_t run = std::max(from, track.runs().first()); run < track.runs().end(); ++run) {
      SendRun* entry = track.runs().find(run);
      if (entry != nullptr && entry->transfer != nullptr) {
        entry->transfer->closed(why);
      }
    }
    return;
  }
  if (track.taken() == 0) return;  // most tracks are closed with nothing in flight
  transfers_.receives().for_each([&](ReceiveTransfer& transfer) HETCOMM_UNDER_BATON {
    const uint64_t id = transfer.sender_id();
    if (is_run_id(id) && track_of(id) == track.number() && run_of(id) >= from) {
      transfer.closed(why);
    }
  });
}

void Tracks::end_waiting(Track& track, const Status& why) {
  while (!track.waiting().empty()) {
    Operation& run = track.waiting().front();
    track.waiting().remove(run);
    refuse(run, why);
  }
}

// --- runs ---------------------------------------------------------------------

void Tracks::start(Operation& run) {
  Track& track = track_of(run);
  if (!track.closed().ok()) {
    refuse(run, track.closed());
  } else if (track.is_sending()) {
    start_send(track, run);
  } else {
    start_receive(track, run);
  }
}

// Fails |run| before it has begun. The peer knows, or is notified separately.
void Tracks::refuse(Operation& run, Code code, std::string text) {
  run.phase = OperationPhase::kSubmitted;
  data().completer.complete(run, code, std::move(text));
}

void Tracks::refuse(Operation& run, const Status& why) {
  refuse(run, why.code(), text_of_told(run, why));
}

// Closes the track on both ranks, since its runs cannot correspond.
void Tracks::break_off(Track& track, const Status& why) {
  if (track.is_open()) tell_closed(end_of(track), why, TrackClosedBody{});
  end_runs(track, 0, why);
}

void Tracks::start_send(Track& track, Operation& run) {
  // Counts the runs from the first one that is not over. That one is in flight, or has ended here
  // before the receiver granted it.
  const uint64_t held = track.next_run() - track.runs().first();
  if (track.terms().use == 0 && held >= Track::kMaxAhead) {
    refuse_far(track, run, "receiver", held);
    return;
  }
  try {
    (void)track.runs().reach(track.next_run());
  } catch (const std::bad_alloc&) {
    break_off(track, Code::kOutOfMemory);
    refuse(run, Code::kOutOfMemory, {});
    return;
  }
  const uint64_t number = track_run(run).run = track.take_number();
  tell_at(track);
  SendRun* entry = track.runs().find(number);
  if (entry->state == SendRun::State::kStopped) {
    const Status why = entry->why;
    entry->state = SendRun::State::kOver;
    track.runs().drop_old();
    refuse(run, why);
    return;
  }
  try {
    auto transfer = make_pooled<SendTransfer>(data().blocks, transfers_, run);
    entry->transfer = transfer.get();
    run.phase = OperationPhase::kTransfer;
    transfers_of(run).send = transfer.release();
  } catch (const std::bad_alloc&) {
    const bool granted = !entry->grants.empty();
    if (granted) {
      association_.send_reason(MessageKind::kWithdraw, run_id(track.number(), number),
                               Code::kOutOfMemory);
    }
    track.run_ended(number, Code::kOutOfMemory, granted);
    refuse(run, Code::kOutOfMemory, {});
    return;
  }
  entry->state = SendRun::State::kStarted;
  if (entry->grants.empty()) return;
  if (run.length <= kMaxAtOnce) {
    take_grants(track, number);
  } else {
    if (!std::exchange(track.is_left, true)) left_.push_back(track.number());
    association_.update_due();
  }
}

bool Tracks::skip(Track& track, uint64_t runs) {
  if (!track.closed().ok()) return true;
  if (!track.is_sending()) {
    track.pass(runs);
    return true;
  }
  try {
    if (!track.runs().skip(track.next_run(), runs, Track::kMaxAhead)) return false;
    track.pass(runs);
    tell_at(track);
  } catch (const std::bad_alloc&) {
    break_off(track, Code::kOutOfMemory);
  }
  return true;
}

void Tracks::give_up(Track& track, uint64_t from, uint64_t runs) {
  if (!track.is_sending()) return;
  const uint64_t end = std::min(from + runs, track.next_run());
  for (uint64_t run = std::max(from, track.runs().first()); run < end; ++run) {
    SendRun* const entry = track.runs().find(run);
    if (entry == nullptr) break;
    entry->is_given_up = true;
  }
}

// Reports the position of |track| to the peer if it has advanced far. A receiver that is far ahead
// waits for this message.
void Tracks::tell_at(Track& track) {
  if (track.is_open() && track.take_telling()) [[unlikely]] {
    association_.send_protocol(MessageKind::kTrackAt, track.number(), track.next_run());
  }
}

// Passes the grants that arrived before the start of run |number| to its transfer. A grant can end
// the run.
void Tracks::take_grants(Track& track, uint64_t number) {
  SendRun* entry = track.runs().find(number);
  while (entry != nullptr && entry->transfer != nullptr && !entry->grants.empty()) {
    const Grant grant = entry->grants.front();
    entry->grants.erase(entry->grants.begin());
    entry->transfer->granted(grant);
    entry = track.runs().find(number);  // the entry may have moved
  }
}

void Tracks::move_left() {
  const size_t count = left_.size();
  for (size_t i = 0; i < count; ++i) {
    Track* const track = find(sending_, left_[i]);
    if (track == nullptr) continue;
    track->is_left = false;
    for (uint64_t run = track->runs().first(); run < track->runs().end(); ++run) {
      take_grants(*track, run);
    }
  }
  left_.erase(left_.begin(), left_.begin() + static_cast<ptrdiff_t>(count));
}

// Resumes the runs of the flows that the pacer allows to send, one flow after the other.
void Tracks::move_paced() {
  const uint64_t now_ns = association_.now_ns();
  while (Pacer::Flow* flow = pacer_.next(now_ns)) {
    Track* const own = find(sending_, flow->track);
    if (own == nullptr) continue;
    Track& track = *own;
    // Data of high priority is sent first.
    for (const bool high : {true, false}) {
      for (uint64_t run = track.runs().first(); run < track.runs().end(); ++run) {
        const SendRun* entry = track.runs().find(run);
        if (entry == nullptr || entry->transfer == nullptr) continue;
        if (entry->transfer->is_high() == high) entry->transfer->go_on();
      }
    }
  }
}

// Refuses |run| because the peer is too far behind; no run number is consumed. |other| is the
// peer's role in the text.
void Tracks::refuse_far(Track& track, Operation& run, std::string_view other, uint64_t items) {
  refuse(run, Code::kBusy, text_or_none([&]() HETCOMM_UNDER_BATON {
           return fmt::format("{}: the {}, rank {}, is {} items behind", describe(run), other,
                              track.peer(), items);
         }));
}

void Tracks::start_receive(Track& track, Operation& run) {
  const uint64_t ahead = track.ahead(track.next_run());
  const bool is_far = ahead >= Track::kMaxAhead;
  if (is_far && track.terms().use == 0) {
    refuse_far(track, run, "sender", ahead);
    return;
  }
  if (!track.is_open() || is_far) {
    try {
      track.make_room();
    } catch (const std::bad_alloc&) {
      refuse(run, Code::kOutOfMemory, {});  // the run number is left to the next run
      return;
    }
    run.phase = OperationPhase::kUnopened;
    track_run(run).run = track.take_number();
    track.waiting().push_back(run);
    return;
  }
  track_run(run).run = track.take_number();
  begin_receive(track, run);
}

void Tracks::begin_receive(Track& track, Operation& run) {
  Incoming message{};
  message.sender_id = run_id(track.number(), track_run(run).run);
  message.transports = track.transports();
  message.tag = run.tag;
  message.length = run.length;
  try {
    auto transfer = make_pooled<ReceiveTransfer>(data().blocks, transfers_, run, message);
    run.phase = OperationPhase::kTransfer;
    transfers_of(run).receive = transfer.release();
  } catch (const std::bad_alloc&) {
    association_.send_reason(MessageKind::kStop, message.sender_id, Code::kOutOfMemory);
    refuse(run, Code::kOutOfMemory, {});
    return;
  }
  transfers_of(run).receive->start();
}

void Tracks::end_unopened(Operation& run, Code code, std::string text) {
  Track& track = track_of(run);
  track.waiting().remove(run);
  // Track::make_room() has reserved the entry. Entries are in the order of run numbers.
  const auto behind =
      std::find_if(track.untold().begin(), track.untold().end(),
                   [&](const Track::UntoldStop& each) { return each.run > track_run(run).run; });
  track.untold().insert(behind, {track_run(run).run, status_or_code(code, [&] { return text; })});
  refuse(run, code, std::move(text));
}

// --- arriving messages ----------------------------------------------------------

Track* Tracks::find(const std::unordered_map<uint32_t, Track*>& tracks, uint32_t number) {
  const auto found = tracks.find(number);
  return found == tracks.end() ? nullptr : found->second;
}

SendTransfer* Tracks::find_send(uint64_t id) {
  Track* track = find(sending_, track_of(id));
  SendRun* entry = track != nullptr ? track->runs().find(run_of(id)) : nullptr;
  return entry != nullptr ? entry->transfer : nullptr;
}

void Tracks::granted(const Grant& grant) {
  Track* track = find(sending_, track_of(grant.sender_id));
  const uint64_t run = run_of(grant.sender_id);
  if (track == nullptr || run < track->runs().first()) return;
  if (run - track->runs().first() >= Track::kMaxSpan) {
    association_.violated("grant for a run that is too far ahead");
    return;
  }
  SendRun& entry = track->runs().reach(run);
  switch (entry.state) {
    case SendRun::State::kStarted:
      entry.transfer->granted(grant);
      break;
    case SendRun::State::kUntold:
      association_.send_reason(MessageKind::kWithdraw, grant.sender_id, entry.why);
      entry.state = SendRun::State::kOver;
      track->runs().drop_old();
      break;
    case SendRun::State::kAhead:
      if (entry.grants.size() >= kMaxGrants || holds_too_many(*track, run)) {
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

void Tracks::stopped(uint64_t id, const PeerReason& why) {
  Track* track = find(sending_, track_of(id));
  const uint64_t run = run_of(id);
  if (track == nullptr || run < track->runs().first()) return;
  if (run - track->runs().first() >= Track::kMaxSpan) {
    association_.violated("end of a run that is too far ahead");
    return;
  }
  SendRun& entry = track->runs().reach(run);
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
    track->runs().drop_old();
  }
}

// Records that the sending end has passed all runs before |header.value|.
void Tracks::receive_at(const WireHeader& header) {
  if (header.tag > kMaxTrackNumber) {
    association_.violated("track that cannot be");
    return;
  }
  const auto number = static_cast<uint32_t>(header.tag);
  openings_.change(number, [&](Opening& each) { each.at = std::max(each.at, header.value); });
  Track* track = find(receiving_, number);
  if (track == nullptr) return;
  track->peer_is_at(header.value);
  if (track->closed().ok()) start_waiting(*track);
}

void Tracks::receive_length(const WireHeader& header) {
  ReceiveTransfer* const found = transfers_.find_receive(header.tag);
  if (found != nullptr && is_run_id(header.tag) && !found->shorten(header.value)) {
    association_.violated("length of a message that is longer");
  }
}

// --- connections ----------------------------------------------------------------

template <typename Use>
void Tracks::for_each(Use&& use) {
  for (auto& [number, track] : sending_) use(*track);
  for (auto& [number, track] : receiving_) use(*track);
  unopened_.for_each([&](const Unopened& each) HETCOMM_UNDER_BATON {
    if (each.track != nullptr) use(*each.track);
  });
}

void Tracks::rail_failed(const Rail& rail) {
  const uint64_t gone = rail.id;
  for (auto& [number, track] : sending_) {
    track->runs().for_each([gone](SendRun& run) {
      std::erase_if(run.grants, [gone](const Grant& grant) { return grant.rail == gone; });
    });
  }
}

bool Tracks::uses(const Rail& rail) {
  const uint64_t wanted = rail.id;
  bool used = false;
  for (auto& [number, track] : sending_) {
    track->runs().for_each([&used, wanted](const SendRun& run) {
      used = used || std::any_of(run.grants.begin(), run.grants.end(),
                                 [wanted](const Grant& grant) { return grant.rail == wanted; });
    });
  }
  return used;
}

void Tracks::fail_everything(const Status& why) {
  for_each([&](Track& track) HETCOMM_UNDER_BATON {
    track.set_closed(why);
    end_waiting(track, track.closed());
  });
  pacer_.clear(association_.now_ns());
  sending_.clear();
  receiving_.clear();
  unopened_.clear();
  openings_.clear();
}

}  // namespace hetcomm
