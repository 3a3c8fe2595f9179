#include "src/core/collectives/team.h"

#include <algorithm>
#include <new>
#include <optional>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/base/mix64.h"
#include "src/base/text.h"
#include "src/core/collectives/collectives.h"

namespace hetcomm::collectives {
namespace {

// A tag has 1 bit for agreements, 22 bits for the hash of the list, 16 for the operation number, 16
// for the hash of the calls so far, and 8 for the segment.
constexpr uint64_t kAgreementBit = uint64_t{1} << 62;
constexpr unsigned kListBits = 22;
constexpr unsigned kListShift = 40;
constexpr unsigned kSequenceShift = 24;
constexpr unsigned kCallShift = 8;

}  // namespace

Team::Team(Collectives& owner, std::vector<int32_t> list)
    : owner_(owner), list_(std::move(list)), checks_(owner.checks()) {
  const std::vector<int>& all = owner.communicator().ranks();
  if (list_.empty()) {
    ranks_ = all;
  } else {
    for (const int32_t rank : list_) ranks_.push_back(all[static_cast<size_t>(rank)]);
  }
  const auto own = std::find(ranks_.begin(), ranks_.end(), owner.job().rank());
  index_ = static_cast<uint32_t>(own - ranks_.begin());
  for (const int rank : ranks_) hash_ = mix64(hash_, static_cast<uint64_t>(rank) + 1);
  lost_ = std::any_of(ranks_.begin(), ranks_.end(), [&](int rank) HETCOMM_UNDER_BATON {
    return !owner.job().peer_status(rank).ok();
  });
}

Team::~Team() {
  for (const Dispute& each : disputes_) {
    owner_.job().log().warn("{}",
                            text_or_none([&]() HETCOMM_UNDER_BATON { return text_of(each); }));
  }
  set_busy(false);
  if (agreement_ != nullptr) agreement_->cancel();
  if (arena_ != nullptr) {
    owner_.job().data().staging.abandoned().keep_if_touched(arena_->memory(), arena_);
  }
}

int32_t Team::shown_rank(uint32_t index) const {
  return owner_.communicator().rank_of(ranks_[index]);
}

uint64_t Team::tag(uint64_t sequence, uint64_t history) const {
  return mark() << kListShift | (sequence & 0xffff) << kSequenceShift | history >> 48 << kCallShift;
}

uint64_t Team::agreement_tag() const { return kAgreementBit | mark() << kListShift; }

uint64_t Team::mark_of_hash(uint64_t hash) { return hash >> (64 - kListBits); }

uint64_t Team::mark_of(uint64_t tag) {
  return tag >> kListShift & ((uint64_t{1} << kListBits) - 1);
}

void Team::set_busy(bool busy) {
  if (busy_ == busy) return;
  Job& job = owner_.job();
  if (busy) {
    job.tasks().add(*this);
  } else {
    job.tasks().remove(*this);
  }
  busy_ = busy;
}

// --- the arena --------------------------------------------------------------

// Chooses between messages and the arena. All ranks have the same information about each other, so
// all make the same choice.
void Team::choose_way(const Call& next) {
  const Job& job = owner_.job();
  if (sequence_ == 0) placement_ = job.peers().placement(ranks_);
  if (!ArenaRunner::carries(next, size())) return;
  // Many communicators are used only for barriers and splits, which do not need an arena.
  const bool brief = next.kind == Kind::kBarrier || next.variant == Variant::kSplit;
  if (sequence_ == 0 && brief) return;
  const bool together = std::all_of(
      ranks_.begin(), ranks_.end(),
      [&](int rank) HETCOMM_UNDER_BATON { return job.peers().are_near(job.rank(), rank); });
  if (size() == 1 || size() > SharedArena::kMaxRanks || !together) {
    way_ = Way::kMessages;
    return;
  }
  way_ = Way::kAgreeing;
  agreement_ = std::make_unique<Agreement>(AgreementRanks{.communicator = owner_.communicator(),
                                                          .ranks = ranks_,
                                                          .index = index_,
                                                          .tag = agreement_tag(),
                                                          .log = owner_.job().log(),
                                                          .ready = ready_});
  // If a rank is not allowed to use shared memory for messages, it does not use it here either.
  agreement_->start(owner_.may_share() && job.transports().shares_memory());
}

void Team::go_on_agreeing() {
  agreement_->advance();
  if (!agreement_->over()) return;
  Status failure = agreement_->failure();
  try {
    if (std::optional<SharedArena> arena = agreement_->take_arena()) {
      arena_ = std::make_unique<ArenaRunner>(*std::move(arena), index_, agreement_->needs_fences());
    }
  } catch (const std::bad_alloc&) {
    // The other ranks use the arena, so this one cannot fall back to messages.
    failure = Status(Code::kOutOfMemory, "out of memory");
  }
  agreement_.reset();
  way_ = arena_ != nullptr ? Way::kArena : Way::kMessages;
  if (failure.ok()) return;
  owner_.fail(failure.code(), text_or_none([&] {
                return fmt::format(
                    "the ranks could not find out whether they share memory for collective "
                    "operations: {}",
                    failure.text());
              }));
}

void Team::begin_in_arena() { arena_->start(in_arena_->task(), in_arena_->copies(), checks_); }

// Advances the operation in the arena. Returns whether anything has advanced.
bool Team::advance_arena() {
  if (in_arena_ == nullptr || !in_arena_->moving()) return false;
  const ArenaRunner::Outcome outcome = arena_->advance();
  arena_->sleepers().wake([this](uint32_t index)
                              HETCOMM_UNDER_BATON { owner_.job().wake(ranks_[index]); });
  switch (outcome) {
    case ArenaRunner::Outcome::kWaits:
      if (lost_) look_for_lost();
      return false;
    case ArenaRunner::Outcome::kMoved:
      return true;
    case ArenaRunner::Outcome::kDone:
      in_arena_->moved();
      return true;
    case ArenaRunner::Outcome::kMismatch:
      break;
  }
  const CallCheck::Mismatch& found = arena_->mismatch();
  if (found.in_length) {
    in_arena_->refuse_length(shown_rank(found.peer), found.sent, found.expected);
    return true;
  }
  const Call& own = in_arena_->call();
  if (found.sequence == in_arena_->sequence() && found.call.hash() == own.hash()) {
    dispute(found.peer, remembered_[found.sequence % kRemembered]);
    return true;
  }
  // The arena reports a mismatch only once.
  owner_.fail(Code::kMismatch, text_or_none([&]() HETCOMM_UNDER_BATON {
                return found.sequence == in_arena_->sequence()
                           ? disagreement(found.peer, found.call, found.sequence, own)
                           : difference_in_order(found.peer, found.call, found.sequence);
              }));
  return true;
}

std::string Team::difference_in_order(uint32_t peer, const Call& theirs, uint64_t sequence) const {
  return fmt::format("ranks {} and {} differ in the order: {} is operation #{}, and {} is #{}",
                     shown_rank(index_), shown_rank(peer), describe(in_arena_->call()),
                     in_arena_->sequence(), describe(theirs), sequence);
}

// Fails the operations if a rank whose ticket is missing is lost. Data that a lost rank has already
// published is still used.
void Team::look_for_lost() {
  const Job& job = owner_.job();
  for (const uint32_t index : arena_->missing()) {
    const Status& status = job.peer_status(ranks_[index]);
    if (status.ok()) continue;
    owner_.fail(Code::kPeerLost, text_or_none([&]() HETCOMM_UNDER_BATON {
                  return fmt::format("rank {} is missing: {}", shown_rank(index), status.text());
                }));
    return;
  }
}

std::vector<int> Team::missing_in_arena() const {
  std::vector<int> ranks;
  for (const uint32_t index : arena_->missing()) ranks.push_back(shown_rank(index));
  return ranks;
}

std::vector<int> Team::missing_in_agreement() const {
  return agreement_ != nullptr ? agreement_->missing() : std::vector<int>();
}

void Team::peer_lost(int job_rank) {
  if (std::find(ranks_.begin(), ranks_.end(), job_rank) == ranks_.end()) return;
  lost_ = true;
  ready_ = true;
}

bool Team::prepare_sleep(Sleep sleep) {
  if (in_arena_ == nullptr || !in_arena_->moving()) return true;
  return arena_->sleepers().announce(sleep == Sleep::kShort) && progress() == 0;
}

void Team::finish_sleep() {
  if (arena_ != nullptr && arena_->sleepers().announced()) arena_->sleepers().end();
}

bool Team::may_sleep_on() const {
  return in_arena_ == nullptr || !in_arena_->moving() || arena_->sleepers().announced();
}

// --- operations -------------------------------------------------------------

void Team::submit(std::unique_ptr<Collective>& collective) {
  Collective& own = *collective;
  if (way_ == Way::kUnknown) choose_way(own.call());
  const bool begins_now =
      goes_through_arena(own) && in_arena_ == nullptr && queue_.empty() && disputes_.empty();
  // If this throws, the operation is unchanged.
  if (!begins_now) queue_.emplace_back();
  own.join(*this, sequence_ + 1);
  if (checks_) own.task().set_history(mix64(history_, own.call().hash() + refusals_));
  if (begins_now) {
    in_arena_ = std::move(collective);
    remember(own);
    own.start(true);
    if (advance_arena() || own.over()) sweep_over();
  } else {
    queue_.back() = std::move(collective);
    remember(own);
    activate();
  }
  set_busy(!idle());
}

// Numbers and records an operation, and processes notes and messages for it that arrived early.
void Team::remember(Collective& collective) {
  const uint64_t sequence = ++sequence_;
  Remembered& own = remembered_[sequence % kRemembered];
  own.sequence = sequence;
  own.history = history_ = collective.history();
  own.call = collective.call();
  own.refusals = std::exchange(refusals_, 0);
  if (!early_refusals_.empty()) [[unlikely]] {
    for (const EarlyRefusal& early : std::exchange(early_refusals_, {})) {
      peer_refuses(early.peer, early.note);
    }
  }
  if (!unexpected_.early.empty()) [[unlikely]] {
    // Messages that are still early are added to |unexpected_.early| again. The swap keeps the
    // memory of both lists.
    unexpected_.early.swap(unexpected_.seen);
    for (const UnexpectedMessage& message : unexpected_.seen) look_at(message);
    unexpected_.seen.clear();
  }
  if (early_.empty()) [[likely]]
    return;
  for (const auto& [peer, note] : std::exchange(early_, {})) {
    if (note.sequence == sequence) {
      compare(peer, note, own);
    } else if (note.sequence > sequence) {
      early_.emplace_back(peer, note);
    }
  }
}

// Starts queued operations in order. None starts during an agreement, or while the ranks determine
// how their calls differ.
void Team::activate() {
  if (way_ == Way::kAgreeing || !disputes_.empty()) return;
  while (!queue_.empty()) {
    Collective& next = *queue_.front();
    const bool in_arena = goes_through_arena(next);
    if (!next.over()) {
      if (in_arena ? in_arena_ != nullptr : active_.size() >= kMaxActive) return;
      if (in_arena) {
        in_arena_ = std::move(queue_.front());
      } else {
        active_.emplace_back();
        active_.back() = std::move(queue_.front());
      }
      queue_.pop_front();
      next.start(in_arena);
      ready_ = ready_ || in_arena;
    } else {
      owner_.recycle(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
}

int Team::progress() {
  int moved = advance_arena() ? 1 : 0;
  if (!ready_) [[likely]] {
    if (moved != 0) set_busy(!idle());
    return moved;
  }
  ready_ = false;
  if (agreement_ != nullptr) go_on_agreeing();
  if (in_arena_ != nullptr && in_arena_->ready()) in_arena_->advance();
  // Operations that start or fail here may change |active_|.
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->ready()) active_[i]->advance();
  }
  sweep_over();
  activate();
  set_busy(!idle());
  return 1;
}

void Team::sweep_over() {
  if (in_arena_ != nullptr && in_arena_->over()) owner_.recycle(std::move(in_arena_));
  if (active_.empty()) return;
  for (auto& collective : active_) {
    if (collective->over()) owner_.recycle(std::move(collective));
  }
  std::erase(active_, nullptr);
}

uint64_t Team::next_timer_ns() const {
  uint64_t next = kForever;
  for (const auto& collective : active_) next = std::min(next, collective->next_timer_ns());
  if (!checks_ || size() == 1) return next;
  for (const auto& collective : active_) next = std::min(next, collective->slow_call().next_ns());
  if (in_arena_ != nullptr) next = std::min(next, in_arena_->slow_call().next_ns());
  if (!disputes_.empty()) next = std::min(next, disputes_.front().since_ns + kReasonNs);
  return next;
}

void Team::tick(uint64_t now_ns) {
  for (size_t i = 0; i < active_.size(); ++i) active_[i]->tick(now_ns);
  if (!checks_ || size() == 1) return;
  for (const auto& collective : active_) tell(*collective, now_ns);
  if (in_arena_ != nullptr) tell(*in_arena_, now_ns);
  end_disputes(now_ns);
}

void Team::tell_call(int job_rank, const CallNote& note) const {
  owner_.job().control().tell_call(job_rank, owner_.communicator().channel().id, note.encode());
}

void Team::tell_own(uint32_t peer, const Remembered& own) const {
  tell_call(ranks_[peer], {.team = hash_,
                           .sequence = own.sequence,
                           .refusals = 0,
                           .history = own.history,
                           .call = own.call,
                           .why = {}});
}

void Team::tell(Collective& collective, uint64_t now_ns) {
  if (collective.over() || now_ns < collective.slow_call().next_ns()) return;
  const JobMember& communicator = owner_.communicator();
  const CallNote note{.team = hash_,
                      .sequence = collective.sequence(),
                      .refusals = 0,
                      .history = collective.history(),
                      .call = collective.call(),
                      .why = {}};
  collective.slow_call().tell(now_ns, shown_rank((index_ + 1) % size()), collective.missing(),
                              [&](int rank) HETCOMM_UNDER_BATON {
                                tell_call(communicator.ranks()[static_cast<size_t>(rank)], note);
                              });
}

// Examines the tag of a message that no operation waits for. The tag shows whether the sender has
// made the same calls as this rank. If not, this rank sends its call to the sender, which then
// reports the difference.
void Team::note_unexpected_message(int job_rank, uint64_t tag) {
  if (!checks_ || (tag & kAgreementBit) != 0) return;
  if (mark_of(tag) != mark()) return;
  const auto at = std::find(ranks_.begin(), ranks_.end(), job_rank);
  if (at == ranks_.end()) return;
  const auto peer = static_cast<uint32_t>(at - ranks_.begin());
  // The tag has the low 16 bits of the operation number, which identify a number near a known one.
  // Either rank may have made many more calls than the other. But the messages of one rank have
  // similar numbers, and none is for an operation that is over on this rank.
  uint64_t& newest = unexpected_.newest[peer];
  const uint64_t near = std::max(newest, oldest_under_way());
  const auto ahead = static_cast<int16_t>(static_cast<uint16_t>((tag >> kSequenceShift) - near));
  int64_t sequence = static_cast<int64_t>(near) + ahead;
  if (sequence <= 0) sequence += 0x10000;  // the first operation has number 1
  newest = std::max(newest, static_cast<uint64_t>(sequence));
  look_at({peer, static_cast<uint64_t>(sequence), tag});
}

// Returns the number of the oldest pending operation. If none is pending, returns that of the last
// operation.
uint64_t Team::oldest_under_way() const {
  uint64_t oldest = queue_.empty() ? sequence_ : queue_.front()->sequence();
  if (in_arena_ != nullptr) oldest = std::min(oldest, in_arena_->sequence());
  for (const auto& each : active_) oldest = std::min(oldest, each->sequence());
  return oldest;
}

void Team::look_at(const UnexpectedMessage& message) {
  if (message.sequence > sequence_) {
    if (unexpected_.early.size() < kRemembered) unexpected_.early.push_back(message);
    return;
  }
  const Remembered& own = remembered_[message.sequence % kRemembered];
  constexpr uint64_t kCallMask = uint64_t{0xffff} << kCallShift;
  if (own.sequence != message.sequence ||
      (this->tag(message.sequence, own.history) & kCallMask) == (message.tag & kCallMask)) {
    return;
  }
  dispute(message.peer, own);
}

// Records that |peer| has made a different call than |own|, or different calls before it.
void Team::dispute(uint32_t peer, const Remembered& own) {
  if (owner_.has_failed() || disputes_.size() == kMaxDisputes) return;
  disputes_.push_back({own, peer, owner_.job().data().now_ns()});
  set_busy(true);
  tell_own(peer, own);
}

// Ends all disputes if the oldest one has lasted too long. The other rank has then not reported how
// the calls differ, perhaps because it has left or is computing. This rank fails the operations
// with the information that it has.
void Team::end_disputes(uint64_t now_ns) {
  if (disputes_.empty() || now_ns < disputes_.front().since_ns + kReasonNs) return;
  const std::string text =
      text_or_none([&]() HETCOMM_UNDER_BATON { return text_of(disputes_.front()); });
  disputes_.clear();
  owner_.fail(Code::kMismatch, text);
}

std::string Team::text_of(const Dispute& dispute) const {
  return fmt::format(
      "ranks {} and {} differ in operation #{}, or in one before it; of rank {} it is {}",
      shown_rank(index_), shown_rank(dispute.peer), dispute.own.sequence, shown_rank(index_),
      describe(dispute.own.call));
}

void Team::peer_says(int job_rank, const CallNote& note) {
  const auto at = std::find(ranks_.begin(), ranks_.end(), job_rank);
  if (at == ranks_.end()) return;
  const auto peer = static_cast<uint32_t>(at - ranks_.begin());
  if (note.refusals > 0) {
    peer_refuses(peer, note);
    return;
  }
  if (note.sequence > sequence_) {
    if (early_.size() < kRemembered) early_.emplace_back(peer, note);
    return;
  }
  // If an operation has been pending for a long time, |remembered_| may no longer hold it.
  for (const auto& collective : active_) {
    if (collective->sequence() != note.sequence) continue;
    compare(peer, note, {note.sequence, collective->history(), collective->call()});
    return;
  }
  const Remembered& own = remembered_[note.sequence % kRemembered];
  if (own.sequence == note.sequence) {
    compare(peer, note, own);
    return;
  }
  // If many operations have been called since, only a dispute may still hold the call.
  const auto found = std::find_if(disputes_.begin(), disputes_.end(), [&](const Dispute& each) {
    return each.own.sequence == note.sequence;
  });
  if (found != disputes_.end()) compare(peer, note, Remembered(found->own));
}

void Team::refuse(std::string_view why) {
  ++refusals_;
  // Discards notes of ranks that have refused the same call as this rank.
  std::erase_if(early_refusals_, [this](const EarlyRefusal& early) {
    return early.note.sequence == sequence_ + 1 && early.note.refusals <= refusals_;
  });
  const CallNote note{.team = hash_,
                      .sequence = sequence_ + 1,
                      .refusals = refusals_,
                      .call = {},
                      .why = std::string(why.substr(0, kMaxWhyBytes))};
  for (uint32_t index = 0; index < size(); ++index) {
    if (index != index_) tell_call(ranks_[index], note);
  }
}

void Team::peer_refuses(uint32_t peer, const CallNote& note) {
  if (note.sequence > sequence_) {
    const bool refused_here = note.sequence == sequence_ + 1 && note.refusals <= refusals_;
    if (!refused_here && early_refusals_.size() < kRemembered) {
      early_refusals_.push_back({peer, note});
    }
    return;
  }
  const Remembered& own = remembered_[note.sequence % kRemembered];
  if (own.sequence != note.sequence || note.refusals <= own.refusals) return;
  owner_.fail(Code::kMismatch, text_or_none([&]() HETCOMM_UNDER_BATON {
                return fmt::format("rank {} does not take part in operation #{}: {}",
                                   shown_rank(peer), note.sequence, note.why);
              }));
}

// Compares a peer's call with this rank's. If the calls match but the histories differ, an earlier
// call differs, so this rank sends the previous call for comparison.
void Team::compare(uint32_t peer, const CallNote& theirs, const Remembered& own) {
  if (theirs.history == own.history) return;
  if (theirs.call.hash() != own.call.hash()) {
    owner_.fail(Code::kMismatch, text_or_none([&]() HETCOMM_UNDER_BATON {
                  return disagreement(peer, theirs.call, own.sequence, own.call);
                }));
    return;
  }
  const uint64_t before = own.sequence - 1;
  const Remembered& earlier = remembered_[before % kRemembered];
  if (before != 0 && earlier.sequence == before) {
    tell_own(peer, earlier);
  } else {
    owner_.fail(Code::kMismatch, text_or_none([&]() HETCOMM_UNDER_BATON {
                  return earlier_difference(peer, own.sequence);
                }));
  }
}

std::string Team::earlier_difference(uint32_t peer, uint64_t sequence) const {
  return fmt::format("ranks {} and {} differ in an operation before #{}", shown_rank(index_),
                     shown_rank(peer), sequence);
}

std::string Team::disagreement(uint32_t peer, const Call& theirs, uint64_t sequence,
                               const Call& own) const {
  return fmt::format("ranks {} and {} differ in the {} of operation #{}: {}, and {}",
                     shown_rank(index_), shown_rank(peer), difference(own, theirs), sequence,
                     describe(own), describe(theirs));
}

void Team::fail_all(Code code, std::string_view text) {
  const auto end = [&](Collective& collective) HETCOMM_UNDER_BATON {
    if (collective.over()) return;
    owner_.note_told();
    collective.fail(code, text_or_none([&]() HETCOMM_UNDER_BATON {
                      return fmt::format("{}: {}", collective.describe(), text);
                    }));
  };
  if (agreement_ != nullptr) agreement_->cancel();
  if (in_arena_ != nullptr) {
    arena_->drop();
    end(*in_arena_);
  }
  for (size_t i = 0; i < active_.size(); ++i) end(*active_[i]);
  for (size_t i = 0; i < queue_.size(); ++i) end(*queue_[i]);
  disputes_.clear();
  ready_ = true;
}

}  // namespace hetcomm::collectives
