// LinkShare: shares what leaves through one network interface of this rank among its queues, to
// whichever ranks, by weight, as far as that wastes nothing.
//
// A queue that is ahead of the one that has had least for its weight is held until that one has
// caught up. This is start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queuing",
// SIGCOMM 1996). It is tried what that costs (holding_trial.h), since beyond the interface the way
// of a queue may be slow. Where it costs more than a little, the queue that the others waited for
// is passed over for some time: it takes what it can, and nobody waits for it.
//
// Bytes that queues had while none was held count, and are made up for. Queues of one pair go in
// the same order (pacer.h), also where only they use the interface; then nobody is held.
//
// LinkShares: all links of this rank. Under the baton. The unit above is pacer.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/sharing/holding_trial.h"
#include "src/core/peer/sharing/pair_turns.h"
#include "src/system/clock.h"

namespace hetcomm {

class LinkShare {
 public:
  // Tags count bytes over weight in this fraction. They do not overflow before 2^60 bytes.
  static constexpr uint64_t kTagsPerByte = 16;
  // The most bytes that a queue may be ahead of the others.
  static constexpr uint64_t kLeadBytes = 1u << 20;
  // At most so much is made up for, in time of the rate of the link.
  static constexpr uint64_t kMaxOwedNs = 500'000'000;
  // A queue is passed over so long, and four times as long each time.
  static constexpr uint64_t kFirstPassNs = 500'000'000;
  static constexpr uint64_t kLongestPassNs = 16'000'000'000;
  static constexpr uint64_t kProvedNs = 1'000'000'000;
  // A queue that has had nothing to send for so long does not count.
  static constexpr uint64_t kRecentNs = 200'000'000;
  // Pieces take so long, within bounds, where queues to several ranks share the interface.
  static constexpr uint64_t kPieceNs = 10'000'000;
  static constexpr uint64_t kMinPieceBytes = 64u << 10;
  static constexpr uint64_t kMaxPieceBytes = 1u << 20;
  // The time that the bytes under way over a connection take if it has the link alone, within
  // bounds. It is longer than most ways are, and short enough that holding a queue is felt soon.
  static constexpr uint64_t kWindowNs = 150'000'000;
  static constexpr uint64_t kMinWindowBytes = 512u << 10;
  static constexpr uint64_t kMaxWindowBytes = 16u << 20;

  // This is one queue. The first three are its owner's, the rest is the link's.
  struct Member {
    ListedPair* pair = nullptr;             // goes on when the queue is not held any more
    uint32_t weight = 1;                    // at least 1
    const uint64_t* earliest_ns = nullptr;  // when its rate, if it has one, allows the next piece

    uint64_t next_tag = 0;   // of its next piece
    uint64_t under_way = 0;  // bytes
    size_t waits = 0;        // on so many connections
    uint64_t active_ns = 0;  // when it last had something to send
    bool held = false;
    bool passed_over = false;
    uint64_t passed_until_ns = 0;
    uint64_t pass_ns = kFirstPassNs;
  };

  // |index|: LinkShares::index_of(). Only queues of one pair share LinkShares::kWithinHost.
  LinkShare(PairTurns& turns, size_t index) : turns_(turns), index_(index) {}
  LinkShare(const LinkShare&) = delete;
  LinkShare& operator=(const LinkShare&) = delete;

  // |member| stays until remove(). add() may throw std::bad_alloc.
  void add(Member& member) HETCOMM_UNDER_BATON;
  void remove(Member& member, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Takes add() back.
  void forget(Member& member) HETCOMM_UNDER_BATON { std::erase(members_, &member); }

  // Returns whether |one| goes before |other|: it has had less for its weight.
  bool is_before(const Member& one, const Member& other) const HETCOMM_UNDER_BATON {
    const uint64_t tag = tag_of(one);
    const uint64_t other_tag = tag_of(other);
    return tag < other_tag || (tag == other_tag && one.under_way < other.under_way);
  }
  // It has something to send that waits on one more connection, or one less. look() follows.
  void waits(Member& member) HETCOMM_UNDER_BATON;
  void waits_no_more(Member& member) HETCOMM_UNDER_BATON { --member.waits; }
  // False: it is held, and its pair is called when it may go on.
  bool may_start(Member& member, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Does what is due, whatever goes on: see next_timer_ns().
  void look(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void started(Member& member, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void ended(Member& member, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // |bytes| have left through the interface, of a queue or of something else.
  void left(uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (contended()) pass(bytes, now_ns);
  }

  // Queues to several ranks have something to send.
  bool contended() const HETCOMM_UNDER_BATON { return trial_.is_on(); }
  // Where they do: the longest piece, and the most bytes under way over one connection.
  uint64_t piece_bytes() const HETCOMM_UNDER_BATON;
  uint64_t window_bytes() const HETCOMM_UNDER_BATON;
  // Tells when look() has to be called.
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON {
    return held_ > 0 ? trial_.deadline_ns() : kForever;
  }

 private:
  // A queue has no claim on what it did not take, but where others are held for its sake at times.
  uint64_t tag_of(const Member& member) const HETCOMM_UNDER_BATON {
    return contended() ? member.next_tag : std::max(member.next_tag, virtual_tag_);
  }
  static bool has_work(const Member& member) HETCOMM_UNDER_BATON {
    return member.under_way > 0 || member.waits > 0;
  }
  // Others wait for it.
  static bool counts(const Member& member, uint64_t now_ns) HETCOMM_UNDER_BATON {
    return has_work(member) && !member.passed_over && *member.earliest_ns <= now_ns;
  }
  static uint64_t over_weight(const Member& member, uint64_t bytes) HETCOMM_UNDER_BATON {
    return bytes * kTagsPerByte / member.weight;
  }
  void wake_up(Member& member) HETCOMM_UNDER_BATON;
  Member* hindmost(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  bool is_ahead(const Member& member, const Member* last) const HETCOMM_UNDER_BATON;
  bool serves_several(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  uint64_t unsent_bytes() const HETCOMM_UNDER_BATON;
  void advance(uint64_t left_bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void pass(uint64_t left_bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void contend(bool several, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void release_all() HETCOMM_UNDER_BATON;
  void pass_over(Member& member, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void limit_claims(Member& member) HETCOMM_UNDER_BATON;
  void end_passes(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void forgive(uint64_t now_ns) HETCOMM_UNDER_BATON;
  uint64_t most_owed(const Member& member) const HETCOMM_UNDER_BATON;
  void settle(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void release(Member& member) HETCOMM_UNDER_BATON;

  PairTurns& turns_;
  const size_t index_;
  std::vector<Member*> members_;
  uint64_t virtual_tag_ = 0;  // the least of those that count
  uint64_t under_way_ = 0;    // bytes
  size_t held_ = 0;           // members

  HoldingTrial trial_;
  uint64_t unsent_ = 0;        // bytes that count as sent, when that was looked at last
  Member* suspect_ = nullptr;  // the others waited for it when too much was missing
};

// The links of this rank, by the low bits of the numbers of its transports: two may be taken for
// one, which harms little.
class LinkShares {
 public:
  static constexpr size_t kCount = 16;
  // This stands for an index where data does not leave the host.
  static constexpr size_t kWithinHost = kCount;

  explicit LinkShares(PairTurns& turns) {
    for (size_t i = 0; i < kCount; ++i) links_[i] = std::make_unique<LinkShare>(turns, i);
  }
  static size_t index_of(size_t own_transport, bool within_host) {
    return within_host ? kWithinHost : own_transport % kCount;
  }
  LinkShare& operator[](size_t index) HETCOMM_UNDER_BATON { return *links_[index]; }

 private:
  std::array<std::unique_ptr<LinkShare>, kCount> links_;
};

}  // namespace hetcomm
