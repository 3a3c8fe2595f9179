// Interfaces of the objects that a job drives: communicators and work in progress.
//
// All calls are under the baton.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/progress/driven.h"

namespace hetcomm {

// A JobMember is a communicator as its job sees it.
class JobMember : public MessagingCommunicator {
 public:
  // Returns the channel number that |job_rank|, a rank of the communicator, uses for the
  // communicator.
  virtual uint32_t channel_at(int job_rank) const HETCOMM_UNDER_BATON = 0;
  // Returns the communicator from which this one was split; null if there is none.
  virtual const JobMember* split_from() const HETCOMM_UNDER_BATON = 0;
  // Ends the communicator's collective operations on this rank. Does not fail if out of memory.
  virtual void end_collectives(const Status& why) HETCOMM_UNDER_BATON = 0;
  // Handles |job_rank|'s report of the collective operation that it has called. |note| is
  // untrusted.
  virtual void peer_calls(int job_rank, ConstByteSpan note) HETCOMM_UNDER_BATON = 0;
  // Handles a message of a collective operation for which this rank has no receive, at least not
  // yet.
  virtual void note_unexpected_message(int job_rank, uint64_t tag) HETCOMM_UNDER_BATON = 0;
  // Handles the loss of |job_rank|. Does not fail if out of memory.
  virtual void peer_lost(int job_rank) HETCOMM_UNDER_BATON = 0;

 protected:
  using MessagingCommunicator::MessagingCommunicator;
  ~JobMember() = default;
};

// A QuietTask is work in progress that requests a call when it has something to do. A pass calls
// only the tasks that have requested one.
class QuietTask {
 public:
  // Makes progress. Called only if the task has requested it since the last call.
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  // Records that the program has made no call for |pause_ns|, which is long. The library has made
  // no progress in that time.
  virtual void note_pause(uint64_t pause_ns) HETCOMM_UNDER_BATON = 0;

  // The task's positions in a TaskList. Only TaskList uses them.
  struct ListHook {
    size_t index = 0;
    bool is_ready = false;
    QuietTask* next = nullptr;
    QuietTask* previous = nullptr;
  };
  ListHook hook;

 protected:
  ~QuietTask() = default;
};

// A JobTask is work in progress that needs a call in every pass.
class JobTask : public Driven {
 public:
  // Returns whether a pass would do any work.
  virtual bool ready() const HETCOMM_UNDER_BATON = 0;

 protected:
  ~JobTask() = default;
};

}  // namespace hetcomm
