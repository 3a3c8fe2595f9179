#include "src/net/poller.h"

#include <poll.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>

#include "src/net/fork_guard.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

Status control(int epoll, int operation, int fd, uint32_t events, Watcher* watcher) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = watcher;
  if (epoll_ctl(epoll, operation, fd, &event) != 0) return status_from_errno(errno, "epoll_ctl");
  return {};
}

bool is_socket(int fd) {
  struct stat now {};
  return fstat(fd, &now) == 0 && S_ISSOCK(now.st_mode);
}

}  // namespace

Result<Poller> Poller::create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return status_from_errno(errno, "epoll_create1");
  return Poller(std::move(epoll));
}

Status Poller::add(int fd, uint32_t events, Watcher& watcher) {
  const Status status = control(epoll_.get(), EPOLL_CTL_ADD, fd, events, &watcher);
  if (status.ok() && is_socket(fd)) close_in_forked_children(fd);
  return status;
}

Status Poller::modify(int fd, uint32_t events, Watcher& watcher) {
  return control(epoll_.get(), EPOLL_CTL_MOD, fd, events, &watcher);
}

void Poller::remove(int fd, Watcher& watcher) {
  forget_in_forked_children(fd);
  epoll_event unused{};
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &unused);
  // Drops events that the kernel has reported but poll() has not delivered. If the watcher has
  // other descriptors, the kernel reports their events again, because they are level-triggered.
  for (int i = batch_next_; i < batch_size_; ++i) {
    epoll_event& event = batch_[static_cast<size_t>(i)];
    if (event.data.ptr == &watcher) event.data.ptr = nullptr;
  }
}

int Poller::poll() {
  // The position is a member, so that remove() can see the remaining events. A nested poll() inside
  // on_events() ends this loop early. Nothing is lost, because events are level-triggered.
  batch_next_ = 0;
  batch_size_ = epoll_wait(epoll_.get(), batch_.data(), kBatch, 0);
  int delivered = 0;
  while (batch_next_ < batch_size_) {
    const epoll_event event = batch_[static_cast<size_t>(batch_next_++)];
    if (event.data.ptr == nullptr) continue;
    static_cast<Watcher*>(event.data.ptr)->on_events(event.events);
    ++delivered;
  }
  return delivered;
}

void Poller::wait(uint64_t timeout_ns) const {
  pollfd descriptor{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  // An interrupted wait returns early, as after any other wake-up.
  ppoll(&descriptor, 1, timeout_ns == kForever ? nullptr : &timeout, nullptr);
}

}  // namespace hetcomm
