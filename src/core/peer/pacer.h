// Pacer: shares the way to one peer among the queues that lead there, by weight, and keeps each queue
// to its rate.
//
// A transfer asks before each piece of a queue's data. Pieces of kWindowBytes are under way at most;
// when one has ended, the queue that has had the least for its weight goes on. This is start-time
// fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996). A rate is a bucket
// of tokens. A queue that is alone and has no rate sends pieces as long as they were granted.
//
// Under the baton. The unit above is lane.h.
#pragma once

#include <cstddef>
#include <cstdint>
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
  // A queue. Times and shares are its own, the rest is the pacer's.
  struct Flow {
    explicit Flow(const LaneShare& wanted) : share(wanted) {}
    const LaneShare share;
    Pacer* pacer = nullptr;    // null: nobody paces it
    uint64_t next_tag = 0;     // of its next piece
    uint64_t earliest_ns = 0;  // when its rate allows that piece
    uint64_t under_way = 0;    // bytes
    bool waits = false;
  };
  // Pieces under way, all together: enough that a connection always finds the next piece, few enough
  // that a queue with much to send does not fill the way for the others.
  static constexpr uint64_t kWindowBytes = 4u << 20;
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

  // add() of one more flow does not throw. May throw std::bad_alloc.
  void make_room() HETCOMM_UNDER_BATON { flows_.reserve(flows_.size() + 1); }
  // |flow| stays until remove() or clear().
  void add(Flow& flow) HETCOMM_UNDER_BATON;
  void remove(Flow& flow) HETCOMM_UNDER_BATON;
  void clear() HETCOMM_UNDER_BATON;

  // So many of the next |wanted| bytes of |flow| may leave now, as one piece. 0: it waits until next()
  // returns it.
  uint64_t allowed(Flow& flow, uint64_t wanted, uint64_t now_ns) HETCOMM_UNDER_BATON;
  // A piece that was allowed is under way. Returns what ended() is told.
  uint64_t started(Flow& flow, uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void ended(Flow& flow, uint64_t bytes) HETCOMM_UNDER_BATON;

  // The one of those that wait whose turn it is; it waits no more. Null: nobody's.
  Flow* next(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool any_waits() const HETCOMM_UNDER_BATON { return waiting_ > 0; }
  // When next() has to be asked again; kForever: when a piece has ended.
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return timer_ns_; }

 private:
  bool paces(const Flow& flow) const HETCOMM_UNDER_BATON {
    return flow.share.bytes_per_second > 0 || flows_.size() > 1;
  }
  bool has_room() const HETCOMM_UNDER_BATON { return under_way_ < kWindowBytes; }
  uint64_t tag_of(const Flow& flow) const HETCOMM_UNDER_BATON;
  Flow* first_waiting(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  void let_wait(Flow& flow, uint64_t now_ns) HETCOMM_UNDER_BATON;
  void stop_waiting(Flow& flow) HETCOMM_UNDER_BATON;

  PairSchedule& schedule_;
  ScheduledPair& pair_;
  std::vector<Flow*> flows_;
  uint64_t under_way_ = 0;  // bytes of all flows
  uint64_t now_tag_ = 0;    // of the piece that started last
  size_t waiting_ = 0;
  uint64_t timer_ns_ = kForever;
};

}  // namespace hetcomm
