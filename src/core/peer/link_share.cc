#include "src/core/peer/link_share.h"

namespace hetcomm {
namespace {

constexpr double kNsPerSecond = 1e9;
// While the rate of the link is not known.
constexpr uint64_t kUnknownPieceBytes = 256u << 10;
constexpr uint64_t kUnknownWindowBytes = 4u << 20;

}  // namespace

void LinkShare::add(Member& member) {
  member.next_tag = virtual_tag_;
  members_.push_back(&member);
}

void LinkShare::remove(Member& member, uint64_t now_ns) {
  under_way_ -= member.under_way;
  member.under_way = 0;
  member.waits = 0;
  if (member.held) --held_;
  member.held = false;
  if (suspect_ == &member) suspect_ = nullptr;
  std::erase(members_, &member);
  advance(0, now_ns);
  settle(now_ns);
}

// It has something to send again, and no claim on what it did not take.
void LinkShare::wake_up(Member& member) {
  if (!has_work(member)) member.next_tag = std::max(member.next_tag, virtual_tag_);
}

void LinkShare::waits(Member& member) {
  wake_up(member);
  ++member.waits;
}

// Of those that count, the one that has had least for its weight. Null: none counts.
LinkShare::Member* LinkShare::hindmost(uint64_t now_ns) const {
  Member* found = nullptr;
  for (Member* member : members_) {
    if (counts(*member, now_ns) && (found == nullptr || tag_of(*member) < tag_of(*found))) {
      found = member;
    }
  }
  return found;
}

bool LinkShare::is_ahead(const Member& member, uint64_t now_ns) const {
  if (!trial_.holds() || member.passed_over) return false;
  const Member* const last = hindmost(now_ns);
  return last != nullptr && tag_of(member) > tag_of(*last) + over_weight(member, kLeadBytes);
}

bool LinkShare::may_start(Member& member, uint64_t now_ns) {
  member.active_ns = now_ns;
  advance(0, now_ns);
  if (!is_ahead(member, now_ns)) {
    if (member.held) --held_;
    member.held = false;
    return true;
  }
  if (held_ == 0) trial_.holding_begins(now_ns);
  if (!member.held) ++held_;
  member.held = true;
  schedule_.note_timer(trial_.deadline_ns());
  return false;
}

void LinkShare::started(Member& member, uint64_t bytes, uint64_t now_ns) {
  wake_up(member);
  member.next_tag = tag_of(member) + over_weight(member, bytes);
  member.under_way += bytes;
  member.active_ns = now_ns;
  under_way_ += bytes;
  advance(0, now_ns);
  settle(now_ns);
}

void LinkShare::ended(Member& member, uint64_t bytes, uint64_t now_ns) {
  member.under_way -= bytes;
  member.active_ns = now_ns;
  under_way_ -= bytes;
  advance(bytes, now_ns);
  settle(now_ns);
}

uint64_t LinkShare::piece_bytes() const {
  if (trial_.free_rate() <= 0) return kUnknownPieceBytes;
  return std::clamp(static_cast<uint64_t>(trial_.free_rate() * kPieceNs / kNsPerSecond),
                    kLeastPieceBytes, kMostPieceBytes);
}

uint64_t LinkShare::window_bytes() const {
  if (trial_.free_rate() <= 0) return kUnknownWindowBytes;
  return std::clamp(static_cast<uint64_t>(trial_.free_rate() * kWindowNs / kNsPerSecond),
                    kLeastWindowBytes, kMostWindowBytes);
}

// Those that were held and are not ahead any more go on.
void LinkShare::settle(uint64_t now_ns) {
  if (const Member* last = hindmost(now_ns); last != nullptr) {
    virtual_tag_ = std::max(virtual_tag_, last->next_tag);
  }
  if (held_ == 0) return;
  for (Member* member : members_) {
    if (member->held && !is_ahead(*member, now_ns)) release(*member);
  }
}

void LinkShare::release(Member& member) {
  member.held = false;
  --held_;
  schedule_.update_due(*member.pair);
}

// --- what holding costs -------------------------------------------------------

bool LinkShare::serves_several(uint64_t now_ns) const {
  const ScheduledPair* one = nullptr;
  for (const Member* member : members_) {
    const bool recent = member->active_ns > 0 && now_ns < member->active_ns + kRecentNs;
    if (!has_work(*member) && !recent) continue;
    if (one != nullptr && one != member->pair) return true;
    one = member->pair;
  }
  return false;
}

void LinkShare::release_all() {
  for (Member* member : members_) {
    if (member->held) release(*member);
  }
}

void LinkShare::advance(uint64_t ended_bytes, uint64_t now_ns) {
  if (!holds_) return;
  if (!contended() && members_.size() < 2) return;
  const bool several = serves_several(now_ns);
  if (several != contended()) {
    suspect_ = nullptr;
    if (several) {
      trial_.start(under_way_, now_ns);
    } else {
      trial_.stop();
      release_all();
    }
    return;
  }
  end_passes(now_ns);
  switch (trial_.advance(ended_bytes, held_ > 0, under_way_, now_ns)) {
    case HoldingTrial::Step::kNone:
      return;
    case HoldingTrial::Step::kRelease:
      forgive(now_ns);
      release_all();
      return;
    case HoldingTrial::Step::kSuspect:
      suspect_ = hindmost(now_ns);
      release_all();
      return;
    case HoldingTrial::Step::kBlame:
      if (suspect_ != nullptr) pass_over(*suspect_, now_ns);
      limit_claims();
      return;
    case HoldingTrial::Step::kHold:
      limit_claims();
      return;
  }
}

void LinkShare::pass_over(Member& member, uint64_t now_ns) {
  member.passed_over = true;
  member.passed_until_ns = now_ns + member.pass_ns;
  member.pass_ns = std::min(4 * member.pass_ns, kLongestPassNs);
}

uint64_t LinkShare::most_owed(const Member& member) const {
  const double bytes = trial_.free_rate() * static_cast<double>(kMostOwedNs) / kNsPerSecond;
  return over_weight(member, static_cast<uint64_t>(bytes));
}

// Nobody waits for long until the others have caught up.
void LinkShare::limit_claims() {
  for (Member* member : members_) {
    member->next_tag = std::min(member->next_tag, virtual_tag_ + most_owed(*member));
  }
}

void LinkShare::end_passes(uint64_t now_ns) {
  for (Member* member : members_) {
    if (!member->passed_over || now_ns < member->passed_until_ns) continue;
    member->passed_over = false;
    const uint64_t owed = most_owed(*member);
    if (virtual_tag_ > owed) member->next_tag = std::max(member->next_tag, virtual_tag_ - owed);
  }
}

// Those that others have waited for at no cost for some time are passed over briefly the next time.
void LinkShare::forgive(uint64_t now_ns) {
  for (Member* member : members_) {
    const bool proved = now_ns >= member->passed_until_ns + kProvedNs;
    if (proved && counts(*member, now_ns)) member->pass_ns = kFirstPassNs;
  }
}

}  // namespace hetcomm
