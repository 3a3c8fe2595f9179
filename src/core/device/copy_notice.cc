#include "src/core/device/copy_notice.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace hetcomm {

int CopyNotice::fd() {
  if (fd_.valid() || poller_ == nullptr) return fd_.get();
  UniqueFd made(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (made.valid() && poller_->add(made.get(), EPOLLIN, *this).ok()) fd_ = std::move(made);
  return fd_.get();
}

// The events of copies are queried before each sleep, so the descriptor can be reset here.
void CopyNotice::on_events(uint32_t /*events*/) {
  uint64_t count = 0;
  const ssize_t got = ::read(fd_.get(), &count, sizeof(count));
  static_cast<void>(got);
}

}  // namespace hetcomm
