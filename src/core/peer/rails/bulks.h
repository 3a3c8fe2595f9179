// Bulks manages the puts and gets of a pair that wait until their rail accepts them, are in flight,
// or were refused. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/peer/rails/rail.h"
#include "src/core/peer/sharing/pair_turns.h"
#include "src/core/progress/engine.h"
#include "transports/transport.h"

namespace hetcomm {

enum class PairState : uint8_t { kIdle, kConnecting, kReady, kLost };

// A BulkOwner is notified when its put or get has ended.
class BulkOwner {
 public:
  // Called when |bulk| has finished with |code|. The connection no longer accesses its memory.
  virtual void on_bulk(Bulk& bulk, Code code) HETCOMM_UNDER_BATON = 0;

 protected:
  ~BulkOwner() = default;
};
struct OwnedBulk : Bulk {
  BulkOwner* owner = nullptr;
  Rail* rail = nullptr;         // the rail that carries this bulk; null when the bulk has ended
  OwnedBulk* listed = nullptr;  // the next bulk in a BulkList
  bool is_get = false;
  bool waiting = false;      // is in the list of waiting bulks
  bool started = false;      // counted in the rail's load
  Code refused = Code::kOk;  // a permanent refusal; the bulk is in the list of refused bulks
};

// A BulkList is an intrusive list of bulks, so it allocates no memory.
class BulkList {
 public:
  bool empty() const HETCOMM_UNDER_BATON { return first_ == nullptr; }
  size_t size() const HETCOMM_UNDER_BATON { return size_; }
  void push(OwnedBulk& bulk) HETCOMM_UNDER_BATON {
    bulk.listed = nullptr;
    (first_ == nullptr ? first_ : last_->listed) = &bulk;
    last_ = &bulk;
    ++size_;
  }
  OwnedBulk& pop() HETCOMM_UNDER_BATON {
    OwnedBulk& bulk = *first_;
    first_ = bulk.listed;
    --size_;
    return bulk;
  }
  template <typename Which>
  void remove_if(Which&& which) HETCOMM_UNDER_BATON {
    OwnedBulk* at = std::exchange(first_, nullptr);
    size_ = 0;
    while (at != nullptr) {
      OwnedBulk& bulk = *at;
      at = bulk.listed;
      if (!which(bulk)) push(bulk);
    }
  }

 private:
  OwnedBulk* first_ = nullptr;
  OwnedBulk* last_ = nullptr;
  size_t size_ = 0;
};

class Bulks {
 public:
  // All arguments outlive this object. |state| is the state of the pair.
  Bulks(Engine& engine, PairTurns& turns, ListedPair& pair, const PairState& state)
      : engine_(engine), turns_(turns), pair_(pair), state_(state) {}
  Bulks(const Bulks&) = delete;
  Bulks& operator=(const Bulks&) = delete;

  // Starts |bulk| on |bulk.rail|, or queues it if the rail cannot accept it now or the pair is not
  // ready. A permanent refusal is reported at the end of the pass.
  void submit(OwnedBulk& bulk) HETCOMM_UNDER_BATON {
    state_ == PairState::kReady ? start(bulk) : wait(bulk);
  }
  // Submits the waiting bulks, each once. A bulk may return to the end of the list.
  void submit_waiting() HETCOMM_UNDER_BATON;
  // Handles the completion of |bulk|, which its endpoint reports with |code|.
  void ended(OwnedBulk& bulk, Code code) HETCOMM_UNDER_BATON;
  void report_refused() HETCOMM_UNDER_BATON;
  // Cancels |bulk|. On return the connection no longer accesses its memory, and its owner gets no
  // more calls for it. Returns true if the cancellation makes the rail fail (see
  // PutStarter::cancel).
  bool cancel(OwnedBulk& bulk) HETCOMM_UNDER_BATON;
  // Removes the queued and refused bulks of |rail|, which has failed, so they can be submitted to
  // another rail. Their owners have already been notified of the failure.
  void forget(const Rail& rail) HETCOMM_UNDER_BATON;
  bool empty() const HETCOMM_UNDER_BATON { return waiting_.empty() && refused_.empty(); }

 private:
  void start(OwnedBulk& bulk) HETCOMM_UNDER_BATON;
  static Code hand_over(OwnedBulk& bulk) HETCOMM_UNDER_BATON;
  // Queues |bulk| until submit_waiting().
  void wait(OwnedBulk& bulk) HETCOMM_UNDER_BATON {
    bulk.waiting = true;
    waiting_.push(bulk);
  }

  Engine& engine_;
  PairTurns& turns_;
  ListedPair& pair_;
  const PairState& state_;
  BulkList waiting_;
  BulkList refused_;
};

}  // namespace hetcomm
