// Ends operations that still wait for users' streams, for the reasons that also end running
// operations: a lost peer, failed collective operations, or remote memory that is no longer
// registered. The streams of these operations then resume. Callers hold the baton.
//
// A waiting operation connects to the peer that it names, so that an unreachable peer is detected.
// The owner of a remote memory is asked from time to time whether the memory is still registered.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/job/departures.h"
#include "src/core/job/operation_ender.h"
#include "src/core/job/paths/pair_table.h"
#include "src/core/peer/pair_services.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"
#include "src/system/clock.h"

namespace hetcomm {

class StreamWaits {
 public:
  StreamWaits(Engine& engine, uint64_t detection_ns, PairTable& pairs, Departures& departures,
              OperationEnder& ender)
      : engine_(engine),
        detection_ns_(detection_ns),
        pairs_(pairs),
        departures_(departures),
        ender_(ender) {}
  StreamWaits(const StreamWaits&) = delete;
  StreamWaits& operator=(const StreamWaits&) = delete;

  // Records that |operation| has begun to wait. May end it.
  void begun(Operation& operation) HETCOMM_UNDER_BATON;
  // The next three functions end operations. They do not fail if out of memory.
  void peer_lost(int rank, const Status& why) HETCOMM_UNDER_BATON;
  void collectives_failed(const CommunicatorBase& communicator,
                          const Status& why) HETCOMM_UNDER_BATON;
  // Ends the operations on memory |id| of |rank|, which can no longer be used.
  void memory_gone(int rank, uint64_t id, Code code) HETCOMM_UNDER_BATON;

  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return ask_at_ns_; }
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;

 private:
  void connect(const Operation& operation) HETCOMM_UNDER_BATON;
  void look_for_lost(Operation& operation) HETCOMM_UNDER_BATON;
  void ask(uint64_t now_ns) HETCOMM_UNDER_BATON;

  Engine& engine_;
  const uint64_t detection_ns_;
  PairTable& pairs_;
  Departures& departures_;
  OperationEnder& ender_;
  uint64_t ask_at_ns_ = kForever;
};

}  // namespace hetcomm
