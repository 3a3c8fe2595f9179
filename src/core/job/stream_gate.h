// StreamGate is where operations that name users' streams wait before their communicator starts
// them. Operations that must not overtake them wait there too. Callers hold the baton.
#pragma once

#include "src/base/baton_role.h"
#include "src/core/job/departures.h"
#include "src/core/job/operation_ender.h"
#include "src/core/job/stream_waits.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class StreamGate final : public OperationEntry {
 public:
  StreamGate(Departures& departures, StreamWaits& waits, OperationEnder& ender,
             Completer& completer)
      : departures_(departures), waits_(waits), ender_(ender), completer_(completer) {}
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Makes |operation|, which is pending, wait for its stream or for earlier operations. From now on
  // |operation| counts as begun in its communicator, which starts it after it has departed.
  // |operation| may also end during this call.
  void start(Operation& operation) override HETCOMM_UNDER_BATON;

 private:
  Departures& departures_;
  StreamWaits& waits_;
  OperationEnder& ender_;
  Completer& completer_;
};

}  // namespace hetcomm
