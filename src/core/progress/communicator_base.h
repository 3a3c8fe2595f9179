// The part of a communicator that the rooms below it know: its ranks in the job, its channel, and
// how operations on it begin and end.
//
// Everything is under the baton, except ranks and their numbers, which do not change.
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

// An internal message of the library. It has no request handle; |handler| is told of its end.
struct InternalMessage {
  OperationKind kind = OperationKind::kSend;  // or kReceive
  int peer = 0;                               // rank of the job
  uint64_t tag = 0;                           // not matched with those of users' messages
  ByteSpan bytes;                             // host memory, untouched by others until the end
  EndHandler* handler = nullptr;
  uint64_t deadline_ns = kForever;  // by now_ns()
  bool high_priority = false;
  Track* track = nullptr;  // to or from |peer|: the message is its next run, whose place was taken
  std::span<const hetcomm_buffer_t> buffers{};  // instead of |bytes|, if there are any
  // With |buffers|: the operation holds it until |handler|'s on_end takes it back (swap_lists).
  PieceLists* lists = nullptr;
};

class CommunicatorBase {
 public:
  CommunicatorBase(const CommunicatorBase&) = delete;
  CommunicatorBase& operator=(const CommunicatorBase&) = delete;

  // Starts |operation|, which is pending; it may complete at once.
  virtual void start(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Continues |operation|, which start() has left waiting for users' streams.
  virtual void depart(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Ends |operation|, which is pending, with |code|. It completes when its memory is quiet. |why|
  // follows the description of the operation in its text. Works without memory.
  virtual void end(Operation& operation, Code code, std::string_view why) HETCOMM_UNDER_BATON = 0;

  // For people: the ranks that |operation|, which is pending, waits for, and what the transports
  // know of that. The text begins with "; ", or is empty.
  virtual std::string awaited_text(const Operation& operation) HETCOMM_UNDER_BATON = 0;

  // Makes a pending operation of this rank on behalf of |peer|, a rank of the job, on a checked
  // range of |registration|. Nobody waits for it. Null when memory is exhausted.
  virtual Operation* begin_for_peer(OperationKind kind, int peer, Registration& registration,
                                    uint64_t offset, uint64_t length) HETCOMM_UNDER_BATON = 0;
  // Makes a pending message that start_internal() starts; null when memory is exhausted.
  virtual Operation* make_internal(const InternalMessage& message) HETCOMM_UNDER_BATON = 0;
  // Starts |message|, which may end at once.
  virtual void start_internal(Operation& message) HETCOMM_UNDER_BATON = 0;
  // A peer's memory exists from now on, or is about to go.
  virtual void add_remote(RemoteMemory& remote) HETCOMM_EXCLUDES(baton_role) = 0;
  virtual void drop_remote(RemoteMemory& remote) HETCOMM_EXCLUDES(baton_role) = 0;

  // Ranks of the job, in the order of the communicator's own.
  const std::vector<int>& ranks() const { return ranks_; }
  bool contains(int job_rank) const { return inverse_[static_cast<size_t>(job_rank)] >= 0; }
  // Rank in this communicator of a rank of the job; -1 stays.
  int32_t rank_of(int32_t job_rank) const {
    return job_rank < 0 ? -1 : inverse_[static_cast<size_t>(job_rank)];
  }
  // Messages for the communicator are matched here.
  Channel& channel() const { return *channel_; }

  void operation_begun() HETCOMM_UNDER_BATON { ++pending_; }
  void operation_ended() HETCOMM_UNDER_BATON { --pending_; }
  // Operations that have begun and not ended.
  int64_t pending() const HETCOMM_UNDER_BATON { return pending_; }

 protected:
  // |job_size|: ranks of the job.
  CommunicatorBase(Channel& channel, std::vector<int> ranks, int job_size)
      : channel_(&channel), ranks_(std::move(ranks)), inverse_(static_cast<size_t>(job_size), -1) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      inverse_[static_cast<size_t>(ranks_[i])] = static_cast<int32_t>(i);
    }
  }
  ~CommunicatorBase() = default;

 private:
  Channel* channel_;
  std::vector<int> ranks_;
  std::vector<int32_t> inverse_;  // by rank of the job; -1: not in the communicator
  int64_t pending_ HETCOMM_GUARDED_BY_BATON = 0;
};

}  // namespace hetcomm
