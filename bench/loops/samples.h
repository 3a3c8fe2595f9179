// Measures the times of single messages, and computes their statistics.
#pragma once

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/loops/workload.h"

namespace bench {

inline int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// Replaces Samples in passes that do not time single messages. Its calls compile to nothing.
struct NoSamples {
  void start() {}
  void stop() {}
};

// Samples holds the times of single messages. The time from start() to stop() covers |parts|
// messages or directions. Samples divides it by that number.
class Samples {
 public:
  Samples(int64_t capacity, int parts) : scale_(1e-3 / parts) {
    times_us_.reserve(static_cast<size_t>(std::max<int64_t>(capacity, 1)));
  }
  void start() { started_ns_ = now_ns(); }
  void stop() { times_us_.push_back(static_cast<double>(now_ns() - started_ns_) * scale_); }
  void add_us(double time_us) { times_us_.push_back(time_us); }

  bool empty() const { return times_us_.empty(); }
  // Sorts the samples, and fills in minimum, maximum, percentiles and deviation.
  void summarize(Measurement* measurement) {
    if (times_us_.empty()) return;
    std::sort(times_us_.begin(), times_us_.end());
    measurement->min_us = times_us_.front();
    measurement->max_us = times_us_.back();
    measurement->p50_us = percentile(0.5);
    measurement->p99_us = percentile(0.99);
    measurement->p999_us = percentile(0.999);
    measurement->stdev_us = deviation();
  }
  double mean() const {
    double sum = 0;
    for (double time : times_us_) sum += time;
    return times_us_.empty() ? kUnknown : sum / static_cast<double>(times_us_.size());
  }

 private:
  // Returns the percentile by the nearest-rank method: the smallest sample such that at least
  // |fraction| of all samples are not above it.
  double percentile(double fraction) const {
    const double rank = std::ceil(fraction * static_cast<double>(times_us_.size()));
    return times_us_[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  }
  double deviation() const {
    const double average = mean();
    double squares = 0;
    for (double time : times_us_) squares += (time - average) * (time - average);
    return std::sqrt(squares / static_cast<double>(times_us_.size()));
  }

  double scale_;
  int64_t started_ns_ = 0;
  std::vector<double> times_us_;
};

}  // namespace bench
