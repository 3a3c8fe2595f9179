// Chooses the number of a connection's bulk streams if HETCOMM_TCP_STREAMS does not set it.
//
// A connection starts with one stream. It gets another, up to kMaxAutoStreams, if the kernel's
// statistics for the first stream show that the limit was the window of a single stream rather than
// the sender's memory copy or the link. One criterion is that, over kReviewBytes of traffic, at
// least a quarter of the time with data to send was spent waiting for the receive window or the
// send buffer. The other is that packets were lost on a path whose round trip (1 ms or more) makes
// recovery slow. Loopback connections get no further streams, since there the copy is the limit and
// more streams would only use more cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm::tcp {

inline constexpr size_t kMaxAutoStreams = 4;

// The kernel's statistics for a stream since it was opened.
struct StreamAccount {
  uint64_t busy_us = 0;     // time with data to send
  uint64_t limited_us = 0;  // part of |busy_us| spent waiting for the receive window or send buffer
  uint32_t retransmits = 0;
  uint32_t round_trip_us = 0;
};
// Reads the statistics of socket |fd|. Returns false if there are none.
bool read_account(int fd, StreamAccount& out);

class StreamCount {
 public:
  static constexpr uint64_t kReviewBytes = 64u << 20;

  // Returns whether one more stream is worthwhile, judging by the statistics since the last review.
  bool review(const StreamAccount& account);
  // Adds |bytes| to the traffic. Returns true if a review is due.
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
