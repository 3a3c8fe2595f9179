// Waking a peer that sleeps, at no cost for one that does not.
//
// The sleeper sets its asleep word, then looks once more; the producer publishes, then looks at
// the word. Each must see the other's store, which takes a full fence between store and load on
// both sides. The producer runs once per message, the sleeper rarely, so the sleeper pays for
// both: membarrier() runs a fence on every processor that executes a process which registered.
// Where the kernel lacks it for either process, the producer fences (Bell::fence).
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "src/base/unique_fd.h"
#include "transports/shm/wire.h"

namespace hetcomm::shm {

// Rings the peer.
class Bell {
 public:
  Bell(Side& peer, UniqueFd doorbell, bool fence)
      : asleep_(peer.asleep), doorbell_(std::move(doorbell)), fence_(fence) {}

  // After a store that the peer may wait for. |reasons| are those it may have gone to sleep for.
  void ring_if_asleep(uint32_t reasons) {
    if (fence_) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if ((asleep_.load(std::memory_order_relaxed) & reasons) != 0) [[unlikely]]
      ring();
  }
  bool fences() const { return fence_; }

 private:
  void ring();

  std::atomic<uint32_t>& asleep_;
  UniqueFd doorbell_;
  bool fence_;
};

}  // namespace hetcomm::shm
