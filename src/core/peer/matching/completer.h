// Completer: ends operations. It writes the outcome, releases what they hold, and tells the
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
  // |operation| is about to complete. Releases what it holds of the pair.
  virtual void ending(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // An operation that was counted in |batch| has completed with |code|.
  virtual void ended(uint64_t batch, Code code) HETCOMM_UNDER_BATON = 0;

 protected:
  ~AccessLedger() = default;
};

// Appended to the reason of an operation whose device was given up.
inline constexpr const char* kNotQuiet =
    "a copy may go on, so that its memory on the device must not be used again";

// |code| ends |operation| because its communicator was aborted.
bool is_aborted(const Operation& operation, Code code) HETCOMM_UNDER_BATON;
// The text of |operation|, which ends because of |told| by another rank. Messages of the library
// itself have no name for people. Works without memory.
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
  // Completes |operation| with |code|. The text is left out if there is no memory for it.
  void complete(Operation& operation, Code code, std::string text = {}) HETCOMM_UNDER_BATON;
  // Ends a one-sided operation with |code|, because the owner or the connection reported it.
  void complete_access(Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // Explains in words that the one-sided |operation| ended with |code| because the owner said so.
  static std::string access_failure_text(const Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // The last step for all kinds: after it the operation is counted nowhere else.
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
      if (operation.detached) engine_.request_released();  // some wait until the track is empty
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
  // The memories and the stream of |operation| are no longer in use. Those of a prepared operation
  // stay in use until it is released.
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
