// CommunicatorBase is the part of a communicator that every room of core knows. It has the
// communicator's ranks in the job, and starts and ends its operations. Higher rooms extend it:
// MemoryCommunicator (memory) and MessagingCommunicator (peer/matching).
//
// All calls need the baton, except those that return ranks and their numbers, which never change.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Receives the operations that are to be started.
class OperationEntry {
 public:
  // Starts |operation|, which is pending; it may complete immediately.
  virtual void start(Operation& operation) HETCOMM_UNDER_BATON = 0;

 protected:
  ~OperationEntry() = default;
};

class CommunicatorBase {
 public:
  CommunicatorBase(const CommunicatorBase&) = delete;
  CommunicatorBase& operator=(const CommunicatorBase&) = delete;

  // Ends |operation|, which is pending, with |code|. It completes once its memory is no longer
  // accessed. |why| follows the description of the operation in its error text. Allocates no
  // memory.
  virtual void end(Operation& operation, Code code, std::string_view why) HETCOMM_UNDER_BATON = 0;

  // Returns the entry to which |operation| is handed to be started.
  OperationEntry& entry_of(const Operation& operation) const {
    return operation.options.gated ? *gate_ : *entry_;
  }

  // Returns readable text about the ranks that |operation|, which is pending, waits for, and what
  // the transports know about them. The text begins with "; ", or is empty.
  virtual std::string awaited_text(const Operation& operation) HETCOMM_UNDER_BATON = 0;

  // Ranks in the job, by rank in this communicator.
  const std::vector<int>& ranks() const { return ranks_; }
  bool contains(int job_rank) const { return inverse_[static_cast<size_t>(job_rank)] >= 0; }
  // Returns the rank in this communicator of |job_rank|; -1 for -1.
  int32_t rank_of(int32_t job_rank) const {
    return job_rank < 0 ? -1 : inverse_[static_cast<size_t>(job_rank)];
  }

  void operation_begun() HETCOMM_UNDER_BATON { ++pending_; }
  void operation_ended() HETCOMM_UNDER_BATON { --pending_; }
  // Number of operations that have begun and not ended.
  int64_t pending() const HETCOMM_UNDER_BATON { return pending_; }

 protected:
  // |gate| starts operations that wait for users' streams. |job_size| is the number of ranks in the
  // job. Call set_entry() before any operation is made.
  CommunicatorBase(OperationEntry& gate, std::vector<int> ranks, int job_size)
      : gate_(&gate), ranks_(std::move(ranks)), inverse_(static_cast<size_t>(job_size), -1) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      inverse_[static_cast<size_t>(ranks_[i])] = static_cast<int32_t>(i);
    }
  }
  ~CommunicatorBase() = default;
  // Sets the entry for operations that wait for no user's stream.
  void set_entry(OperationEntry& entry) { entry_ = &entry; }

 private:
  OperationEntry* entry_ = nullptr;
  OperationEntry* gate_;
  std::vector<int> ranks_;
  std::vector<int32_t> inverse_;  // by rank in the job; -1: not in the communicator
  int64_t pending_ HETCOMM_GUARDED_BY_BATON = 0;
};

}  // namespace hetcomm
