// FlushBatches decides which one-sided operations a flush waits for. A batch holds the operations
// submitted between two flushes. A flush completes when all operations of its batch and of earlier
// batches have completed. Callers hold the baton.
#pragma once

#include <cstdint>
#include <deque>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class FlushBatches {
 public:
  // |rank|: the rank whose memory the operations access.
  FlushBatches(Completer& completer, int rank) : completer_(completer), rank_(rank) {}
  FlushBatches(const FlushBatches&) = delete;
  FlushBatches& operator=(const FlushBatches&) = delete;

  // Counts one more operation, and returns the number of its batch. May throw std::bad_alloc.
  uint64_t add() HETCOMM_UNDER_BATON {
    if (batches_.empty() || batches_.back().closed) [[unlikely]]
      open_batch();
    ++batches_.back().running;
    return first_ + batches_.size() - 1;
  }
  // Records that an operation of |batch| has completed with |code|.
  void ended(uint64_t batch, Code code) HETCOMM_UNDER_BATON {
    Batch& own = batches_[batch - first_];
    --own.running;
    if (code != Code::kOk && own.first_failure == Code::kOk) own.first_failure = code;
    if (own.running == 0 && own.closed) finish_batches();
  }
  // Accepts |flush|, a pending operation that closes the current batch. May throw std::bad_alloc.
  void submit(Operation& flush) HETCOMM_UNDER_BATON;
  // Forgets |flush|, which ends early. The next flush reports the failures of its batch.
  void forget(const Operation& flush) HETCOMM_UNDER_BATON;

 private:
  struct Batch {
    uint64_t running = 0;
    Code first_failure = Code::kOk;
    bool closed = false;
    Operation* flush = nullptr;  // null in a closed batch if its flush ended early
  };

  void open_batch() HETCOMM_UNDER_BATON;
  void finish_batches() HETCOMM_UNDER_BATON;
  void complete(Operation& flush, Code first_failure) HETCOMM_UNDER_BATON;

  Completer& completer_;
  const int rank_;
  std::deque<Batch> batches_;  // oldest first; only the last one can be open
  uint64_t first_ = 0;         // number of the first batch
  // Failure of a batch whose flush ended early. The next batch reports it.
  Code unreported_failure_ = Code::kOk;
};

}  // namespace hetcomm
