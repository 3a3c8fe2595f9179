// PeerEvents tracks the state of a job's peers. It reads messages from the control plane, receives
// reports from pairs, and notifies the parts of the job that they concern. All calls are under the
// baton, except ready() and mail_waits().
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/job_members.h"
#include "src/core/job/paths/pair_paths.h"
#include "src/core/job/paths/pair_table.h"
#include "src/core/peer/pair_services.h"
#include "src/core/progress/driven.h"
#include "src/liveness/mailbox.h"

namespace hetcomm {

class PeerEvents final : public PairListener {
 public:
  // |job| is driven to receive the messages that a peer sent before it was lost.
  PeerEvents(ConnectionServices& services, PairTable& pairs, PairPaths& paths, JobMembers& members,
             Driven& job)
      : services_(services), pairs_(pairs), paths_(paths), members_(members), job_(job) {}
  PeerEvents(const PeerEvents&) = delete;
  PeerEvents& operator=(const PeerEvents&) = delete;

  // Returns whether all control connections are established, or creation has failed. [any-thread]
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  void set_ready() HETCOMM_UNDER_BATON;
  // Returns OK, or the reason why the job cannot be created.
  const Status& failure() const HETCOMM_UNDER_BATON { return failure_; }
  // Returns whether other ranks have declared this rank lost.
  bool was_declared_lost() const HETCOMM_UNDER_BATON { return declared_lost_; }

  // Returns whether messages from the control thread are waiting to be read. [any-thread]
  bool mail_waits() const {
    return services_.control != nullptr && services_.control->mailbox().waiting();
  }
  void read_mail() HETCOMM_UNDER_BATON;

  // PairListener
  void on_rank_lost(int rank, const Status& why) override HETCOMM_UNDER_BATON;
  void on_doubt(int rank, const StreamId& stream) override HETCOMM_UNDER_BATON;
  void on_memory_gone(int rank, uint64_t id, Code code) override HETCOMM_UNDER_BATON {
    members_.stream_waits().memory_gone(rank, id, code);
  }
  void on_unexpected_message(int rank, const WireHeader& header) override HETCOMM_UNDER_BATON {
    members_.on_unexpected_message(rank, header);
  }

 private:
  void handle(const liveness::Mail& mail) HETCOMM_UNDER_BATON;
  void lose(int rank, const Status& why) HETCOMM_UNDER_BATON;
  void on_peer_lost(int rank, const Status& why) HETCOMM_UNDER_BATON;
  void on_peer_left(int rank) HETCOMM_UNDER_BATON;
  void on_given_up(Pair& pair, const liveness::Mail& mail) HETCOMM_UNDER_BATON;
  void on_declared_lost(const Status& why) HETCOMM_UNDER_BATON;
  void on_refused(int rank, const std::string& why) HETCOMM_UNDER_BATON;
  void on_suspected(int rank) HETCOMM_UNDER_BATON;
  void on_path_answer(int rank, uint64_t asked_ns, ConstByteSpan bytes) HETCOMM_UNDER_BATON;

  ConnectionServices& services_;
  PairTable& pairs_;
  PairPaths& paths_;
  JobMembers& members_;
  Driven& job_;
  std::atomic<bool> ready_{false};
  Status failure_;
  bool declared_lost_ = false;
  bool reading_mail_ = false;
};

}  // namespace hetcomm
