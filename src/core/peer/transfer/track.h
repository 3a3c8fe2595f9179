// A Track is one end of a series of transfers from one rank to another. The receiver grants the
// transfers without an announcement.
//
// Each transfer is a run. Both ends start runs, numbered from 0. The data of run n of the sender is
// received by run n of the receiver. The receiver grants a run as soon as it has started it, and
// the sender finds the grants when it starts the same run. A run costs only its data and one grant
// per chunk. Nothing is announced or matched. The sending end chooses the track's number, and sends
// it when it opens the track.
//
//   sender                                        receiver
//     kTrackOpen (number)                    -->    finds the end with the same channel and tag
//                                           <--    kGrant (run_id) ...
//     put into the chunk                    -->
//     kTrackLength, if the message is short  -->
//
// A run that ends early at one end also ends at the other. When one end is closed, all later runs
// of the other end fail. If both ends know that a run does not take place, both skip it without a
// message. The sending end reports its position from time to time (kTrackAt). The objects of
// transfer.h carry out single runs. Tracks (tracks.h) manages the tracks of a pair.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/room.h"
#include "src/base/status.h"
#include "src/core/peer/matching/track_base.h"
#include "src/core/peer/sharing/pacer.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation_queue.h"

namespace hetcomm {

class SendTransfer;

// The terms of an end, which determine the other end that it is joined to. Ends of queues with the
// same |tag| are joined in the order in which they were opened. Ends of redistributions are joined
// if they have the same |use|, |tag| and |content|. If one of the two ends has already been closed,
// |plan| must also be equal. If |depth| or |most_bytes| of joined ends differ, the track fails with
// kMismatch.
struct TrackTerms {
  uint64_t tag = 0;
  uint64_t most_bytes = 0;
  uint32_t depth = 1;    // most runs in flight at the same time
  uint32_t use = 0;      // 0: queue; otherwise 1 + the hop of a reshard plan (src/reshard)
  uint64_t content = 0;  // hash of the intended content of the messages
  uint32_t plan = 0;     // this rank's number for its plan with the other rank (reshard_board.h)
  // Only for the sending end: this rank's transports that are near the data, like
  // AnnounceBody::transports.
  uint64_t transports = ~uint64_t{0};
};

// One run of the sending end that has been started or granted.
struct SendRun {
  enum class State : uint8_t {
    kAhead,    // this rank has not started it
    kStarted,  // it has a transfer
    kUntold,   // it has ended here; the peer is notified when it grants the run
    kStopped,  // it has ended at the receiver, and is not started here
    kOver,
  };
  State state = State::kAhead;
  bool is_given_up = false;  // both ends know that the run does not take place
  Status why;                // why the run ended
  SendTransfer* transfer = nullptr;
  std::vector<Grant> grants;  // grants that arrived before the start
};

// SendRuns holds the consecutive runs of a sending end, from the first one that is not over. Their
// memory is reused.
class SendRuns {
 public:
  uint64_t first() const HETCOMM_UNDER_BATON { return first_; }
  uint64_t end() const HETCOMM_UNDER_BATON { return first_ + count_; }
  // Returns the entry for |run|, or null if |run| is before first() or unknown.
  SendRun* find(uint64_t run) HETCOMM_UNDER_BATON {
    return run >= first_ && run - first_ < count_ ? &at(run) : nullptr;
  }
  // Returns the entry for |run|, which is not before first(). Adds it if needed. May throw
  // std::bad_alloc.
  SendRun& reach(uint64_t run) HETCOMM_UNDER_BATON {
    if (run - first_ >= ring_.size()) grow(run - first_ + 1);
    while (count_ <= run - first_) {
      SendRun& fresh = at(first_ + count_);
      fresh.state = SendRun::State::kAhead;
      fresh.is_given_up = false;
      fresh.transfer = nullptr;
      fresh.grants.clear();
      ++count_;
    }
    return at(run);
  }
  void drop_old() HETCOMM_UNDER_BATON {
    while (count_ > 0 && at(first_).state == SendRun::State::kOver) {
      ++first_;
      --count_;
    }
  }
  // Marks |count| runs starting at |from| as over. Earlier runs continue. Returns false if more
  // than |most| runs would be held. May throw std::bad_alloc.
  bool skip(uint64_t from, uint64_t count, uint64_t most) HETCOMM_UNDER_BATON {
    const uint64_t end = from + count;
    if (from > first_ && end - first_ > most) return false;
    if (from == first_) {
      const uint64_t past = std::min(count, count_);
      first_ = end;
      count_ -= past;
      drop_old();
      return true;
    }
    (void)reach(end - 1);
    for (uint64_t run = from; run < end; ++run) {
      at(run).state = SendRun::State::kOver;
      at(run).grants.clear();
    }
    return true;
  }
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON {
    for (uint64_t i = 0; i < count_; ++i) use(at(first_ + i));
  }

 private:
  static constexpr size_t kGrantsOfRun = 4;  // enough for a typical message

  SendRun& at(uint64_t run) HETCOMM_UNDER_BATON { return ring_[run & (ring_.size() - 1)]; }
  void grow(uint64_t least) HETCOMM_UNDER_BATON {
    size_t size = ring_.empty() ? 8 : ring_.size();
    while (size < least) size *= 2;
    std::vector<SendRun> bigger(size);
    for (SendRun& run : bigger) run.grants.reserve(kGrantsOfRun);
    for (uint64_t i = 0; i < count_; ++i) {
      bigger[(first_ + i) & (size - 1)] = std::move(at(first_ + i));
    }
    ring_.swap(bigger);
  }

  std::vector<SendRun> ring_;  // indexed by the low bits of run numbers
  uint64_t first_ = 0;
  uint64_t count_ = 0;
};

// A TrackWatcher is notified when a track is closed, even while no run is in flight.
class TrackWatcher {
 public:
  // Called in an upcall when a track will start no more runs.
  virtual void track_closed() HETCOMM_UNDER_BATON = 0;

 protected:
  ~TrackWatcher() = default;
};

class Track final : public TrackBase {
 public:
  enum class End : uint8_t { kSending, kReceiving };
  static constexpr uint32_t kMaxDepth = 1024;
  // A receiver grants no run that is this far ahead of its sender. A sending end starts no run
  // while it holds this many.
  static constexpr uint64_t kMaxAhead = 4096;
  // The furthest that a run can be ahead of the first one that the sender holds.
  static constexpr uint64_t kMaxSpan = 2 * kMaxAhead + 2 * kMaxDepth;

  // |peer| is the number of the other rank in the job, and |channel| is the receiver's channel
  // number. |share| applies to a sending end only. If its weight is 0, the track is not paced.
  Track(End end, CommunicatorBase& communicator, int peer, uint32_t channel,
        const TrackTerms& terms, const TrackShare& share = {})
      : TrackBase(terms.depth),
        end_(end),
        communicator_(communicator),
        peer_(peer),
        channel_(channel),
        terms_(terms),
        flow_(share) {}
  bool is_sending() const { return end_ == End::kSending; }
  CommunicatorBase& communicator() { return communicator_; }
  int peer() const { return peer_; }
  uint32_t channel() const { return channel_; }
  const TrackTerms& terms() const { return terms_; }

  // The following members require the baton.
  // Returns why no more runs can start, or kOk. Only the first reason is kept, since a rank that
  // has reported a reason and then exits is also reported as lost.
  const Status& closed() const HETCOMM_UNDER_BATON { return closed_; }
  void set_closed(const Status& why) HETCOMM_UNDER_BATON {
    if (!closed_.ok()) return;
    closed_ = why;
    if (watcher_ != nullptr) watcher_->track_closed();
  }
  // Sets the watcher, before the track is opened. |watcher| must outlive the track.
  void set_watcher(TrackWatcher& watcher) { watcher_ = &watcher; }
  // Returns whether opened() was called. number() is valid from then on.
  bool is_open() const HETCOMM_UNDER_BATON { return open_; }
  uint32_t number() const HETCOMM_UNDER_BATON { return number_; }
  void opened(uint32_t number) HETCOMM_UNDER_BATON {
    number_ = number;
    open_ = true;
  }
  uint64_t next_run() const HETCOMM_UNDER_BATON { return next_run_; }
  uint64_t take_number() HETCOMM_UNDER_BATON { return next_run_++; }
  void pass(uint64_t runs) HETCOMM_UNDER_BATON { next_run_ += runs; }

  // The following members are for the sending end.
  SendRuns& runs() HETCOMM_UNDER_BATON { return runs_; }
  Pacer::Flow& flow() HETCOMM_UNDER_BATON { return flow_; }
  // True if grants that arrived before their runs will be handled at the end of the pass.
  bool is_left = false;
  // Returns whether another run can start, which is always so on the receiving end. While a run
  // does not end, all later runs are held in runs(), so their number is limited.
  bool has_room() HETCOMM_UNDER_BATON {
    return !is_sending() || next_run_ - runs_.first() < kMaxAhead;
  }
  // Returns whether the position of this end should be reported to the peer again because it has
  // advanced by many runs. The caller must then report it.
  bool take_telling() HETCOMM_UNDER_BATON {
    if (next_run_ - told_run_ < kMaxAhead / 2) return false;
    told_run_ = next_run_;
    return true;
  }
  // Records that the transfer of run |run| has ended with |why|. |peer_knows| is true if the peer
  // does not have to be notified.
  void run_ended(uint64_t run, const Status& why, bool peer_knows) HETCOMM_UNDER_BATON {
    if (SendRun* entry = runs_.find(run); entry != nullptr) {
      entry->transfer = nullptr;
      const bool is_known = why.ok() || peer_knows || entry->is_given_up;
      entry->state = is_known ? SendRun::State::kOver : SendRun::State::kUntold;
      entry->why = why;
      entry->grants.clear();
    }
    runs_.drop_old();
  }

  // The following members are for the receiving end. transports() returns the sender's transports
  // that are near its data, like AnnounceBody::transports.
  uint64_t transports() const HETCOMM_UNDER_BATON { return transports_; }
  void set_transports(uint64_t transports) HETCOMM_UNDER_BATON { transports_ = transports; }
  // Returns whether the sender limits its runs to a rate. If so, they do not show how fast a
  // connection is.
  bool peer_has_rate() const HETCOMM_UNDER_BATON { return peer_has_rate_; }
  void set_peer_has_rate(bool has_rate) HETCOMM_UNDER_BATON { peer_has_rate_ = has_rate; }
  // Records that the sender has started run |run|.
  void run_arrived(uint64_t run) HETCOMM_UNDER_BATON { peer_is_at(run + 1); }
  // Returns how many runs before |run| are not yet known to have been started by the sender.
  uint64_t ahead(uint64_t run) const HETCOMM_UNDER_BATON { return run - std::min(run, peer_runs_); }
  // Records that the sender has passed all runs before |run|.
  void peer_is_at(uint64_t run) HETCOMM_UNDER_BATON { peer_runs_ = std::max(peer_runs_, run); }
  // Returns the runs that were started before the track was open, or that are too far ahead of the
  // sender.
  OperationQueue& waiting() HETCOMM_UNDER_BATON { return waiting_; }
  // A run that ended while it was in waiting(). make_room() reserves entries for all runs in
  // flight.
  struct UntoldStop {
    uint64_t run;
    Status why;
  };
  std::vector<UntoldStop>& untold() HETCOMM_UNDER_BATON { return untold_; }
  void make_room() HETCOMM_UNDER_BATON { hetcomm::make_room(untold_, taken() + size_t{1}); }

 private:
  const End end_;
  CommunicatorBase& communicator_;
  const int peer_;
  const uint32_t channel_;
  const TrackTerms terms_;
  TrackWatcher* watcher_ = nullptr;

  uint32_t number_ = 0;
  bool open_ = false;
  Status closed_;
  uint64_t next_run_ = 0;
  SendRuns runs_;
  Pacer::Flow flow_;
  uint64_t told_run_ = 0;
  uint64_t transports_ = ~uint64_t{0};
  bool peer_has_rate_ = false;
  uint64_t peer_runs_ = 0;
  OperationQueue waiting_;
  std::vector<UntoldStop> untold_;
};

// Returns the track that |operation| is a run of. Requires the option |on_track|.
inline Track& track_of(const Operation& operation) {
  return static_cast<Track&>(*track_run(operation).track);
}

}  // namespace hetcomm
