// CommunicatorBase is the part of a communicator that all modules of core use. It holds the
// communicator's ranks in the job, and starts and ends its operations. Higher modules extend it:
// MemoryCommunicator (memory) and MessagingCommunicator (peer/matching).
//
// All calls need the baton, except those that look up ranks, which never change.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Starts operations.
class OperationEntry {
 public:
  // Starts the pending |operation|, which may complete immediately.
  virtual void start(Operation& operation) HETCOMM_UNDER_BATON = 0;

 protected:
  ~OperationEntry() = default;
};

class CommunicatorBase {
 public:
  CommunicatorBase(const CommunicatorBase&) = delete;
  CommunicatorBase& operator=(const CommunicatorBase&) = delete;

  // Ends the pending |operation| with |code|. It completes once its memory is no longer accessed.
  // In the error text, |why| follows the description of the operation. Succeeds even if out of
  // memory.
  virtual void end(Operation& operation, Code code, std::string_view why) HETCOMM_UNDER_BATON = 0;

  // Returns the entry that starts |operation|.
  OperationEntry& entry_of(const Operation& operation) const {
    return operation.options.gated ? *gate_ : *entry_;
  }

  // Returns readable text about the ranks that the pending |operation| waits for and the state of
  // the transports to them. The text begins with "; ", or is empty.
  virtual std::string awaited_text(const Operation& operation) HETCOMM_UNDER_BATON = 0;

  // Returns the ranks in the job, indexed by rank in this communicator.
  const std::vector<int>& ranks() const { return ranks_; }
  bool contains(int job_rank) const { return inverse_[static_cast<size_t>(job_rank)] >= 0; }
  // Returns the rank of |job_rank| in this communicator, or -1 if |job_rank| is negative or not in
  // it.
  int32_t rank_of(int32_t job_rank) const {
    return job_rank < 0 ? -1 : inverse_[static_cast<size_t>(job_rank)];
  }

  void operation_begun() HETCOMM_UNDER_BATON { ++pending_; }
  void operation_ended() HETCOMM_UNDER_BATON { --pending_; }
  // Returns the number of operations that have begun but not ended.
  int64_t pending() const HETCOMM_UNDER_BATON { return pending_; }

 protected:
  // |gate| starts operations that wait for users' streams. |job_size| is the number of ranks in the
  // job. Call set_entry() before any operation is created.
  CommunicatorBase(OperationEntry& gate, std::vector<int> ranks, int job_size)
      : gate_(&gate), ranks_(std::move(ranks)), inverse_(static_cast<size_t>(job_size), -1) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      inverse_[static_cast<size_t>(ranks_[i])] = static_cast<int32_t>(i);
    }
  }
  ~CommunicatorBase() = default;
  // Sets the entry for operations that do not wait for a user's stream.
  void set_entry(OperationEntry& entry) { entry_ = &entry; }

 private:
  OperationEntry* entry_ = nullptr;
  OperationEntry* gate_;
  std::vector<int> ranks_;
  std::vector<int32_t> inverse_;  // by rank in the job; -1: not in the communicator
  int64_t pending_ HETCOMM_GUARDED_BY_BATON = 0;
};

}  // namespace hetcomm
