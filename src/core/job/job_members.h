// Holds the communicators of a job, and reports failures to them. A communicator can be aborted,
// its collective operations can fail, and its ranks can be lost. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/early_notices.h"
#include "src/core/job/job_member.h"
#include "src/core/job/operation_ender.h"
#include "src/core/job/paths/pair_table.h"
#include "src/core/job/stream_waits.h"
#include "src/core/peer/pair_services.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

class JobMembers {
 public:
  JobMembers(ConnectionServices& services, ChannelTable& channels, const PairTable& pairs,
             OperationEnder& ender, StreamWaits& stream_waits)
      : services_(services),
        channels_(channels),
        pairs_(pairs),
        ender_(ender),
        stream_waits_(stream_waits) {}
  JobMembers(const JobMembers&) = delete;
  JobMembers& operator=(const JobMembers&) = delete;

  StreamWaits& stream_waits() HETCOMM_UNDER_BATON { return stream_waits_; }
  void add(JobMember* communicator) HETCOMM_UNDER_BATON;
  void remove(JobMember* communicator) HETCOMM_UNDER_BATON;
  // Marks |communicator| as about to be destroyed. Returns whether other communicators remain. They
  // keep the connections open.
  bool others_stay(JobMember& communicator) HETCOMM_UNDER_BATON;

  // Closes |channel| and drops its queued messages. Later messages are dropped on arrival.
  void close_channel(Channel& channel) HETCOMM_UNDER_BATON;
  // Closes |channel|, and notifies all ranks that its communicator is aborted.
  void give_up_channel(Channel& channel) HETCOMM_UNDER_BATON;
  // Ends every operation on |communicator|, and on those split from it, with |why|. With |publish|,
  // notifies all ranks, which do the same, or throws std::bad_alloc and has no effect. Without
  // |publish|, does not fail if out of memory.
  void abort(JobMember& communicator, const Status& why, bool publish) HETCOMM_UNDER_BATON;
  // Ends the collective operations of |communicator|. With |publish|, notifies all ranks, which do
  // the same.
  void fail_collectives(JobMember& communicator, const Status& why,
                        bool publish) HETCOMM_UNDER_BATON;

  // Handles the loss of |rank|: ends the receives that wait for it. Ends receives from any rank if
  // no sender is left, or if they must fail when any sender is lost. Does not fail if out of
  // memory.
  void peer_lost(int rank, const Status& why) HETCOMM_UNDER_BATON;
  // Handle a report of |origin| about the communicator for which it uses the number |channel|.
  void on_abort(int origin, uint32_t channel, const std::string& reason) HETCOMM_UNDER_BATON;
  void on_collectives_failed(int origin, uint32_t channel, const Status& why) HETCOMM_UNDER_BATON;
  void on_call(int origin, uint32_t channel, ConstByteSpan note) HETCOMM_UNDER_BATON;
  // Handles a collective operation's message from |rank| that no receive waits for.
  void on_unexpected_message(int rank, const WireHeader& header) HETCOMM_UNDER_BATON;

 private:
  struct Member {
    JobMember* communicator = nullptr;
    bool is_going = false;   // about to be destroyed
    uint64_t closed_by = 0;  // the number of the abort() call that has closed it; 0: none
  };

  // Returns whether |channel| is the number that |origin| uses for |communicator|.
  static bool is_known_by(const JobMember& communicator, int origin,
                          uint32_t channel) HETCOMM_UNDER_BATON {
    return communicator.contains(origin) && communicator.channel_at(origin) == channel;
  }
  // Returns the communicator for which |origin| uses the number |channel|; null if this rank does
  // not have it.
  JobMember* find(int origin, uint32_t channel) const HETCOMM_UNDER_BATON;
  bool contains(const MessagingCommunicator& communicator) const HETCOMM_UNDER_BATON;
  bool was_closed_by(uint64_t abort,
                     const MessagingCommunicator* communicator) const HETCOMM_UNDER_BATON;
  void close_aborted(JobMember& communicator, const Status& why,
                     uint64_t number) HETCOMM_UNDER_BATON;
  void close_aborted_children(const Status& why, bool publish, uint64_t number) HETCOMM_UNDER_BATON;
  void take_early_notices(JobMember& communicator) HETCOMM_UNDER_BATON;
  void drop_announced_by(int rank) HETCOMM_UNDER_BATON;
  void drop_queued(Channel& channel) HETCOMM_UNDER_BATON;
  void publish_abort(uint32_t channel, std::string_view why) HETCOMM_UNDER_BATON;

  ConnectionServices& services_;
  ChannelTable& channels_;
  const PairTable& pairs_;
  OperationEnder& ender_;
  StreamWaits& stream_waits_;
  std::map<uint32_t, Member> members_;  // by channel number
  size_t going_ = 0;
  uint64_t aborts_ = 0;  // number of abort() calls that have closed something
  EarlyNotices early_;
};

}  // namespace hetcomm
