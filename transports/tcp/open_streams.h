// OpenStreams lists the sockets of all open streams. Any thread can use it to find out how much
// data has arrived on a stream, without holding the progress baton. The data path does not use this
// list.
#pragma once

#include <mutex>
#include <vector>

#include "transports/transport.h"

namespace hetcomm::tcp {

class OpenStreams {
 public:
  void add(int peer, const StreamId& stream, int fd);
  // Removes a stream. Must be called before the socket is closed.
  void remove(int fd);
  // See ReceiptSource::receipt(). [any-thread]
  bool receipt(int peer, const StreamId& stream, PathReceipt* out) const;

 private:
  struct Entry {
    int peer;
    int fd;
    StreamId stream;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // guarded by |mutex_|
};

}  // namespace hetcomm::tcp
