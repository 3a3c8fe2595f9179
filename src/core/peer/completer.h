// How operations end: the outcome is written, what they hold is given back, and whoever waits is told.
//
// Under the baton.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "src/core/memory/overlap_guard.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Counts the one-sided operations between this rank and a peer.
class AccessLedger {
 public:
  // |operation| is about to complete. What it holds of the pair is given back.
  virtual void ending(Operation& operation) = 0;
  // One that was counted in |epoch| has completed in |code|.
  virtual void ended(uint64_t epoch, Code code) = 0;

 protected:
  ~AccessLedger() = default;
};

class Completer {
 public:
  Completer(Engine& engine, OverlapGuard& overlaps) : engine_(engine), overlaps_(overlaps) {}

  // With the operation's own code, which is kOk if none was set.
  void complete(Operation& operation) {
    if (operation.kind > OperationKind::kReceive) [[unlikely]] {
      complete_other(operation);
      return;
    }
    finish(operation);
  }
  // Without a text that there is no memory for.
  void complete(Operation& operation, Code code, std::string text = {});
  // The last step, for all kinds: nothing of the operation is counted anywhere else.
  void finish(Operation& operation) {
    CommunicatorBase& communicator = *operation.communicator;
    operation.outcome.source = communicator.rank_of(operation.outcome.source);
    if (OverlapGuard::kActive && operation.kind == OperationKind::kReceive) {
      overlaps_.remove(operation);
    }
    if (!operation.buffers.pieces.empty() && (!operation.prepared || operation.detached))
        [[unlikely]]
      drop_uses(operation);
    communicator.operation_ended();
    if (operation.detached) [[unlikely]] {
      if (operation.end_handler != nullptr) {
        std::exchange(operation.end_handler, nullptr)->on_end(operation);
      }
      engine_.operation_dropped(&operation);
      return;
    }
    engine_.operation_completed(&operation);
  }
  // The memories of |operation| are not used any more. Those of a prepared one stay in use until it is
  // released.
  static void drop_uses(Operation& operation);

 private:
  void complete_other(Operation& operation);

  Engine& engine_;
  OverlapGuard& overlaps_;
};

}  // namespace hetcomm
