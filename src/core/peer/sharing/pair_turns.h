// PairTurns records which pairs have work at the end of an engine pass, and when their timers
// expire. All callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/progress/engine.h"
#include "src/system/clock.h"

namespace hetcomm {

// The interface of a pair that PairTurns calls.
class ListedPair {
 public:
  // Sends the credit and acknowledgements that are due.
  virtual void send_update() HETCOMM_UNDER_BATON = 0;
  // Continues the copies to and from mapped memory that are too long for one call. Returns whether
  // any are left.
  virtual bool copy_some() HETCOMM_UNDER_BATON = 0;
  virtual void tick(uint64_t now_ns) HETCOMM_UNDER_BATON = 0;
  // Returns when tick() must be called next, or kForever if it need not be called.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
  // Returns the sum of Endpoint::unsent_bytes() of the connections over |link|
  // (LinkShares::index_of).
  virtual uint64_t unsent_bytes(size_t link) const HETCOMM_UNDER_BATON = 0;
  // Ends the pair because memory ran out partway through some work. Data may be missing, so this
  // rank can no longer keep its guarantees to the peer.
  virtual void out_of_memory() HETCOMM_UNDER_BATON = 0;

  // The lists of PairTurns that contain the pair. Only PairTurns changes these flags.
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

  // Adds |pair|. May throw std::bad_alloc. Afterwards, the calls below that schedule work for
  // |pair| never fail.
  void add(ListedPair& pair) HETCOMM_UNDER_BATON;
  // Removes all pairs. Called before they are destroyed.
  void clear() HETCOMM_UNDER_BATON;

  // Schedules send_update() for the end of this pass.
  void update_due(ListedPair& pair) HETCOMM_UNDER_BATON {
    if (pair.listed.update) return;
    pair.listed.update = true;
    updates_.push_back(&pair);
  }
  // Schedules send_update() for the next pass if a background thread runs the engine, and otherwise
  // for this pass. If this rank sends a message earlier, that message carries the acknowledgement.
  void acknowledgement_due(ListedPair& pair) HETCOMM_UNDER_BATON;
  // Schedules copy_some() in every pass until it returns false.
  void copies_due(ListedPair& pair) HETCOMM_UNDER_BATON;
  // Schedules tick() for |at_ns| at the latest.
  void note_timer(uint64_t at_ns) HETCOMM_UNDER_BATON {
    if (at_ns < next_timer_ns_) next_timer_ns_ = at_ns;
  }

  bool has_work() const HETCOMM_UNDER_BATON {
    return !updates_.empty() || !acknowledgements_.empty() || !copying_.empty();
  }
  // Begins a pass. Work that becomes due from now on belongs to this pass.
  void begin_pass() HETCOMM_UNDER_BATON { ++pass_; }
  // Does the work at the end of a pass. Returns nonzero if pairs had copies to continue.
  int run() HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return next_timer_ns_; }

 private:
  Engine& engine_;
  std::vector<ListedPair*> pairs_;
  std::vector<ListedPair*> updates_;
  std::vector<ListedPair*> acknowledgements_;  // due in the next pass; counted by
                                               // Engine::work_left()
  uint64_t pass_ = 0;                          // number of the last pass that has begun
  uint64_t acknowledgements_pass_ = 0;         // pass that added the first acknowledgement
  std::vector<ListedPair*> copying_;
  uint64_t next_timer_ns_ = kForever;
};

}  // namespace hetcomm
