// LinkShare shares the bandwidth of one network interface of this rank among its queues, by weight,
// without leaving any of it unused. The queues can lead to any ranks.
//
// A queue is held if it is too far ahead of the hindmost queue, which is the one that has sent the
// least relative to its weight. A held queue cannot start another piece of its data until the
// hindmost queue has caught up. This is start-time fair queueing (Goyal, Vin and Cheng, "Start-time
// Fair Queuing", SIGCOMM 1996). The cost of holding is measured (holding_trial.h), since the path
// of a queue may be slow beyond the interface. If holding costs too much, the queue that the others
// waited for is passed over for some time. It still sends as much as it can, but no queue waits for
// it.
//
// Bytes that a queue sends while no queue is held also count, and the queue can be held for them
// later. While only queues of one pair use the interface, no queue is held. The pacer still serves
// them in the order of their tags (pacer.h).
//
// LinkShares holds the LinkShare of each network interface (link) of this rank. Pacer (pacer.h)
// uses these classes. All callers hold the baton.
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
  // A tag counts the bytes that a queue has sent, divided by its weight, in sixteenths of a byte.
  // It does not overflow before 2^60 bytes.
  static constexpr uint64_t kTagsPerByte = 16;
  // A queue is held once it has sent more than this many bytes beyond its share, compared with the
  // hindmost queue.
  static constexpr uint64_t kLeadBytes = 1u << 20;
  // The most that a queue can be ahead or behind when queues are held again, as time at the link's
  // rate.
  static constexpr uint64_t kMaxOwedNs = 500'000'000;
  // The time for which a queue is passed over. Each time is four times as long as the previous one,
  // within these bounds.
  static constexpr uint64_t kFirstPassNs = 500'000'000;
  static constexpr uint64_t kLongestPassNs = 16'000'000'000;
  // A queue that was not passed over for this long is next passed over for only kFirstPassNs.
  static constexpr uint64_t kProvedNs = 1'000'000'000;
  // A queue that has had nothing to send for this long does not share the interface.
  static constexpr uint64_t kRecentNs = 200'000'000;
  // The time that a piece takes at the link's rate, within bounds, when queues to several ranks
  // share the interface.
  static constexpr uint64_t kPieceNs = 10'000'000;
  static constexpr uint64_t kMinPieceBytes = 64u << 10;
  static constexpr uint64_t kMaxPieceBytes = 1u << 20;
  // The most bytes in flight over a connection, as time at the link's rate, within bounds. The time
  // is longer than the latency of most paths, and short enough that holding a queue takes effect
  // soon.
  static constexpr uint64_t kWindowNs = 150'000'000;
  static constexpr uint64_t kMinWindowBytes = 512u << 10;
  static constexpr uint64_t kMaxWindowBytes = 16u << 20;

  // A queue. Its owner sets the first three fields, and the link sets the others.
  struct Member {
    ListedPair* pair = nullptr;             // called when the queue is no longer held
    uint32_t weight = 1;                    // at least 1
    const uint64_t* earliest_ns = nullptr;  // when its rate, if any, allows the next piece

    uint64_t next_tag = 0;   // tag of the queue's next piece
    uint64_t under_way = 0;  // bytes in flight
    size_t waits = 0;        // number of connections that the queue waits for
    uint64_t active_ns = 0;  // when the queue last had something to send
    bool held = false;
    bool passed_over = false;
    uint64_t passed_until_ns = 0;
    uint64_t pass_ns = kFirstPassNs;
  };

  // |index| is a result of LinkShares::index_of(). Only queues of one pair share a link with the
  // index LinkShares::kWithinHost.
  LinkShare(PairTurns& turns, size_t index) : turns_(turns), index_(index) {}
  LinkShare(const LinkShare&) = delete;
  LinkShare& operator=(const LinkShare&) = delete;

  // Adds |member|, which must stay valid until remove(). May throw std::bad_alloc.
  void add(Member& member) HETCOMM_UNDER_BATON;
  void remove(Member& member, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Undoes add().
  void forget(Member& member) HETCOMM_UNDER_BATON { std::erase(members_, &member); }

  // Returns whether |one| precedes |other|: it has sent less relative to its weight or, if that is
  // equal, has fewer bytes in flight.
  bool is_before(const Member& one, const Member& other) const HETCOMM_UNDER_BATON {
    const uint64_t tag = tag_of(one);
    const uint64_t other_tag = tag_of(other);
    return tag < other_tag || (tag == other_tag && one.under_way < other.under_way);
  }
  // Record that |member| has data waiting on one more connection, or on one fewer. The next look()
  // releases queues that no longer have to be held.
  void waits(Member& member) HETCOMM_UNDER_BATON;
  void waits_no_more(Member& member) HETCOMM_UNDER_BATON { --member.waits; }
  // Returns false if |member| is held. Its pair is called when it can continue.
  bool may_start(Member& member, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Advances the measurement, and releases held queues that are no longer too far ahead. Has to be
  // called at next_timer_ns().
  void look(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void started(Member& member, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void ended(Member& member, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Records that |bytes| were sent through the interface, from a queue or another source.
  void left(uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (contended()) pass(bytes, now_ns);
  }

  // Returns whether queues to several ranks have something to send.
  bool contended() const HETCOMM_UNDER_BATON { return trial_.is_on(); }
  // Return the longest piece, and the most bytes in flight over one connection. Require
  // contended().
  uint64_t piece_bytes() const HETCOMM_UNDER_BATON;
  uint64_t window_bytes() const HETCOMM_UNDER_BATON;
  // Returns when look() has to be called.
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON {
    return held_ > 0 ? trial_.deadline_ns() : kForever;
  }

 private:
  // Returns the current tag of |member|. While the link is not contended, a queue has no claim on
  // bandwidth that it did not use.
  uint64_t tag_of(const Member& member) const HETCOMM_UNDER_BATON {
    return contended() ? member.next_tag : std::max(member.next_tag, virtual_tag_);
  }
  static bool has_work(const Member& member) HETCOMM_UNDER_BATON {
    return member.under_way > 0 || member.waits > 0;
  }
  // Returns whether other queues can be held to wait for |member|.
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
  uint64_t virtual_tag_ = 0;  // tag of the hindmost queue; never decreases
  uint64_t under_way_ = 0;    // bytes in flight
  size_t held_ = 0;           // number of held queues

  HoldingTrial trial_;
  uint64_t unsent_ = 0;        // last result of unsent_bytes()
  Member* suspect_ = nullptr;  // the queue that others waited for when the shortfall was too large
};

// The links of this rank, indexed by the low bits of their transport numbers. Two links can share
// an entry, which does little harm.
class LinkShares {
 public:
  static constexpr size_t kCount = 16;
  // The index of data that does not leave the host. This class has no entry for it.
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
