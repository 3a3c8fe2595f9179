#include "src/core/progress/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace hetcomm {

Status Doorbell::open(Poller& poller) {
  fd_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd_.valid()) return status_from_errno(errno, "eventfd");
  return poller.add(fd_.get(), EPOLLIN, *this);
}

void Doorbell::ring() const {
  const uint64_t one = 1;
  const ssize_t put = ::write(fd_.get(), &one, sizeof(one));
  static_cast<void>(put);  // on failure, the count is full and the doorbell rings anyway
}

void Doorbell::silence() const {
  uint64_t count = 0;
  const ssize_t got = ::read(fd_.get(), &count, sizeof(count));
  static_cast<void>(got);  // a failure means that the doorbell did not ring
}

}  // namespace hetcomm
