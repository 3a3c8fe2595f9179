// Holds the pairs of a job, one for each peer that this rank has communicated with, and the set of
// lost peers. Callers hold the baton.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/pair_services.h"
#include "src/core/progress/communicator_base.h"

namespace hetcomm {

class PairTable {
 public:
  PairTable(const PairServices& services, const PeerDirectory& peers)
      : services_(services),
        peers_(peers),
        pairs_(static_cast<size_t>(peers.size())),
        status_(static_cast<size_t>(peers.size())),
        left_(static_cast<size_t>(peers.size())) {}
  PairTable(const PairTable&) = delete;
  PairTable& operator=(const PairTable&) = delete;

  Pair& at(int rank) HETCOMM_UNDER_BATON {
    Pair* found = pairs_[static_cast<size_t>(rank)].get();
    return found != nullptr ? *found : make(rank);
  }
  // Returns the pair with |rank|; null if it was never used.
  Pair* find(int rank) const HETCOMM_UNDER_BATON { return pairs_[static_cast<size_t>(rank)].get(); }
  // Returns all pairs that exist.
  const std::vector<Pair*>& active() const HETCOMM_UNDER_BATON { return active_; }
  // Frees all pairs.
  void clear() HETCOMM_UNDER_BATON;

  int size() const HETCOMM_UNDER_BATON { return peers_.size(); }
  // Returns OK, or the reason why |rank| is lost.
  const Status& status(int rank) const HETCOMM_UNDER_BATON {
    return status_[static_cast<size_t>(rank)];
  }
  void set_lost(int rank, const Status& why) HETCOMM_UNDER_BATON {
    status_[static_cast<size_t>(rank)] = why;
    any_lost_ = true;
  }
  bool any_lost() const HETCOMM_UNDER_BATON { return any_lost_; }
  // Records that |rank| has ended all its operations and is leaving the job.
  void note_left(int rank) HETCOMM_UNDER_BATON { left_[static_cast<size_t>(rank)] = true; }
  bool has_left(int rank) const HETCOMM_UNDER_BATON { return left_[static_cast<size_t>(rank)]; }
  // Returns whether another rank of |communicator| can still send, or the communicator has only one
  // rank.
  bool any_live_sender(const CommunicatorBase& communicator) const HETCOMM_UNDER_BATON;
  bool all_senders_live(const CommunicatorBase& communicator) const HETCOMM_UNDER_BATON;
  // Returns the reason why some rank of |communicator| is lost; OK if none is.
  Status loss_in(const CommunicatorBase& communicator) const HETCOMM_UNDER_BATON;

  // Returns whether all messages have been sent, and those that may be lost have been acknowledged.
  bool flushed() const HETCOMM_UNDER_BATON;
  void ask_for_acknowledgements() HETCOMM_UNDER_BATON;
  // Fails every pair, because the operation that ran out of memory is unknown.
  void out_of_memory() HETCOMM_UNDER_BATON;

 private:
  Pair& make(int rank) HETCOMM_UNDER_BATON;

  const PairServices services_;
  const PeerDirectory& peers_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<Pair*> active_;
  std::vector<Status> status_;
  std::vector<bool> left_;
  bool any_lost_ = false;
};

}  // namespace hetcomm
