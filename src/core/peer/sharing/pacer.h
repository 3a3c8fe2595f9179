// Pacer: shares the way to one peer among the queues that lead there, by weight, and keeps each
// queue to its rate.
//
// A transfer asks before each piece of a queue's data. On each connection pieces of a bounded
// number of bytes are under way; when one has ended, the queue goes on that has had the least of
// the network interface for its weight (link_share.h), unless that holds it for the sake of queues
// to other ranks. A rate is a bucket of tokens. Data of high priority waits for its rate only.
//
// Under the baton. The unit above is track.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/sharing/link_share.h"
#include "src/core/peer/sharing/pair_turns.h"
#include "src/system/clock.h"

namespace hetcomm {

// The share of the way that a queue may take.
struct TrackShare {
  uint32_t weight = 1;            // at least 1
  uint64_t bytes_per_second = 0;  // 0: as many as there are
};

class Pacer {
 public:
  // Connections by the low bits of their numbers: two may be taken for one, which harms little.
  static constexpr size_t kWays = 16;
  static constexpr size_t kLinks = LinkShares::kCount + 1;  // with that within the host
  // A connection.
  struct Path {
    uint64_t rail;  // its number
    size_t link;    // LinkShares::index_of()
  };
  // State of a queue on one connection.
  struct Place {
    uint64_t under_way = 0;  // bytes
    bool waits = false;
    size_t link = 0;  // that it waits for
  };
  // A queue. The share is its own, the rest is the pacer's.
  struct Flow {
    explicit Flow(const TrackShare& wanted) : share(wanted) {}
    const TrackShare share;
    Pacer* pacer = nullptr;  // null: nobody paces it
    uint32_t track = 0;      // the number of its track, once that is open
    // While it is paced:
    std::unique_ptr<Place[]> ways;                // kWays of them
    std::unique_ptr<LinkShare::Member[]> member;  // kLinks of them
    uint64_t earliest_ns = 0;                     // when its rate allows the next piece
  };
  // A piece that is under way.
  struct Piece {
    Flow* flow = nullptr;
    uint64_t bytes = 0;
    uint8_t way = 0;
    uint8_t link = 0;
  };
  // Pieces under way on one connection: enough that it always finds the next piece, few enough that
  // a queue with much to send does not fill it for the others. More where there is only one queue.
  static constexpr uint64_t kWindowBytes = 4u << 20;
  static constexpr uint64_t kWindowAloneBytes = 16u << 20;
  static constexpr uint64_t kPieceBytes = LinkShare::kMaxPieceBytes;
  // A piece of a queue with a rate takes so long, within bounds.
  static constexpr uint64_t kPieceNs = 10'000'000;
  static constexpr uint64_t kMinPieceBytes = 16u << 10;
  // So much may leave at once after a pause, in time of the rate.
  static constexpr uint64_t kBurstNs = 20'000'000;

  // When pieces may go on, |turns| calls |pair|.
  Pacer(PairTurns& turns, LinkShares& links, ListedPair& pair)
      : turns_(turns), links_(links), within_host_(turns, LinkShares::kWithinHost), pair_(pair) {}
  Pacer(const Pacer&) = delete;
  Pacer& operator=(const Pacer&) = delete;

  // |flow| stays until remove() or clear(). May throw std::bad_alloc.
  void add(Flow& flow) HETCOMM_UNDER_BATON;
  void remove(Flow& flow, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void clear(uint64_t now_ns) HETCOMM_UNDER_BATON;

  // Returns how many of the next |wanted| bytes of |flow| may leave now as one piece over |path|.
  // 0: it waits until next() returns it. |high|: data of high priority.
  uint64_t allowed(Flow& flow, const Path& path, uint64_t wanted, bool high,
                   uint64_t now_ns) HETCOMM_UNDER_BATON;
  // A piece that was allowed is under way. ended() is told of what this returns.
  Piece started(Flow& flow, const Path& path, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void ended(const Piece& piece, uint64_t now_ns) HETCOMM_UNDER_BATON;

  // One of those that wait whose turn it is on some connection; it does not wait there any more.
  // Null: it is nobody's turn.
  Flow* next(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool any_waits() const HETCOMM_UNDER_BATON { return waiting_ > 0; }
  // When next() has to be asked again; kForever: when a piece has ended.
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;

 private:
  // A connection, or several.
  struct Way {
    uint64_t under_way = 0;  // bytes of all flows
    size_t waiting = 0;      // flows
    size_t link = 0;         // as the last one that asked said
  };
  static size_t way_of(uint64_t rail) { return rail % kWays; }
  LinkShare& link(size_t index) HETCOMM_UNDER_BATON {
    return index == LinkShares::kWithinHost ? within_host_ : links_[index];
  }
  const LinkShare& link(size_t index) const HETCOMM_UNDER_BATON {
    return index == LinkShares::kWithinHost ? within_host_ : links_[index];
  }
  bool has_room(size_t way) const HETCOMM_UNDER_BATON;
  bool is_before(const Flow& one, const Flow& other, size_t way) const HETCOMM_UNDER_BATON {
    const size_t index = ways_[way].link;
    return link(index).is_before(one.member[index], other.member[index]);
  }
  Flow* first_waiting(size_t way, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void let_wait(Flow& flow, size_t way) HETCOMM_UNDER_BATON;
  void stop_waiting(Flow& flow, size_t way) HETCOMM_UNDER_BATON;
  void set_timer(uint64_t now_ns) HETCOMM_UNDER_BATON;

  PairTurns& turns_;
  LinkShares& links_;
  LinkShare within_host_;
  ListedPair& pair_;
  std::vector<Flow*> flows_;
  std::array<Way, kWays> ways_{};
  size_t waiting_ = 0;  // flows, on each connection
  uint64_t timer_ns_ = kForever;
};

}  // namespace hetcomm
