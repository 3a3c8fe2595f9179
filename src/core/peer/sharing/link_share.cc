#include "src/core/peer/sharing/link_share.h"

namespace hetcomm {
namespace {

// These values apply while the rate of the link is unknown.
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
  look(now_ns);
}

// Removes the claim of |member| on bandwidth that it did not use, if it had nothing to send.
void LinkShare::wake_up(Member& member) {
  if (!has_work(member)) member.next_tag = std::max(member.next_tag, virtual_tag_);
}

void LinkShare::waits(Member& member) {
  wake_up(member);
  ++member.waits;
}

// Returns the queue that has sent the least relative to its weight, among those for which counts()
// is true, or null.
LinkShare::Member* LinkShare::hindmost(uint64_t now_ns) const {
  Member* found = nullptr;
  for (Member* member : members_) {
    if (counts(*member, now_ns) && (found == nullptr || tag_of(*member) < tag_of(*found))) {
      found = member;
    }
  }
  return found;
}

// Returns whether |member| is so far ahead of |last|, the hindmost queue, that it has to be held.
bool LinkShare::is_ahead(const Member& member, const Member* last) const {
  if (!trial_.holds() || member.passed_over || last == nullptr) return false;
  return tag_of(member) > tag_of(*last) + over_weight(member, kLeadBytes);
}

bool LinkShare::may_start(Member& member, uint64_t now_ns) {
  member.active_ns = now_ns;
  advance(0, now_ns);
  if (!is_ahead(member, hindmost(now_ns))) {
    // Other queues of the same pair may be waiting behind |member|, so release() notifies the pair.
    if (member.held) release(member);
    return true;
  }
  if (held_ == 0) trial_.holding_begins(now_ns);
  if (!member.held) ++held_;
  member.held = true;
  turns_.note_timer(trial_.deadline_ns());
  return false;
}

void LinkShare::look(uint64_t now_ns) {
  advance(0, now_ns);
  settle(now_ns);
}

void LinkShare::started(Member& member, uint64_t bytes, uint64_t now_ns) {
  wake_up(member);
  if (!contended()) virtual_tag_ = tag_of(member);
  member.next_tag = tag_of(member) + over_weight(member, bytes);
  member.under_way += bytes;
  member.active_ns = now_ns;
  under_way_ += bytes;
  look(now_ns);
}

void LinkShare::ended(Member& member, uint64_t bytes, uint64_t now_ns) {
  member.under_way -= bytes;
  member.active_ns = now_ns;
  under_way_ -= bytes;
  look(now_ns);
}

uint64_t LinkShare::piece_bytes() const {
  if (trial_.free_rate() <= 0) return kUnknownPieceBytes;
  return std::clamp(static_cast<uint64_t>(trial_.free_bytes(kPieceNs)), kMinPieceBytes,
                    kMaxPieceBytes);
}

uint64_t LinkShare::window_bytes() const {
  if (trial_.free_rate() <= 0) return kUnknownWindowBytes;
  return std::clamp(static_cast<uint64_t>(trial_.free_bytes(kWindowNs)), kMinWindowBytes,
                    kMaxWindowBytes);
}

// Releases the held queues that are no longer ahead.
void LinkShare::settle(uint64_t now_ns) {
  const Member* const last = hindmost(now_ns);
  if (last != nullptr && contended()) virtual_tag_ = std::max(virtual_tag_, tag_of(*last));
  if (held_ == 0) return;
  for (Member* member : members_) {
    if (member->held && !is_ahead(*member, last)) release(*member);
  }
}

void LinkShare::release(Member& member) {
  member.held = false;
  --held_;
  turns_.update_due(*member.pair);
}

// --- the cost of holding --------------------------------------------------------

bool LinkShare::serves_several(uint64_t now_ns) const {
  const ListedPair* one = nullptr;
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

// Returns the sum of Endpoint::unsent_bytes() on this link, over all pairs with queues here.
uint64_t LinkShare::unsent_bytes() const {
  uint64_t bytes = 0;
  for (auto member = members_.begin(); member != members_.end(); ++member) {
    const auto same_pair = [&](const Member* other) { return other->pair == (*member)->pair; };
    if (std::none_of(members_.begin(), member, same_pair)) {
      bytes += (*member)->pair->unsent_bytes(index_);
    }
  }
  return bytes;
}

void LinkShare::contend(bool several, uint64_t now_ns) {
  suspect_ = nullptr;
  for (Member* member : members_) {
    // When queues begin to share the link, none has a claim on the others. When they stop, all
    // claims end.
    member->next_tag = tag_of(*member);
    member->passed_over = false;
  }
  if (several) {
    unsent_ = unsent_bytes();
    trial_.start(under_way_, now_ns);
  } else {
    for (Member* member : members_) virtual_tag_ = std::max(virtual_tag_, member->next_tag);
    trial_.stop();
    release_all();
  }
}

void LinkShare::advance(uint64_t left_bytes, uint64_t now_ns) {
  if (!contended() && members_.size() < 2) return;
  const bool several = serves_several(now_ns);
  if (several != contended()) {
    contend(several, now_ns);
  } else if (several) {
    pass(left_bytes, now_ns);
  }
}

// Accounts for the elapsed time and for bytes that were sent.
void LinkShare::pass(uint64_t left_bytes, uint64_t now_ns) {
  end_passes(now_ns);
  int64_t left = static_cast<int64_t>(left_bytes);
  if (left_bytes > 0 || trial_.is_due(held_ > 0, now_ns)) {
    // Bytes that a connection has accepted do not count as sent until the peer's host has received
    // them.
    const uint64_t unsent = unsent_bytes();
    left += static_cast<int64_t>(unsent_) - static_cast<int64_t>(unsent);
    unsent_ = unsent;
  }
  switch (trial_.advance(left, held_ > 0, under_way_, now_ns)) {
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
      break;
    case HoldingTrial::Step::kHold:
      break;
  }
  for (Member* member : members_) limit_claims(*member);
}

// Passes over all queues of the suspect's pair, since its path is slow.
void LinkShare::pass_over(Member& suspect, uint64_t now_ns) {
  const uint64_t pass_ns = suspect.pass_ns;
  for (Member* member : members_) {
    if (member->pair != suspect.pair) continue;
    member->passed_over = true;
    member->passed_until_ns = now_ns + pass_ns;
    member->pass_ns = std::min(4 * pass_ns, kLongestPassNs);
  }
}

uint64_t LinkShare::most_owed(const Member& member) const {
  return over_weight(member, static_cast<uint64_t>(trial_.free_bytes(kMaxOwedNs)));
}

// Limits how far |member| is behind or ahead, so no queue is held for long until others have caught
// up.
void LinkShare::limit_claims(Member& member) {
  const uint64_t owed = most_owed(member);
  const uint64_t least = virtual_tag_ > owed ? virtual_tag_ - owed : 0;
  member.next_tag = std::clamp(member.next_tag, least, virtual_tag_ + owed);
}

void LinkShare::end_passes(uint64_t now_ns) {
  for (Member* member : members_) {
    if (!member->passed_over || now_ns < member->passed_until_ns) continue;
    member->passed_over = false;
    limit_claims(*member);
  }
}

// Shortens the next pass-over of queues that have not been passed over for kProvedNs.
void LinkShare::forgive(uint64_t now_ns) {
  for (Member* member : members_) {
    const bool proved = now_ns >= member->passed_until_ns + kProvedNs;
    if (proved && counts(*member, now_ns)) member->pass_ns = kFirstPassNs;
  }
}

}  // namespace hetcomm
