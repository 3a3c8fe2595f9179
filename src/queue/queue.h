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

  // Opens one end. |peer| is the rank at the other end and must be one of |communicator|. |share|
  // is for a pushing end, where a weight of 0 means 1. A pulling end must have a share of zeros.
  // Fails if |terms| or |share| are out of range or the context has no progress thread. May throw
  // std::bad_alloc.
  static Result<std::unique_ptr<Queue>> create(Communicator& communicator, int32_t peer,
                                               Track::End end, const TrackTerms& terms,
                                               TrackShare share);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  // close() must have succeeded.
  ~Queue();

  // [any-thread]
  Communicator& communicator() { return communicator_; }
  Track& track() { return track_; }
  int32_t peer() const { return peer_; }
  bool pushes() const { return track_.is_sending(); }
  // Returns ok if this end may push (|pushes|) or pull an item of |bytes|, or the reason why not.
  Status check(bool pushes, uint64_t bytes) const;
  // Waits for pending items, for at most |timeout_ns| (0: HETCOMM_TIMEOUT). Returns false if some
  // are still pending.
  bool drain(uint64_t timeout_ns);
  void cancel();
  // Closes the end. Fails with kBusy while items are pending. Once it has succeeded, only the
  // destructor may be called.
  Status close();

 private:
  Queue(Communicator& communicator, int32_t peer, Track::End end, uint32_t channel,
        const TrackTerms& terms, const TrackShare& share);

  Communicator& communicator_;
  const int32_t peer_;
  Track track_;
};

}  // namespace hetcomm
