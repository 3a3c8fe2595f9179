// Completer: ends operations. It writes the outcome, gives back what they hold, and tells the
// waiters. Under the baton.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/peer/matching/track.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Counts the one-sided operations between this rank and a peer.
class AccessLedger {
 public:
  // |operation| is about to complete. What it holds of the pair is given back.
  virtual void ending(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // One that was counted in |batch| has completed in |code|.
  virtual void ended(uint64_t batch, Code code) HETCOMM_UNDER_BATON = 0;

 protected:
  ~AccessLedger() = default;
};

// Stands behind the reason of an operation whose device was given up.
inline constexpr const char* kNotQuiet =
    "a copy may go on, so that its memory on the device must not be used again";

// |code| ends |operation| because its communicator was aborted.
bool is_aborted(const Operation& operation, Code code) HETCOMM_UNDER_BATON;
// The text of |operation|, which ends because of |told| by another rank. Messages of the library's
// own have no name for people. Works without memory.
std::string text_of_told(const Operation& operation, const Status& told) HETCOMM_UNDER_BATON;

class Completer {
 public:
  Completer(Engine& engine, OverlapGuard& overlaps) : engine_(engine), overlaps_(overlaps) {}

  // Completes |operation| with its own code, which is kOk if none was set.
  void complete(Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.kind > OperationKind::kReceive) [[unlikely]] {
      complete_other(operation);
      return;
    }
    finish(operation);
  }
  // Completes |operation| in |code|. The text is left out if there is no memory for it.
  void complete(Operation& operation, Code code, std::string text = {}) HETCOMM_UNDER_BATON;
  // Ends a one-sided operation in |code|, because the owner or the connection said so.
  void complete_access(Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // Says for people that |operation|, one-sided, ended in |code| because the owner said so.
  static std::string access_failure_text(const Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // The last step, for all kinds: nothing of the operation is counted anywhere else.
  void finish(Operation& operation) HETCOMM_UNDER_BATON {
    CommunicatorBase& communicator = *operation.communicator;
    operation.outcome.source = communicator.rank_of(operation.outcome.source);
    if (OverlapGuard::kActive && operation.kind == OperationKind::kReceive) {
      overlaps_.remove(operation);
    }
    if (operation.options.on_stream) [[unlikely]]
      let_stream_go_on(operation);
    if (!operation.buffers.pieces.empty()) [[unlikely]] {
      if (operation.outcome.code != Code::kOk) tell_of_abandoned(operation);
      if (!operation.prepared || operation.detached) drop_uses(operation);
    }
    communicator.operation_ended();
    if (operation.options.on_track) [[unlikely]] {
      operation.transfer.track->give_permit();
      if (operation.detached) engine_.request_released();  // who waits for the track to be empty
    }
    if (operation.detached) [[unlikely]] {
      if (operation.internal.handler != nullptr) {
        std::exchange(operation.internal.handler, nullptr)->on_end(operation);
      }
      engine_.operation_dropped(&operation);
      return;
    }
    engine_.operation_completed(&operation);
  }
  // The memories and the stream of |operation| are not used any more. Those of a prepared one stay
  // in use until it is released.
  static void drop_uses(Operation& operation);

 private:
  static void drop_stream(Operation& operation);
  static void tell_of_abandoned(Operation& operation) HETCOMM_UNDER_BATON;
  static void let_stream_go_on(Operation& operation) HETCOMM_UNDER_BATON;
  void complete_other(Operation& operation) HETCOMM_UNDER_BATON;

  Engine& engine_;
  OverlapGuard& overlaps_;
};

}  // namespace hetcomm
