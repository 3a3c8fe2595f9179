#include "src/core/memory/copy_notice.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace hetcomm {

Status CopyNotice::open(Poller& poller) {
  fd_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd_.valid()) return status_from_errno(errno, "eventfd");
  return poller.add(fd_.get(), EPOLLIN, *this);
}

// Staging asks the events themselves before each sleep, so that the notice may be taken here.
void CopyNotice::on_events(uint32_t /*events*/) {
  uint64_t count = 0;
  const ssize_t got = ::read(fd_.get(), &count, sizeof(count));
  static_cast<void>(got);
}

}  // namespace hetcomm
