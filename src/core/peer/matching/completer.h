// Completer completes operations: it records the outcome, releases the resources that the operation
// holds, and notifies the waiters. Callers hold the baton.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/peer/matching/track_base.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Appended to the error text of an operation whose device was abandoned.
inline constexpr const char* kNotQuiet =
    "a copy may go on, so that its memory on the device must not be used again";

// Returns whether |operation| completes with |code| because its communicator was aborted.
bool is_aborted(const Operation& operation, Code code) HETCOMM_UNDER_BATON;
// Returns the error text for |operation|, which fails because of |told|, a status that another rank
// has reported. For a user's operation, the text names the operation. Works even when memory has
// run out.
std::string text_of_told(const Operation& operation, const Status& told) HETCOMM_UNDER_BATON;

class Completer {
 public:
  Completer(Engine& engine, OverlapGuard& overlaps) : engine_(engine), overlaps_(overlaps) {}

  // Completes |operation| with the code in its outcome, which is kOk if none was set.
  void complete(Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.kind > OperationKind::kReceive) [[unlikely]] {
      complete_other(operation);
      return;
    }
    finish(operation);
  }
  // Completes |operation| with |code|. Omits the text if out of memory.
  void complete(Operation& operation, Code code, std::string text = {}) HETCOMM_UNDER_BATON;
  // Completes a one-sided operation with |code|, which the owner or the connection reported.
  void complete_access(Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // Returns a text that explains why the one-sided |operation| failed with the owner's |code|.
  static std::string access_failure_text(const Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // Performs the last steps, which all kinds of operations share. Afterwards another thread may own
  // |operation|.
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
      track_run(operation).track->give_permit();
      if (operation.detached) engine_.request_released();  // a thread may be waiting for the track
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
  // Drops the references of |operation| to its memories and its stream. A prepared operation keeps
  // both until it is released.
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
