// The part of a communicator that lower layers know: its ranks in the job, its channel, and how its
// operations are made, started and ended.
//
// All calls are under the baton, except for ranks and their numbers, which do not change.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/progress/operation.h"
#include "src/system/clock.h"

namespace hetcomm {

struct Channel;
class Track;
class Registration;
class RemoteMemory;

// An internal message of the library. It has no request handle; |handler| is notified of its end.
struct InternalMessage {
  OperationKind kind = OperationKind::kSend;  // or kReceive
  int peer = 0;                               // rank in the job
  uint64_t tag = 0;                           // tags of users' messages never match it
  ByteSpan bytes;                             // host memory, untouched by others until the end
  EndHandler* handler = nullptr;
  uint64_t deadline_ns = kForever;  // by now_ns()
  bool high_priority = false;
  Track* track = nullptr;  // to or from |peer|; the message is its next run, with a permit
  std::span<const hetcomm_buffer_t> buffers{};  // used instead of |bytes| unless empty
  // Used with |buffers|: the operation holds the lists until |handler|'s on_end reclaims them
  // (swap_lists).
  PieceLists* lists = nullptr;
};

// The place to which an operation is handed to be started.
class OperationEntry {
 public:
  // Starts |operation|, which is pending; it may complete immediately.
  virtual void start(Operation& operation) HETCOMM_UNDER_BATON = 0;

 protected:
  ~OperationEntry() = default;
};

// Makes the operations of one communicator, and starts them.
class OperationStarter : public OperationEntry {
 public:
  // Starts |operation|, which has begun and has waited for users' streams.
  virtual void depart(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Records the start and the deadline of |operation|, which was started.
  virtual void note_started(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Makes a pending operation of this rank on behalf of |peer|, a rank of the job, on a checked
  // range of |registration|. No caller waits for it. Returns null if out of memory.
  virtual Operation* begin_for_peer(OperationKind kind, int peer, Registration& registration,
                                    uint64_t offset, uint64_t length) HETCOMM_UNDER_BATON = 0;
  // Makes a pending message that start_internal() starts. Returns null if out of memory.
  virtual Operation* make_internal(const InternalMessage& message) HETCOMM_UNDER_BATON = 0;
  // Starts |message|, which may end immediately.
  virtual void start_internal(Operation& message) HETCOMM_UNDER_BATON = 0;

 protected:
  ~OperationStarter() = default;
};

class CommunicatorBase {
 public:
  CommunicatorBase(const CommunicatorBase&) = delete;
  CommunicatorBase& operator=(const CommunicatorBase&) = delete;

  // Ends |operation|, which is pending, with |code|. It completes once its memory is no longer
  // accessed. |why| follows the description of the operation in its error text. Allocates no
  // memory.
  virtual void end(Operation& operation, Code code, std::string_view why) HETCOMM_UNDER_BATON = 0;

  OperationStarter& starter() const { return *starter_; }
  // Returns where |operation|, which is to be started, goes first.
  OperationEntry& entry_of(const Operation& operation) const {
    return operation.is_gated() ? *gate_ : *starter_;
  }

  // Returns readable text: the ranks that |operation|, which is pending, waits for, and what the
  // transports know of them. The text begins with "; ", or is empty.
  virtual std::string awaited_text(const Operation& operation) HETCOMM_UNDER_BATON = 0;

  // Count the imported memories of peers.
  virtual void add_remote(RemoteMemory& remote) HETCOMM_EXCLUDES(baton_role) = 0;
  virtual void drop_remote(RemoteMemory& remote) HETCOMM_EXCLUDES(baton_role) = 0;

  // Ranks in the job, by rank in this communicator.
  const std::vector<int>& ranks() const { return ranks_; }
  bool contains(int job_rank) const { return inverse_[static_cast<size_t>(job_rank)] >= 0; }
  // Returns the rank in this communicator of |job_rank|; -1 for -1.
  int32_t rank_of(int32_t job_rank) const {
    return job_rank < 0 ? -1 : inverse_[static_cast<size_t>(job_rank)];
  }
  // The channel on which messages for this communicator are matched.
  Channel& channel() const { return *channel_; }

  void operation_begun() HETCOMM_UNDER_BATON { ++pending_; }
  void operation_ended() HETCOMM_UNDER_BATON { --pending_; }
  // Number of operations that have begun and not ended.
  int64_t pending() const HETCOMM_UNDER_BATON { return pending_; }

 protected:
  // |gate|: for operations that wait for users' streams. |job_size|: number of ranks in the job.
  // set_starter() follows before any operation is made.
  CommunicatorBase(Channel& channel, OperationEntry& gate, std::vector<int> ranks, int job_size)
      : channel_(&channel),
        gate_(&gate),
        ranks_(std::move(ranks)),
        inverse_(static_cast<size_t>(job_size), -1) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      inverse_[static_cast<size_t>(ranks_[i])] = static_cast<int32_t>(i);
    }
  }
  ~CommunicatorBase() = default;
  void set_starter(OperationStarter& starter) { starter_ = &starter; }

 private:
  Channel* channel_;
  OperationStarter* starter_ = nullptr;
  OperationEntry* gate_;
  std::vector<int> ranks_;
  std::vector<int32_t> inverse_;  // by rank in the job; -1: not in the communicator
  int64_t pending_ HETCOMM_GUARDED_BY_BATON = 0;
};

}  // namespace hetcomm
