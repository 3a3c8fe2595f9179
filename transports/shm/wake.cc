#include "transports/shm/wake.h"

#include <sys/socket.h>

#include <cerrno>

namespace hetcomm::shm {

void Bell::ring() {
  // Only the call that clears the word sends, so a burst costs one system call. If it clears the
  // word of a later sleep by mistake, it also wakes the peer from that sleep.
  const uint32_t taken = asleep_.exchange(0, std::memory_order_seq_cst);
  if (taken == 0 || socket_ < 0) return;
  const Parcel ring{ParcelKind::kRing, 0, 0, 0, 0};
  ssize_t sent = 0;
  do {
    sent = send(socket_, &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // If the socket is full (EAGAIN), the peer wakes in any case, and a peer that has exited need not
  // be woken. If there is no memory for the parcel, the word is restored, so that the next store
  // rings.
  if (sent < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
    asleep_.fetch_or(taken, std::memory_order_relaxed);
  }
}

}  // namespace hetcomm::shm
