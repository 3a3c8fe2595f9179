#include "transports/rdma/memory_monitor.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace hetcomm::rdma {
namespace {

constexpr uint64_t kFeatures =
    UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;

UniqueFd open_events() {
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  return UniqueFd(static_cast<int>(fd));
}

}  // namespace

Result<std::unique_ptr<MemoryMonitor>> MemoryMonitor::create() {
  UniqueFd events = open_events();
  if (!events.valid()) return Status(Code::kUnsupported, "userfaultfd is not allowed here");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kFeatures;
  if (ioctl(events.get(), UFFDIO_API, &api) != 0 || (api.features & kFeatures) != kFeatures) {
    return Status(Code::kUnsupported, "userfaultfd has no events here");
  }
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return status_from_errno(errno, "eventfd");
  std::unique_ptr<MemoryMonitor> monitor(new MemoryMonitor(std::move(events), std::move(stop)));
  // Signals are the program's business.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  monitor->thread_ = std::thread([raw = monitor.get()] { raw->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return monitor;
}

MemoryMonitor::MemoryMonitor(UniqueFd events, UniqueFd stop)
    : events_(std::move(events)), stop_(std::move(stop)) {}

MemoryMonitor::~MemoryMonitor() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

bool MemoryMonitor::watch(const MemoryRange& range) {
  watched_.push_back(range);
  uffdio_register request{};
  request.range = {range.begin, range.end - range.begin};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  // Also where it is watched already: the pages may be others by now.
  if (ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0) return true;
  watched_.pop_back();
  return false;
}

void MemoryMonitor::unwatch(const MemoryRange& range) {
  const auto at = std::find_if(watched_.begin(), watched_.end(), [&](const MemoryRange& each) {
    return each.begin == range.begin && each.end == range.end;
  });
  if (at == watched_.end()) return;
  *at = watched_.back();
  watched_.pop_back();
  let_go(range, 0);
}

// What of |range| is in none of the ranges from number |from| on.
void MemoryMonitor::let_go(const MemoryRange& range, size_t from) {
  for (size_t i = from; i < watched_.size(); ++i) {
    const MemoryRange other = watched_[i];
    if (other.begin >= range.end || range.begin >= other.end) continue;
    if (range.begin < other.begin) let_go({range.begin, other.begin}, i + 1);
    if (other.end < range.end) let_go({other.end, range.end}, i + 1);
    return;
  }
  uffdio_range request{range.begin, range.end - range.begin};
  (void)ioctl(events_.get(), UFFDIO_UNREGISTER, &request);
}

void MemoryMonitor::take(Lost& out) {
  uint64_t now = sequence_.load(std::memory_order_acquire);
  while ((now & 1) != 0) {
    sched_yield();
    now = sequence_.load(std::memory_order_acquire);
  }
  const std::lock_guard lock(mutex_);
  seen_ = now;
  out = lost_;
  lost_.count = 0;
  lost_.all = false;
}

void MemoryMonitor::run() {
  while (true) {
    std::array<pollfd, 2> waiting = {{{events_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents != 0) return;
    if (waiting[0].revents != 0) read_events();
  }
}

void MemoryMonitor::read_events() {
  std::array<uffd_msg, 16> messages;
  sequence_.fetch_add(1, std::memory_order_seq_cst);
  // From here on callers of munmap may go on.
  const ssize_t got = read(events_.get(), messages.data(), sizeof(messages));
  const size_t count = got > 0 ? static_cast<size_t>(got) / sizeof(uffd_msg) : 0;
  {
    const std::lock_guard lock(mutex_);
    const auto add = [this](uint64_t begin, uint64_t end) {
      if (lost_.count == kMost) {
        lost_.all = true;
      } else {
        lost_.ranges[lost_.count++] = {begin, end};
      }
    };
    for (size_t i = 0; i < count; ++i) {
      const uffd_msg& message = messages[i];
      if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        add(message.arg.remove.start, message.arg.remove.end);
      } else if (message.event == UFFD_EVENT_REMAP) {
        add(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
        add(message.arg.remap.to, message.arg.remap.to + message.arg.remap.len);
      }
    }
  }
  sequence_.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace hetcomm::rdma
