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
    if (busy_ns_ < kShortestNs || done_ == 0) return;
    measured(static_cast<double>(busy_ns_) / static_cast<double>(done_));
    measured_ns_ = now_ns;
    busy_ns_ = 0;
    done_ = 0;
  }
  void drop(uint64_t bytes) HETCOMM_UNDER_BATON { outstanding_ -= bytes; }
  // Returns the time of the last measurement; 0 if there was none.
  uint64_t measured_ns() const HETCOMM_UNDER_BATON { return measured_ns_; }
  uint64_t outstanding() const HETCOMM_UNDER_BATON { return outstanding_; }
  // Returns bytes per second; 0 while unknown.
  double rate() const HETCOMM_UNDER_BATON { return ns_per_byte_ > 0 ? 1e9 / ns_per_byte_ : 0; }

 private:
  // Includes a measured time per byte in the average. Times are averaged, not rates: bytes that
  // a network takes at once after a pause say nothing about its rate. One late call counts little.
  void measured(double ns_per_byte) HETCOMM_UNDER_BATON {
    constexpr double kMostFaster = 0.5;
    constexpr double kMostSlower = 4;
    constexpr double kWeight = 0.3;
    if (ns_per_byte_ == 0) {
      ns_per_byte_ = ns_per_byte;
      return;
    }
    const double sample =
        std::clamp(ns_per_byte, kMostFaster * ns_per_byte_, kMostSlower * ns_per_byte_);
    ns_per_byte_ += kWeight * (sample - ns_per_byte_);
  }

  uint64_t outstanding_ = 0;
  uint64_t since_ns_ = 0;
  uint64_t busy_ns_ = 0;  // time with bytes in flight since the last measurement
  uint64_t done_ = 0;     // bytes finished since the last measurement
  uint64_t measured_ns_ = 0;
  double ns_per_byte_ = 0;  // 0 while unknown
};

}  // namespace hetcomm
