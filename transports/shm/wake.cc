#include "transports/shm/wake.h"

namespace hetcomm::shm {

void Bell::ring() {
  // Whoever takes the word rings, so that a burst costs one system call. A later sleep that it
  // takes by mistake is rung too.
  if (asleep_.exchange(0, std::memory_order_seq_cst) == 0) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) is rung already; a peer that is gone needs no bell.
  [[maybe_unused]] const ssize_t written = write(doorbell_.get(), &one, sizeof(one));
}

}  // namespace hetcomm::shm
