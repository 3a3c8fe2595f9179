// Pacer shares the path to one peer among the queues that lead to it, by weight, and limits each
// queue to its rate.
//
// A transfer calls allowed() before it sends a piece of a queue's data. Each connection has a
// bounded number of bytes in flight. When a piece has ended, the next one comes from the queue that
// has used the network interface the least relative to its weight. A queue that LinkShare holds
// back for queues to other ranks is skipped. A token bucket enforces the rate of a queue. Data of
// high priority is delayed only by its queue's rate.
//
// All callers hold the baton.
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

// The share of the path that a queue may take.
struct TrackShare {
  uint32_t weight = 1;            // at least 1
  uint64_t bytes_per_second = 0;  // 0: no limit
};

class Pacer {
 public:
  // The number of entries for connections. The low bits of a connection's number are its index. Two
  // connections can share an entry, which does little harm.
  static constexpr size_t kWays = 16;
  static constexpr size_t kLinks = LinkShares::kCount + 1;  // including the one within the host
  // A connection.
  struct Path {
    uint64_t rail;  // the connection's number
    size_t link;    // LinkShares::index_of()
  };
  // State of a queue on one connection.
  struct FlowWay {
    uint64_t under_way = 0;  // bytes in flight
    bool waits = false;
    size_t link = 0;  // the link that the queue waits for
  };
  // A queue. Its owner sets |share| and |track|, and the pacer sets the other fields.
  struct Flow {
    explicit Flow(const TrackShare& wanted) : share(wanted) {}
    const TrackShare share;
    Pacer* pacer = nullptr;  // null: the queue is not paced
    uint32_t track = 0;      // number of the queue's track, once it is open
    // These fields are set while the queue is paced.
    std::unique_ptr<FlowWay[]> ways;              // kWays entries
    std::unique_ptr<LinkShare::Member[]> member;  // kLinks entries
    uint64_t earliest_ns = 0;                     // when the queue's rate allows the next piece
  };
  // A piece in flight.
  struct Piece {
    Flow* flow = nullptr;
    uint64_t bytes = 0;
    uint8_t way = 0;
    uint8_t link = 0;
  };
  // The most bytes in flight on one connection. The limit is high enough to keep the connection
  // busy, and low enough that one busy queue does not delay the others for long. A queue that is
  // alone can have more.
  static constexpr uint64_t kWindowBytes = 4u << 20;
  static constexpr uint64_t kWindowAloneBytes = 16u << 20;
  static constexpr uint64_t kPieceBytes = LinkShare::kMaxPieceBytes;
  // The time that a piece takes at its queue's rate, within bounds. If the queue has no rate, a
  // piece has kPieceBytes.
  static constexpr uint64_t kPieceNs = 10'000'000;
  static constexpr uint64_t kMinPieceBytes = 16u << 10;
  // After a pause, a queue with a rate can send the bytes of this time at its rate without a delay.
  static constexpr uint64_t kBurstNs = 20'000'000;

  // |turns| calls |pair| when waiting queues can continue.
  Pacer(PairTurns& turns, LinkShares& links, ListedPair& pair)
      : turns_(turns), links_(links), within_host_(turns, LinkShares::kWithinHost), pair_(pair) {}
  Pacer(const Pacer&) = delete;
  Pacer& operator=(const Pacer&) = delete;

  // Adds |flow|, which must stay valid until remove() or clear(). May throw std::bad_alloc.
  void add(Flow& flow) HETCOMM_UNDER_BATON;
  void remove(Flow& flow, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void clear(uint64_t now_ns) HETCOMM_UNDER_BATON;

  // Returns how many of the next |wanted| bytes of |flow| can be sent now as one piece over |path|.
  // Returns 0 if |flow| has to wait until next() returns it. |high| is true for data of high
  // priority.
  uint64_t allowed(Flow& flow, const Path& path, uint64_t wanted, bool high,
                   uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Records that an allowed piece is in flight. The result must be passed to ended().
  Piece started(Flow& flow, const Path& path, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void ended(const Piece& piece, uint64_t now_ns) HETCOMM_UNDER_BATON;

  // Returns a waiting flow that can now send on one of its connections, and stops its wait there.
  // Returns null if there is none.
  Flow* next(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool any_waits() const HETCOMM_UNDER_BATON { return waiting_ > 0; }
  // Returns when next() must be called, or kForever if it need not be called before a piece has
  // ended.
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;

 private:
  // A connection, or several that share an entry.
  struct Way {
    uint64_t under_way = 0;  // bytes in flight of all flows
    size_t waiting = 0;      // number of waiting flows
    size_t link = 0;         // link of the last allowed() call
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
  size_t waiting_ = 0;  // waiting flows, summed over the connections
  uint64_t timer_ns_ = kForever;
};

}  // namespace hetcomm
