// Wakes a sleeping peer. While the peer is awake, each message costs one load, and a fence if
// membarrier() is missing.
//
// The sleeper sets its asleep word, then checks again for work. The producer publishes, then checks
// the word. Each must see the other's store, which requires a full fence between store and load on
// both sides. The producer runs once per message and the sleeper runs rarely, so the sleeper pays
// for both: membarrier() executes a fence on every processor that runs a registered process. The
// producer executes its own fence if the kernel lacks membarrier() for either process
// (Bell::fences()). For a short sleep (Sleep::kShort) the sleeper omits membarrier().
//
// Ringing never blocks, whatever the peer does. A ring is a parcel sent through this side's end of
// the local socket with MSG_DONTWAIT. Ringing depends on no flag that the peer can change, and
// writes to none of the peer's descriptors. A peer that does not read its rings finds the socket
// full and readable, so it does not sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/wire.h"

namespace hetcomm::shm {

// Wakes the peer.
class Bell {
 public:
  // The caller owns |socket|, which stays open until mute().
  Bell(Side& peer, int socket, bool fence) : asleep_(peer.asleep), socket_(socket), fence_(fence) {}

  // Wakes the peer if it sleeps. Call after a store that the peer may wait for. |reasons|: the
  // possible reasons for which the peer sleeps.
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
  // Silences the bell. Call before the socket is closed.
  void mute() { socket_ = -1; }

 private:
  void ring();

  std::atomic<uint32_t>& asleep_;
  int socket_;
  bool fence_;
};

}  // namespace hetcomm::shm
