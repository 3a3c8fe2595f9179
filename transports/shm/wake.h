// Wakes a sleeping peer. While the peer is awake, each message costs one load, and a fence if
// membarrier() is missing.
//
// The sleeper sets its |asleep| word, then checks again for work. The producer publishes, then
// checks the word. Each must see the other's store, which requires a full fence between store and
// load on both sides. The producer runs for every message and the sleeper runs rarely, so the
// sleeper executes both fences: membarrier() executes one on every processor that runs a registered
// process. The producer executes its own fence if the kernel lacks membarrier() for either process
// (Bell::fences()). Before a short sleep (Sleep::kShort) the sleeper omits membarrier().
//
// Ringing never blocks, regardless of the peer. A ring is a parcel that is sent through this side's
// end of the local socket with MSG_DONTWAIT. It depends on no flag that the peer can change, and
// writes to none of the peer's descriptors. If a peer does not read these parcels, its socket
// becomes full and stays readable, so the peer does not sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/wire.h"

namespace hetcomm::shm {

// The bell of one connection, with which this side wakes the peer.
class Bell {
 public:
  // The caller owns |socket|, which must stay open until mute().
  Bell(Side& peer, int socket, bool fence) : asleep_(peer.asleep), socket_(socket), fence_(fence) {}

  // Wakes the peer if it sleeps and waits for one of the events |reasons| (kWakeOnSlot,
  // kWakeOnRoom). Called after the store that causes these events.
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
  // Makes the bell do nothing. Called before the socket is closed.
  void mute() { socket_ = -1; }

 private:
  void ring();

  std::atomic<uint32_t>& asleep_;
  int socket_;
  bool fence_;
};

}  // namespace hetcomm::shm
