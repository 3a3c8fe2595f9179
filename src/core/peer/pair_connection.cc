// How a pair gets its connection, loses it, and goes on over the next one.
#include <algorithm>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {
namespace {

// Pause before the n-th attempt to connect again.
uint64_t backoff_ns(uint64_t attempts) {
  constexpr uint64_t kFirst = 10'000'000;
  constexpr uint64_t kMost = 1'000'000'000;
  return std::min(kMost, kFirst << std::min<uint64_t>(attempts, 7));
}
constexpr uint64_t kMaxAttempts = 8;
// So many attempts to connect fail at least before the peer counts as not reached: a rank that
// computes in between makes few of them.
constexpr uint64_t kMinConnects = 8;
// A transport that failed is taken after all others for this long after it has cooled down: without
// a connection there is no time to find out that it fails again.
constexpr uint64_t kDoubtNs = 1'000'000'000;
constexpr uint32_t kMostDoublings = 6;  // of the time that a transport cools down

}  // namespace

void Pair::ensure_connected() {
  if (state_ != State::kIdle) return;
  state_ = State::kConnecting;
  try {
    // Where nothing joins them both know it: nobody waits for the other's word.
    if (common_.rank <= rank_ || !common_.connector.has_common_transport(rank_)) {
      common_.connector.connect(*this);
    } else {
      common_.control->knock(rank_, static_cast<uint32_t>(rails_made_));
    }
  } catch (const std::bad_alloc&) {
    // Nothing is under way that would come back to it: the next one who needs it tries again.
    if (state_ == State::kConnecting) state_ = State::kIdle;
    throw;
  }
}

void Pair::knocked(uint32_t lost) {
  if (common_.rank >= rank_) return;
  while (state_ != State::kLost) {
    const auto gone = std::find_if(rails_.begin(), rails_.end(),
                                   [&](const auto& rail) { return rail->id <= lost; });
    if (gone == rails_.end()) break;
    // One of which it does not know the number may be younger than the knock, and still be held.
    rail_failed(**gone, Status(Code::kPeerLost, "the peer has no connection left"),
                lost == UINT32_MAX);
  }
  ensure_connected();
}

double Rail::rate_of(const Throughput& load) const {
  const auto estimate = static_cast<double>(capabilities_.bandwidth_bytes_per_s);
  return std::max(load.rate() > 0 ? load.rate() : estimate, 1.0);
}

double Rail::score_us() const { return score_of(capabilities_); }

Rail* Pair::find_rail(uint64_t id) {
  for (const auto& rail : rails_) {
    if (rail->id == id && rail->known) return rail.get();
  }
  return nullptr;
}

bool Pair::same_kind(const Rail& a, const Rail& b) {
  return &a == &b || (a.kind == b.kind && !a.capabilities().lossless);
}

size_t Pair::bulk_rails() {
  size_t count = 0;
  for_each_bulk_rail([&](Rail&) { ++count; });
  return count;
}

void Pair::adopt(std::unique_ptr<Endpoint> endpoint, std::string_view transport, size_t index) {
  if (state_ == State::kLost) return;
  for (const auto& rail : rails_) {
    if (rail->transport != index) continue;
    // The peer noticed a break before we did.
    replaced_ = true;
    rail_failed(*rail, Status(Code::kPeerLost, "replaced by a new connection"));
    replaced_ = false;
    if (state_ == State::kLost) return;
    break;
  }
  if (is_higher_) common_.control->forget_knock(rank_);
  if (rail_ == nullptr) state_ = State::kConnecting;
  retry_at_ns_ = kForever;
  hetcomm_counters_t* counters = counters_of(transport);
  counters->connected = 1;
  common_.log.info("rank {}: connected over {}: {}", rank_, transport, endpoint->describe());
  rails_.reserve(rails_.size() + 1);
  // The lower rank counts connections, and names them to the other in kOpen.
  const uint64_t id = is_higher_ ? 0 : ++rails_made_;
  auto made = std::make_unique<Rail>(*this, std::move(endpoint), id, index, counters);
  Rail& rail = *made;
  rail.known = !is_higher_;
  rail.kind = common_.connector.transport_kind(index);
  rails_.push_back(std::move(made));
  path(index).connecting = false;
  rail.endpoint().set_handler(&rail);
  send_open(rail);
}

// The first message of the connection. Without room on_writable comes back to it.
void Pair::send_open(Rail& rail) {
  const WireHeader header{.kind = MessageKind::kOpen, .tag = rail.id, .value = received_};
  const Code code = rail.endpoint().send(encode_header(header), SegmentView{});
  if (code == Code::kOk) {
    rail.open_sent = true;
  } else if (code != Code::kWouldBlock) {
    rail_failed(rail, Status(Code::kPeerLost, "connection broke while it was opened"));
  }
}

void Pair::opened(Rail& rail, const WireHeader& header) {
  if (rail.open) {
    violated(rail, "second open");
    return;
  }
  rail.open = true;
  if (!rail.known) {
    rail.id = header.tag;
    rails_made_ = std::max(rails_made_, header.tag);
    rail.known = true;
  }
  lost_unknown_ = false;
  const auto peer_received = static_cast<uint32_t>(header.value);
  if (!was_sent(rail, peer_received)) return;
  retention_.acknowledge(peer_received);
  // What went over a rail that loses nothing was not kept.
  if (std::exchange(check_kept_, false) && static_cast<int32_t>(not_kept_ - peer_received) > 0) {
    give_up(Status(Code::kPeerLost,
                   fmt::format("rank {}: messages were lost with the last connection", rank_)));
    return;
  }
  attempts_ = 0;
  unreached_since_ns_ = kForever;
  connects_failed_ = 0;
  vouched_ = false;
  path(rail.transport).up_since_ns = common_.engine.refresh_now();
  if (rail.open_sent) use(rail);
  if (!early_grants_.empty()) take_early_grants();
}

bool Pair::is_early(uint64_t id) {
  if (!is_higher_ || find_rail(id) != nullptr) return false;
  return id > rails_made_ ||
         std::any_of(rails_.begin(), rails_.end(), [](const auto& rail) { return !rail->known; });
}

void Pair::take_early_grants() {
  std::vector<GrantBody> grants;
  grants.swap(early_grants_);
  for (const GrantBody& grant : grants) {
    if (is_early(grant.rail)) {
      early_grants_.push_back(grant);
    } else if (SendTransfer* transfer = sends_.find(grant.sender_id); transfer != nullptr) {
      transfer->granted(grant);
    }
  }
}

void Pair::fail_unknown_rails() {
  while (state_ != State::kLost) {
    const auto unknown =
        std::find_if(rails_.begin(), rails_.end(), [](const auto& rail) { return !rail->known; });
    if (unknown == rails_.end()) return;
    rail_failed(**unknown, Status(Code::kPeerLost, "the peer has given it up"), false);
  }
}

// A rail that loses nothing is never left: what it carried was not kept.
bool Pair::is_better(const Rail& rail) const {
  return rail_ != nullptr && &rail != rail_ && rail.open && rail.open_sent &&
         rail.score_us() * kClearlyBetter < rail_->score_us() && !rail_->capabilities().lossless;
}

// |rail| is open both ways: it takes over the messages, or shares the bulk data.
void Pair::use(Rail& rail) {
  if (rail_ == nullptr) {
    replay_on(rail);
  } else if (is_better(rail)) {
    take_over(rail);
  } else {
    restart_transfers();
  }
}

// What the peer may not have goes over |rail| before anything new, and is no larger than it can
// carry. Where the ranks are set up differently it waits for what is larger to be acknowledged.
void Pair::take_over(Rail& rail) {
  constexpr uint64_t kPauseNs = 1'000'000;
  const uint32_t most = rail.capabilities().max_payload_bytes;
  if (retention_.largest() <= most) {
    replay_on(rail);
    return;
  }
  rail_->limit_payload(most);
  ask_for_acknowledgement();
  take_over_at_ns_ = common_.engine.refresh_now() + kPauseNs;
  common_.schedule.note_timer(take_over_at_ns_);
}

// Everything that the peer may not have goes over |rail| first.
void Pair::replay_on(Rail& rail) {
  state_ = State::kConnecting;
  rail_ = &rail;
  rail.retiring = false;
  replaying_ = true;
  replayed_ = sent_ - static_cast<uint32_t>(retention_.count());
  resume();
}

// Sends again what the last connection may have lost, then goes on.
void Pair::resume() {
  if (starved_) return;
  if (replaying_) {
    Code code = Code::kOk;
    const bool all = retention_.replay(replayed_, [&](WireHeader header, ConstByteSpan payload) {
      const uint32_t sequence = header.sequence;
      // What it acknowledged then is kept: what this side refused may come behind it.
      header.credit = credit_returned_;
      iovec storage{const_cast<std::byte*>(payload.data()), payload.size()};
      code = rail_->endpoint().send(encode_header(header),
                                    SegmentView{Segments(&storage, 1), 0, payload.size()});
      if (code == Code::kOk) replayed_ = sequence;
      return code == Code::kOk;
    });
    if (code != Code::kOk && code != Code::kWouldBlock && code != Code::kPeerLost) {
      give_up(
          Status(Code::kPeerLost,
                 fmt::format("rank {}: the new connection cannot carry what the last one lost: {}",
                             rank_, code_text(code))));
      return;
    }
    if (!all) return;  // on_writable comes back, or on_failed
    replaying_ = false;
  }
  state_ = State::kReady;
  pump();
  restart_transfers();
  access_.credit_came();
  if (state_ == State::kReady) common_.schedule.update_due(*this);
  want_more_rails();
  plan_to_close_unused();
}

void Pair::restart_transfers() {
  receives_.for_each([](ReceiveTransfer& transfer) { transfer.rail_ready(); });
  access_.rails_changed();
  if (push_at_ns_ != kForever) push_overdue(common_.now_ns());
}

void Pair::writable(Rail& rail) {
  if (!rail.open_sent) {
    send_open(rail);
    if (state_ == State::kLost || !rail.open_sent) return;
    if (rail.open) use(rail);
  } else if (&rail == rail_ && replaying_) {
    resume();
  } else {
    pump();
  }
  send_update();
}

// Makes everything quiet on the connection (which may be quiet already), then lets it go.
void Pair::rail_failed(Rail& rail, const Status& why, bool tell) {
  if (rail.dropped) return;
  if (rail.leaving) {
    left_by_peer(rail);
    return;
  }
  if (rail.retiring && !uses(rail)) {
    close_unused(rail);  // the peer was quicker
    return;
  }
  const bool lossless = rail.capabilities().lossless;
  // What such a rail carried was not kept: no other can make good for it.
  const bool irreplaceable = lossless && &rail == rail_;
  const uint64_t id = rail.id;
  const bool known = rail.known;
  const size_t transport = rail.transport;
  ++rail.counters().failures;
  if (!known) lost_unknown_ = true;
  const bool peer_has_to_know = !lossless && known && tell;
  drop_rail(rail, peer_has_to_know);
  if (irreplaceable) drop_all_rails();
  if (state_ == State::kLost) return;
  if (left_ && rails_.empty()) {
    lose(status_or_code(Code::kPeerLost, [&] { return fmt::format("rank {} left", rank_); }));
    return;
  }
  const uint64_t now = common_.engine.refresh_now();
  if (!irreplaceable) {
    common_.log.info("rank {}: connection over {} failed, {} left: {}", rank_,
                     common_.connector.transport_name(transport), rails_.size(), why.text());
    cool_down(transport);
    // Before anything of it is done again.
    if (peer_has_to_know) send_control(MessageKind::kRailDown, id, 0, nullptr, 0);
  }
  access_.start_again();
  if (rail_ != nullptr) {
    restart_transfers();
    pump();
    want_more_rails();
    return;
  }
  if (Rail* next = best_open_rail(); next != nullptr) {
    replay_on(*next);
    return;
  }
  if (!rails_.empty()) return;  // one is being opened
  if (irreplaceable) {
    // Such a connection ends only with the peer. Whether it died or left, the control plane says;
    // if it says nothing for a detection time the peer lives but will not talk.
    verdict_ = why;
    retry_at_ns_ = now + common_.detection_ns;
    common_.schedule.note_timer(retry_at_ns_);
    return;
  }
  // A knock now would end the connection that is there already.
  if (replaced_) return;
  // The lower rank connects, counts and decides; the other waits for that. A connection on which
  // the lower one only waits may look well to it.
  if (common_.rank > rank_) {
    common_.control->knock(rank_, lost_unknown_ ? UINT32_MAX : static_cast<uint32_t>(rails_made_));
    return;
  }
  if (unreached_since_ns_ == kForever) unreached_since_ns_ = now;
  const bool long_enough = now >= unreached_since_ns_ + common_.detection_ns;
  if (++attempts_ > kMaxAttempts && long_enough) {
    give_up(why.annotate(fmt::format("rank {}: connections keep breaking", rank_)));
  } else {
    retry_at_ns_ = now + backoff_ns(attempts_);
    common_.schedule.note_timer(retry_at_ns_);
  }
}

Rail* Pair::best_open_rail() {
  Rail* best = nullptr;
  for (const auto& rail : rails_) {
    if (!rail->open || !rail->open_sent || rail->leaving) continue;
    if (best == nullptr || rail->score_us() < best->score_us()) best = rail.get();
  }
  return best;
}

void Pair::drop_rail(Rail& rail, bool peer_has_to_know) {
  if (&rail == rail_) {
    rail_ = nullptr;
    replaying_ = false;
    if (state_ == State::kReady) state_ = State::kConnecting;
    if (rail.capabilities().lossless) {
      check_kept_ = true;
      not_kept_ = sent_;
    }
  }
  sends_.for_each([&](SendTransfer& transfer) { transfer.rail_failed(rail); });
  receives_.for_each([&](ReceiveTransfer& transfer) { transfer.rail_failed(rail); });
  access_.rail_failed(rail, peer_has_to_know);
  const auto on_it = [&](const OwnedBulk& bulk) { return bulk.rail == &rail; };
  waiting_bulks_.remove_if(on_it);
  refused_bulks_.remove_if(on_it);
  const auto found = std::find_if(rails_.begin(), rails_.end(),
                                  [&](const auto& each) { return each.get() == &rail; });
  hetcomm_counters_t& counters = rail.counters();
  rail.dropped = true;
  rail.endpoint().close();
  common_.retire(std::move(*found));
  rails_.erase(found);
  if (rails_.empty()) asked_to_close_ = false;
  counters.connected = std::any_of(rails_.begin(), rails_.end(),
                                   [&](const auto& each) { return &each->counters() == &counters; })
                           ? 1
                           : 0;
}

void Pair::drop_all_rails() {
  while (!rails_.empty()) drop_rail(*rails_.back(), false);
}

// --- further rails ------------------------------------------------------------

Pair::Attempts& Pair::path(size_t index) {
  if (index >= paths_.size()) paths_.resize(index + 1);
  return paths_[index];
}

bool Pair::is_cooling(size_t index) const {
  if (index >= paths_.size() || paths_[index].failures == 0) return false;
  return paths_[index].not_before_ns + kDoubtNs > common_.engine.coarse_now();
}

void Pair::cool_down(size_t index) {
  Attempts& own = path(index);
  const uint64_t now = common_.engine.refresh_now();
  const uint64_t first = common_.cool_down_ns;
  // Up for long since, it starts anew.
  if (own.up_since_ns != 0 && now - own.up_since_ns > (first << own.failures) * 10) {
    own.failures = 0;
  }
  own.up_since_ns = 0;
  own.not_before_ns = now + (first << std::min<uint32_t>(own.failures, kMostDoublings));
  ++own.failures;
}

// Connects over transports that would share the load, or would be better, once they have cooled
// down.
void Pair::want_more_rails() {
  more_rails_at_ns_ = kForever;
  if (state_ != State::kReady || common_.rank > rank_ || left_) return;
  const uint64_t now = common_.engine.refresh_now();
  for (const size_t index : common_.connector.useful_beside(rank_, rail_->transport)) {
    Attempts& own = path(index);
    const bool there = std::any_of(rails_.begin(), rails_.end(),
                                   [&](const auto& rail) { return rail->transport == index; });
    if (there || own.connecting) continue;
    if (own.not_before_ns > now) {
      more_rails_at_ns_ = std::min(more_rails_at_ns_, own.not_before_ns);
      continue;
    }
    own.connecting = true;
    common_.connector.connect_over(*this, index);
  }
  if (more_rails_at_ns_ != kForever) common_.schedule.note_timer(more_rails_at_ns_);
}

// --- rails that are not used any more ------------------------------------------

// Something of this side's is under way on it, or will be.
bool Pair::uses(const Rail& rail) {
  bool used = &rail == rail_ || access_.uses(rail) || !rail.endpoint().flushed();
  sends_.for_each([&](const SendTransfer& transfer) { used = used || transfer.uses(rail); });
  receives_.for_each([&](const ReceiveTransfer& transfer) { used = used || transfer.uses(rail); });
  return used;
}

// Neither messages nor bulk data are begun on it.
bool Pair::is_replaced(const Rail& rail) {
  return state_ == State::kReady && rail.known && rail.open && rail.open_sent &&
         !same_kind(rail, *rail_);
}

// For a while it may be needed again.
void Pair::plan_to_close_unused() {
  constexpr uint64_t kCoolDowns = 10;
  const bool some = std::any_of(rails_.begin(), rails_.end(),
                                [&](const auto& rail) { return is_replaced(*rail); });
  if (!some) return;
  close_unused_at_ns_ = common_.engine.refresh_now() + kCoolDowns * common_.cool_down_ns;
  common_.schedule.note_timer(close_unused_at_ns_);
}

// The lower rank begins: it announces. The higher one closes what was announced, and answers.
void Pair::close_unused_rails() {
  close_unused_at_ns_ = kForever;
  if (state_ != State::kReady || left_) return;
  for (size_t i = rails_.size(); i-- > 0 && state_ == State::kReady;) {
    Rail& rail = *rails_[i];
    if (!is_replaced(rail) || uses(rail)) continue;
    if (is_higher_) {
      if (!rail.retiring) continue;
      send_control(MessageKind::kRailClosed, rail.id, 0, nullptr, 0);
      close_unused(rail);
    } else if (!rail.retiring) {
      rail.retiring = true;
      send_control(MessageKind::kRailUnused, rail.id, 0, nullptr, 0);
    }
  }
  plan_to_close_unused();
}

void Pair::close_unused(Rail& rail) {
  common_.log.info("rank {}: connection over {} is closed, since a better one is in use", rank_,
                   common_.connector.transport_name(rail.transport));
  drop_rail(rail, false);
  restart_transfers();
}

bool Pair::stop_connecting(size_t index) { return std::exchange(path(index).connecting, false); }

void Pair::connect_failed(size_t index, const Status& why) {
  path(index).connecting = false;
  if (state_ == State::kLost) return;
  common_.log.info("rank {}: no further connection over {}: {}", rank_,
                   common_.connector.transport_name(index), why.text());
  cool_down(index);
  want_more_rails();
}

uint64_t Pair::next_timer_ns() const {
  return std::min(
      {retry_at_ns_, more_rails_at_ns_, take_over_at_ns_, close_unused_at_ns_, push_at_ns_});
}

void Pair::tick(uint64_t now_ns) {
  if (now_ns >= more_rails_at_ns_) want_more_rails();
  if (now_ns >= close_unused_at_ns_) close_unused_rails();
  if (now_ns >= push_at_ns_) push_overdue(now_ns);
  if (now_ns >= take_over_at_ns_) {
    take_over_at_ns_ = UINT64_MAX;
    const auto better = std::find_if(rails_.begin(), rails_.end(),
                                     [&](const auto& rail) { return is_better(*rail); });
    if (better != rails_.end()) take_over(**better);
  }
  if (now_ns < retry_at_ns_) return;
  retry_at_ns_ = kForever;
  if (untold_) tell_loss();
  if (state_ != State::kConnecting || !rails_.empty()) return;
  if (!verdict_.ok()) {
    // The peer may have other connections left, and not know.
    give_up(verdict_.annotate(fmt::format("rank {}", rank_)));
    return;
  }
  common_.connector.connect(*this);
}

// A loss that this side alone has decided.
void Pair::give_up(const Status& why) {
  common_.control->give_up(rank_, why.text());
  lose(why);
}

void Pair::refused_by_peer(const Status& why) {
  // Once they were connected the lower rank tries again, or says that it has given up.
  if (rails_made_ == 0) lose(why);
}

// No transport could connect. That says nothing about the peer's life: the control plane is asked,
// and the attempts go on for a detection time.
void Pair::connect_failed(const Status& why, bool may_change) {
  if (state_ == State::kLost) return;
  const uint64_t now = common_.engine.refresh_now();
  if (unreached_since_ns_ == kForever) unreached_since_ns_ = now;
  if (connects_failed_++ == 0) common_.control->inquire(rank_);
  const bool long_enough =
      now >= unreached_since_ns_ + common_.detection_ns && connects_failed_ >= kMinConnects;
  if (may_change && !long_enough) {
    constexpr uint64_t kFirstNs = 10'000'000;
    constexpr uint64_t kMostNs = 1'000'000'000;
    retry_at_ns_ = now + std::clamp((now - unreached_since_ns_) / 4, kFirstNs, kMostNs);
    common_.schedule.note_timer(retry_at_ns_);
    return;
  }
  const Status unreachable = status_or_code(Code::kUnreachable, [&] {
    return fmt::format("rank {}{}: {}", rank_,
                       vouched_ ? " lives, as others say, but is not reached from here" : "",
                       why.text());
  });
  common_.control->refuse(rank_, unreachable.text());
  if (rails_made_ > 0) {
    give_up(unreachable);
  } else {
    lose(unreachable);
  }
}

void Pair::peer_left() {
  left_ = true;
  if (state_ == State::kLost || !rails_.empty()) return;  // the end of the connection follows
  lose(status_or_code(Code::kPeerLost, [&] { return fmt::format("rank {} left", rank_); }));
}

void Pair::lose(const Status& why) {
  if (state_ == State::kLost) return;
  state_ = State::kLost;
  lost_ = why;
  retry_at_ns_ = kForever;
  fail_everything(why);
  drop_all_rails();
  more_rails_at_ns_ = kForever;
  take_over_at_ns_ = kForever;
  close_unused_at_ns_ = kForever;
  push_at_ns_ = kForever;
  common_.listener.on_rank_lost(rank_, why);
}

// Ends every operation of this pair that is queued or under way. Posted receives are the job's.
void Pair::fail_everything(const Status& why) {
  const auto text = [&] { return text_or_none([&] { return std::string(why.text()); }); };
  control_.clear();
  control_sent_ = 0;
  sends_.for_each([&](SendTransfer& transfer) { transfer.end(why.code(), text()); });
  receives_.for_each([&](ReceiveTransfer& transfer) { transfer.end(why.code(), text()); });
  access_.fail_everything(why);
  while (!outbox_.empty()) {
    Operation& send = outbox_.front();
    outbox_.remove(send);
    common_.completer.complete(send, why.code(), text_or_none([&] {
                                 return fmt::format("{}: {}", describe(send), why.text());
                               }));
  }
  while (!arriving_.empty()) {
    Incoming& message = arriving_.pop();
    if (message.queued) message.table->remove_unexpected(&message);
    if (message.operation != nullptr) {
      common_.completer.complete(*message.operation, why.code(), text_or_none([&] {
        return fmt::format("receive from rank {}: {}", rank_, why.text());
      }));
    }
    free_incoming(&message);
  }
}

}  // namespace hetcomm
