// Throughput counts the bytes in flight and measures the rate in one direction of a rail, or of a
// device's copies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/baton_role.h"

namespace hetcomm {

class Throughput {
 public:
  void start(uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (outstanding_ == 0) since_ns_ = now_ns;
    outstanding_ += bytes;
  }
  void finish(uint64_t bytes, uint64_t now_ns) HETCOMM_UNDER_BATON {
    // Over a shorter time, one late call would distort the rate.
    constexpr uint64_t kShortestNs = 1'000'000;
    outstanding_ -= bytes;
    done_ += bytes;
    // A copy that started after the caller read the clock may have ended already.
    if (now_ns > since_ns_) busy_ns_ += now_ns - since_ns_;
    since_ns_ = std::max(since_ns_, now_ns);
    if (busy_ns_ < kShortestNs) return;
    const double measured = static_cast<double>(done_) * 1e9 / static_cast<double>(busy_ns_);
    rate_ = rate_ == 0 ? measured : rate_ * 0.7 + measured * 0.3;
    busy_ns_ = 0;
    done_ = 0;
  }
  void drop(uint64_t bytes) HETCOMM_UNDER_BATON { outstanding_ -= bytes; }
  uint64_t outstanding() const HETCOMM_UNDER_BATON { return outstanding_; }
  // Returns bytes per second; 0 while unknown.
  double rate() const HETCOMM_UNDER_BATON { return rate_; }

 private:
  uint64_t outstanding_ = 0;
  uint64_t since_ns_ = 0;
  uint64_t busy_ns_ = 0;  // time with bytes in flight since the last measurement
  uint64_t done_ = 0;     // bytes finished since the last measurement
  double rate_ = 0;
};

}  // namespace hetcomm
