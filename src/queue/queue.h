// Queue: one end of an ordered, bounded, asynchronous queue between two ranks (HetAuto, section
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

  // Opens one end. |peer|: the other rank of |communicator|, which exists. |share| applies to a
  // pushing end; a weight of 0 means 1. Fails if |terms| or |share| are out of range or the context
  // has no progress thread. May throw std::bad_alloc.
  static Result<std::unique_ptr<Queue>> create(Communicator& communicator, int32_t peer,
                                               Track::End end, const TrackTerms& terms,
                                               TrackShare share);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  // closed() must be true.
  ~Queue();

  // [any-thread]
  Communicator& communicator() { return communicator_; }
  Track& track() { return track_; }
  int32_t peer() const { return peer_; }
  bool pushes() const { return track_.is_sending(); }
  // Returns the reason for refusing an item with room for |bytes|.
  Status check(bool pushes, uint64_t bytes) const;
  // Waits for pending items. False: some are still pending after |timeout_ns|; 0: HETCOMM_TIMEOUT.
  bool drain(uint64_t timeout_ns);
  void cancel();
  // Closes the end, unless items are pending: kBusy. No function may be called afterwards.
  Status close();

 private:
  Queue(Communicator& communicator, int32_t peer, Track::End end, uint32_t channel,
        const TrackTerms& terms, const TrackShare& share);

  Communicator& communicator_;
  const int32_t peer_;
  Track track_;
};

}  // namespace hetcomm
