// Chooses the number of bulk streams of a connection when HETCOMM_TCP_STREAMS leaves it open.
//
// A connection starts with one stream. It gets one more, up to kMaxAutoStreams, when the kernel's
// account of the first stream shows that the windows of a single connection were the limit, and
// neither the sender's memory copy nor the link. That is so if, over kReviewBytes of traffic, at
// least a quarter of the time in which there was something to send was lost to the receive window
// or the send buffer, or if packets were lost on a path whose round trip (1 ms or more) makes
// recovery slow. It gets none on loopback, where the copy is the limit and more streams only cost
// cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm::tcp {

inline constexpr size_t kMaxAutoStreams = 4;

// The kernel's account of a stream, from its beginning.
struct StreamAccount {
  uint64_t busy_us = 0;     // time with something to send
  uint64_t limited_us = 0;  // part of it spent waiting for the receive window or the send buffer
  uint32_t retransmits = 0;
  uint32_t round_trip_us = 0;
};
// False if there is none.
bool read_account(int fd, StreamAccount& out);

class StreamCount {
 public:
  static constexpr uint64_t kReviewBytes = 64u << 20;

  // True when one more stream is worth it, given what has happened since the last review.
  bool review(const StreamAccount& account);
  // Adds |bytes| to the count. True: enough was sent since the last review.
  bool due(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ < kReviewBytes) return false;
    bytes_ = 0;
    return true;
  }

 private:
  uint64_t bytes_ = 0;
  StreamAccount last_;
};

}  // namespace hetcomm::tcp
