// A MessagingCommunicator is the part of a communicator that the code below src/core/communicator
// uses: the channel on which its messages are matched, and the calls that make and start its
// operations.
//
// All callers hold the baton.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/matching/channel_table.h"
#include "src/core/peer/matching/track_base.h"
#include "src/core/progress/operation.h"
#include "src/system/clock.h"

namespace hetcomm {

// An internal message of the library. It has no request handle. |handler| is notified when it
// completes.
struct InternalMessage {
  OperationKind kind = OperationKind::kSend;  // or kReceive
  int peer = 0;                               // rank in the job
  uint64_t tag = 0;                           // tags of users' messages never match it
  ByteSpan bytes;                             // host memory; in use until the message completes
  EndHandler* handler = nullptr;
  uint64_t deadline_ns = kForever;  // on the clock of now_ns()
  bool high_priority = false;
  // A track to or from |peer|, or null. The message is the track's next run, and holds a permit of
  // it.
  TrackBase* track = nullptr;
  std::span<const hetcomm_buffer_t> buffers{};  // used instead of |bytes| unless empty
  // Used with |buffers|: the operation holds the lists until |handler|'s on_end reclaims them
  // (swap_lists).
  PieceLists* lists = nullptr;
};

// Creates and starts the operations of one communicator.
class OperationStarter : public OperationEntry {
 public:
  // Starts |operation|, which was submitted earlier and has been waiting for the user's streams.
  virtual void depart(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Records the start and the deadline of |operation|, which was started.
  virtual void note_started(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Creates a pending operation of this rank on behalf of |peer|, a rank of the job. It accesses a
  // range of |registration| that was checked before. No user waits for it. Returns null if out of
  // memory.
  virtual Operation* begin_for_peer(OperationKind kind, int peer, Registration& registration,
                                    uint64_t offset, uint64_t length) HETCOMM_UNDER_BATON = 0;
  // Creates a pending message that start_internal() starts. Returns null if out of memory.
  virtual Operation* make_internal(const InternalMessage& message) HETCOMM_UNDER_BATON = 0;
  // Starts |message|, which may complete immediately.
  virtual void start_internal(Operation& message) HETCOMM_UNDER_BATON = 0;

 protected:
  ~OperationStarter() = default;
};

// The base class of all communicators.
class MessagingCommunicator : public MemoryCommunicator {
 public:
  // Returns the channel on which messages for this communicator are matched.
  Channel& channel() const { return *channel_; }
  OperationStarter& starter() const { return *starter_; }

 protected:
  // The arguments other than |channel| are passed to the base class. set_starter() must be called
  // before any operation is created.
  MessagingCommunicator(Channel& channel, OperationEntry& gate, std::vector<int> ranks,
                        int job_size)
      : MemoryCommunicator(gate, std::move(ranks), job_size), channel_(&channel) {}
  ~MessagingCommunicator() = default;
  void set_starter(OperationStarter& starter) {
    starter_ = &starter;
    set_entry(starter);
  }

 private:
  Channel* channel_;
  OperationStarter* starter_ = nullptr;
};

inline MessagingCommunicator& messaging(CommunicatorBase& communicator) {
  return static_cast<MessagingCommunicator&>(communicator);
}
inline MessagingCommunicator& communicator_of(const Operation& operation) {
  return messaging(*operation.communicator);
}

}  // namespace hetcomm
