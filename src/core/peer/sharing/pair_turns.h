// PairTurns: knows which pairs have work at the end of a pass, and when they want to be called
// again. Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/progress/engine.h"
#include "src/system/clock.h"

namespace hetcomm {

// The interface of a pair for PairTurns.
class ListedPair {
 public:
  // Sends the credit and acknowledgements that are due.
  virtual void send_update() HETCOMM_UNDER_BATON = 0;
  // Continues the copies to and from mapped memory that are too long for one call. False: none is
  // left.
  virtual bool copy_some() HETCOMM_UNDER_BATON = 0;
  virtual void tick(uint64_t now_ns) HETCOMM_UNDER_BATON = 0;
  // Returns when tick() is wanted next; kForever: not at all.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
  // Endpoint::unsent_bytes() of the connections over |link| (LinkShares::index_of).
  virtual uint64_t unsent_bytes(size_t link) const HETCOMM_UNDER_BATON = 0;
  // Memory ran out half way: this side can promise nothing to the peer any more.
  virtual void out_of_memory() HETCOMM_UNDER_BATON = 0;

  // The lists that contain the pair. Only PairTurns changes them.
  struct Listed {
    bool update = false;
    bool acknowledgement = false;
  };
  Listed listed;

 protected:
  ~ListedPair() = default;
};

class PairTurns {
 public:
  explicit PairTurns(Engine& engine) : engine_(engine) {}
  PairTurns(const PairTurns&) = delete;
  PairTurns& operator=(const PairTurns&) = delete;

  // Adds |pair|. The calls below that note it never fail afterwards.
  void add(ListedPair& pair) HETCOMM_UNDER_BATON;
  // Forgets all pairs, before they go.
  void clear() HETCOMM_UNDER_BATON;

  // send_update() is called at the end of this pass.
  void update_due(ListedPair& pair) HETCOMM_UNDER_BATON {
    if (pair.listed.update) return;
    pair.listed.update = true;
    updates_.push_back(&pair);
  }
  // send_update() is called in the next pass if a background thread is there to run it. A message
  // that this rank's user sends before then carries the acknowledgement.
  void acknowledgement_due(ListedPair& pair) HETCOMM_UNDER_BATON;
  // copy_some() is called in every pass until it returns false.
  void copies_due(ListedPair& pair) HETCOMM_UNDER_BATON;
  // tick() is called at |at_ns| at the latest.
  void note_timer(uint64_t at_ns) HETCOMM_UNDER_BATON {
    if (at_ns < next_timer_ns_) next_timer_ns_ = at_ns;
  }

  bool has_work() const HETCOMM_UNDER_BATON {
    return !updates_.empty() || !acknowledgements_.empty() || !copying_.empty();
  }
  // A pass begins: work that becomes due from now on belongs to it.
  void begin_pass() HETCOMM_UNDER_BATON { ++pass_; }
  // Does the work at the end of a pass. Returns how much was done.
  int run() HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return next_timer_ns_; }

 private:
  Engine& engine_;
  std::vector<ListedPair*> pairs_;
  std::vector<ListedPair*> updates_;
  std::vector<ListedPair*> acknowledgements_;  // counted as work of the engine
  uint64_t pass_ = 0;                          // number of the last pass that has begun
  uint64_t acknowledgements_pass_ = 0;         // pass that added the first of them
  std::vector<ListedPair*> copying_;
  uint64_t next_timer_ns_ = kForever;
};

}  // namespace hetcomm
