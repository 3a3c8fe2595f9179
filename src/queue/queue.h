// A Queue is one end of an ordered, bounded, asynchronous queue between two ranks (HetAuto, section
// 5.1).
#pragma once

#include <cstdint>
#include <memory>

#include "src/base/status.h"
#include "src/core/communicator/communicator.h"
#include "src/core/peer/transfer/track.h"

namespace hetcomm {

class Queue {
 public:
  static constexpr uint32_t kDefaultDepth = 4;
  static constexpr uint32_t kMaxWeight = 1000;

  // Opens one end of a queue. |peer| is the rank at the other end, and must be a rank of
  // |communicator|. |share| applies to a pushing end, where a weight of 0 means 1. For a pulling
  // end, all members of |share| must be 0. Fails if |terms| or |share| is out of range or the
  // context has no progress thread. May throw std::bad_alloc.
  static Result<std::unique_ptr<Queue>> create(Communicator& communicator, int32_t peer,
                                               Track::End end, const TrackTerms& terms,
                                               TrackShare share);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  // close() must have succeeded before destruction.
  ~Queue();

  // [any-thread]
  Communicator& communicator() { return communicator_; }
  Track& track() { return track_; }
  int32_t peer() const { return peer_; }
  bool pushes() const { return track_.is_sending(); }
  // Checks whether this end can push (if |pushes|) or pull an item of |bytes|. Returns the reason
  // if it cannot.
  Status check(bool pushes, uint64_t bytes) const;
  // Waits until no item is pending, for at most |timeout_ns| (0: HETCOMM_TIMEOUT). Returns false if
  // some items are still pending.
  bool drain(uint64_t timeout_ns);
  void cancel();
  // Closes this end. Fails with kBusy while items are pending. After success, only the destructor
  // may be called.
  Status close();

 private:
  Queue(Communicator& communicator, int32_t peer, Track::End end, uint32_t channel,
        const TrackTerms& terms, const TrackShare& share);

  Communicator& communicator_;
  const int32_t peer_;
  Track track_;
};

}  // namespace hetcomm
