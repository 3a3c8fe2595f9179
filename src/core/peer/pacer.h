// Pacer: shares the way to one peer among the queues that lead there, by weight, and keeps each queue
// to its rate.
//
// A transfer asks before each piece of a queue's data. On each connection pieces of a bounded number
// of bytes are under way; when one has ended, the queue goes on that has had the least of this
// connection for its weight. This is start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair
// Queuing", SIGCOMM 1996). A rate is a bucket of tokens. Data of high priority waits for its rate only.
//
// Under the baton. The unit above is lane.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/clock.h"
#include "src/core/peer/pair_schedule.h"

namespace hetcomm {

// What a queue may take of the way.
struct LaneShare {
  uint32_t weight = 1;            // at least 1
  uint64_t bytes_per_second = 0;  // 0: as many as there are
};

class Pacer {
 public:
  // Connections by the low bits of their numbers: two may be taken for one, which harms little.
  static constexpr size_t kWays = 16;
  // What a queue has on one connection.
  struct Place {
    uint64_t next_tag = 0;   // of its next piece
    uint64_t under_way = 0;  // bytes
    bool waits = false;
  };
  // A queue. The share is its own, the rest is the pacer's.
  struct Flow {
    explicit Flow(const LaneShare& wanted) : share(wanted) {}
    const LaneShare share;
    Pacer* pacer = nullptr;         // null: nobody paces it
    std::unique_ptr<Place[]> ways;  // kWays of them, while it is paced
    uint64_t earliest_ns = 0;       // when its rate allows the next piece
  };
  // A piece that is under way.
  struct Piece {
    Flow* flow = nullptr;
    uint64_t bytes = 0;
    uint8_t way = 0;
  };
  // Pieces under way on one connection: enough that it always finds the next piece, few enough that a
  // queue with much to send does not fill it for the others. More where there is only one queue.
  static constexpr uint64_t kWindowBytes = 4u << 20;
  static constexpr uint64_t kWindowAloneBytes = 16u << 20;
  static constexpr uint64_t kPieceBytes = 1u << 20;
  // A piece of a queue with a rate takes so long, within bounds.
  static constexpr uint64_t kPieceNs = 10'000'000;
  static constexpr uint64_t kLeastPieceBytes = 16u << 10;
  // So much may leave at once after a pause, in time of the rate.
  static constexpr uint64_t kBurstNs = 20'000'000;

  // When pieces may go on, |schedule| calls |pair|.
  Pacer(PairSchedule& schedule, ScheduledPair& pair) : schedule_(schedule), pair_(pair) {}
  Pacer(const Pacer&) = delete;
  Pacer& operator=(const Pacer&) = delete;

  // |flow| stays until remove() or clear(). May throw std::bad_alloc.
  void add(Flow& flow) HETCOMM_UNDER_BATON;
  void remove(Flow& flow) HETCOMM_UNDER_BATON;
  void clear() HETCOMM_UNDER_BATON;

  // So many of the next |wanted| bytes of |flow| may leave now as one piece over connection |rail|.
  // 0: it waits until next() returns it. |high|: data of high priority.
  uint64_t allowed(Flow& flow, uint64_t rail, uint64_t wanted, bool high,
                   uint64_t now_ns) HETCOMM_UNDER_BATON;
  // A piece that was allowed is under way. ended() is told of what this returns.
  Piece started(Flow& flow, uint64_t rail, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void ended(const Piece& piece) HETCOMM_UNDER_BATON;

  // One of those that wait whose turn it is on some connection; it does not wait there any more. Null:
  // it is nobody's turn.
  Flow* next(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool any_waits() const HETCOMM_UNDER_BATON { return waiting_ > 0; }
  // When next() has to be asked again; kForever: when a piece has ended.
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return timer_ns_; }

 private:
  // A connection, or several.
  struct Way {
    uint64_t under_way = 0;  // bytes of all flows
    uint64_t now_tag = 0;    // of the piece that started last
    size_t waiting = 0;      // flows
  };
  static size_t way_of(uint64_t rail) { return rail % kWays; }
  bool has_room(size_t way) const HETCOMM_UNDER_BATON {
    return ways_[way].under_way < (flows_.size() > 1 ? kWindowBytes : kWindowAloneBytes);
  }
  uint64_t tag_of(const Flow& flow, size_t way) const HETCOMM_UNDER_BATON;
  Flow* first_waiting(size_t way, uint64_t now_ns) const HETCOMM_UNDER_BATON;
  void let_wait(Flow& flow, size_t way) HETCOMM_UNDER_BATON;
  void stop_waiting(Flow& flow, size_t way) HETCOMM_UNDER_BATON;
  void set_timer(uint64_t now_ns) HETCOMM_UNDER_BATON;

  PairSchedule& schedule_;
  ScheduledPair& pair_;
  std::vector<Flow*> flows_;
  std::array<Way, kWays> ways_{};
  size_t waiting_ = 0;  // flows, on each connection
  uint64_t timer_ns_ = kForever;
};

}  // namespace hetcomm
