// Poller is a small interface to epoll. A Poller and its watchers belong to one thread at a time
// (for a context's Poller, the one that holds the progress baton). Only wait() may be called by any
// thread, since it uses nothing but the epoll descriptor.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>

#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

class Watcher {
 public:
  // Handles |events| from epoll (EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR). May add, change and remove
  // any descriptors and destroy any watchers, itself included.
  virtual void on_events(uint32_t events) = 0;

 protected:
  ~Watcher() = default;
};

class Poller {
 public:
  static Result<Poller> create();
  Poller(Poller&&) = default;

  // Watches |fd|, level-triggered. |watcher| stays registered until remove(fd). Until then, forked
  // children close |fd| if it is a socket.
  Status add(int fd, uint32_t events, Watcher& watcher);
  Status modify(int fd, uint32_t events, Watcher& watcher);
  // Stops watching |fd|. Can be called inside on_events(). No event of |watcher| is delivered
  // afterwards. Must be called before the descriptor is closed.
  void remove(int fd, Watcher& watcher);

  // Delivers pending events without waiting. Returns the number of events delivered.
  int poll();
  // Sleeps until an event is ready or |timeout_ns| has passed (kForever: no limit). Delivers
  // nothing. [any-thread]
  void wait(uint64_t timeout_ns) const;

 private:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  static constexpr int kBatch = 64;
  UniqueFd epoll_;
  std::array<epoll_event, kBatch> batch_{};
  int batch_size_ = 0;
  int batch_next_ = 0;
};

}  // namespace hetcomm
