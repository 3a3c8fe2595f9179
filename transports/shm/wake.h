// Waking a peer that sleeps, at no cost for one that does not.
//
// The sleeper sets its asleep word, then looks once more; the producer publishes, then looks at
// the word. Each must see the other's store, which takes a full fence between store and load on
// both sides. The producer runs once per message, the sleeper rarely, so the sleeper pays for
// both: membarrier() runs a fence on every processor that executes a process which registered.
// The producer fences where the kernel lacks it for either process (Bell::fence).
//
// Ringing never blocks, whatever the peer does. A ring is a parcel over this side's own end of the
// local socket, sent with MSG_DONTWAIT: it depends on no flag that the peer can change, and writes
// to no descriptor of the peer. A peer that does not read its rings finds the socket full and
// readable, so it does not sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/wire.h"

namespace hetcomm::shm {

// Rings the peer.
class Bell {
 public:
  // |socket| is borrowed, until mute().
  Bell(Side& peer, int socket, bool fence) : asleep_(peer.asleep), socket_(socket), fence_(fence) {}

  // Call after a store that the peer may wait for. |reasons| are those for which it may have gone
  // to sleep.
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
  // Call before the socket is closed. The bell then no longer rings.
  void mute() { socket_ = -1; }

 private:
  void ring();

  std::atomic<uint32_t>& asleep_;
  int socket_;
  bool fence_;
};

}  // namespace hetcomm::shm
