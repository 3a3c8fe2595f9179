// TurnQueue holds one-sided operations that wait to be started in order. Callers hold the baton.
#pragma once

#include <new>

#include "src/base/baton_role.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/association.h"
#include "src/core/progress/operation_queue.h"

namespace hetcomm {

class TurnQueue {
 public:
  explicit TurnQueue(Association& association) : association_(association) {}
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  bool empty() const HETCOMM_UNDER_BATON { return queue_.empty(); }
  Operation& front() const HETCOMM_UNDER_BATON { return queue_.front(); }
  void add(Operation& operation) HETCOMM_UNDER_BATON {
    mark(operation);
    queue_.push_back(operation);
  }
  // Requires that |operation| is in this queue.
  void remove(Operation& operation) HETCOMM_UNDER_BATON {
    access_of(operation).waiting = false;
    queue_.remove(operation);
  }
  // Calls |start(operation)| for each operation in order. Stops when |may_start()| returns false,
  // when the association cannot send, or when an operation has to wait again. Fails an operation
  // for which memory runs out.
  template <typename MayStart, typename Start>
  void start_all(MayStart&& may_start, Start&& start) HETCOMM_UNDER_BATON {
    while (!queue_.empty() && association_.may_send() && may_start()) {
      Operation& next = queue_.front();
      remove(next);
      access_of(next).had_turn = true;
      next.phase = OperationPhase::kQueued;
      try {
        if (start(next)) continue;
      } catch (const std::bad_alloc&) {
        association_.end_started(next);
        continue;
      }
      mark(next);
      queue_.push_front(next);
      return;
    }
  }

 private:
  static void mark(Operation& operation) {
    operation.phase = OperationPhase::kAwaiting;
    access_of(operation).waiting = true;
  }

  Association& association_;
  OperationQueue queue_;
};

}  // namespace hetcomm
