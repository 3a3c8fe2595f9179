// The interfaces by which a job knows what stands on it: communicators, and work to be driven.
//
// All calls are under the baton.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/progress/communicator_base.h"

namespace hetcomm {

// A communicator, as its job sees it.
class JobMember : public CommunicatorBase {
 public:
  // Number of the channel by which |job_rank|, a rank of it, is reached.
  virtual uint32_t channel_at(int job_rank) const HETCOMM_UNDER_BATON = 0;
  // Null for one that was not split from another.
  virtual const JobMember* split_from() const HETCOMM_UNDER_BATON = 0;
  // Ends its collective operations on this rank. Works without memory.
  virtual void end_collectives(const Status& why) HETCOMM_UNDER_BATON = 0;
  // |job_rank| reports which collective operation it has called. The bytes are not trusted.
  virtual void peer_calls(int job_rank, ConstByteSpan note) HETCOMM_UNDER_BATON = 0;
  // A message of a collective operation came that this rank does not wait for, yet or ever.
  virtual void note_unexpected_part(int job_rank, uint64_t tag) HETCOMM_UNDER_BATON = 0;
  // |job_rank| is gone. Works without memory.
  virtual void peer_lost(int job_rank) HETCOMM_UNDER_BATON = 0;

 protected:
  using CommunicatorBase::CommunicatorBase;
  ~JobMember() = default;
};

// Work in progress that asks for a call when it needs one. A pass calls no other work of this kind.
class QuietTask {
 public:
  // It has asked for a call since the last one.
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  // This rank made no call, and so no pass, for |pause_ns|, which is long.
  virtual void note_pause(uint64_t pause_ns) HETCOMM_UNDER_BATON = 0;

  // Its places in a TaskList, which owns them.
  struct Places {
    size_t index = 0;
    bool is_ready = false;
    QuietTask* next = nullptr;
    QuietTask* previous = nullptr;
  };
  Places places;

 protected:
  ~QuietTask() = default;
};

// Work in progress that needs a call in every pass.
class JobTask {
 public:
  // Whether a pass would find something to do.
  virtual bool ready() const HETCOMM_UNDER_BATON = 0;
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  virtual void tick(uint64_t now_ns) HETCOMM_UNDER_BATON = 0;
  // When tick() is wanted next; kForever: not at all.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
  // Arranges to be woken. False: there may be something to do.
  [[nodiscard]] virtual bool prepare_sleep(bool short_sleep) HETCOMM_UNDER_BATON = 0;
  // Whether a sleep that was prepared before may go on.
  virtual bool may_sleep_on() const HETCOMM_UNDER_BATON = 0;
  virtual void finish_sleep() HETCOMM_UNDER_BATON = 0;

 protected:
  ~JobTask() = default;
};

}  // namespace hetcomm
