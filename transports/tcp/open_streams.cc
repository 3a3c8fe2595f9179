#include "transports/tcp/open_streams.h"

#include <algorithm>

#include "transports/tcp/path.h"

namespace hetcomm::tcp {

void OpenStreams::add(int peer, const StreamId& stream, int fd) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({peer, fd, stream});
}

void OpenStreams::remove(int fd) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& entry) { return entry.fd == fd; });
  if (at == entries_.end()) return;
  *at = entries_.back();
  entries_.pop_back();
}

// Queries the kernel while holding the lock, so that the socket stays open.
bool OpenStreams::receipt(int peer, const StreamId& stream, PathReceipt* out) const {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.peer == peer && entry.stream == stream;
  });
  return at != entries_.end() && read_receipt(at->fd, *out);
}

}  // namespace hetcomm::tcp
