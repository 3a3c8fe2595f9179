// Simulates a computation of a fixed duration. Compute sleeps, or runs as many steps as take this
// long on an otherwise idle core.
#pragma once

#include <cstdint>
#include <ctime>
#include <vector>

#include "src/present/statistics.h"

namespace bench {

// Returns the monotonic clock in microseconds.
inline double now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

class Compute {
 public:
  Compute(bool burns, double us) : burns_(burns), us_(us) {
    if (!burns) return;
    constexpr int64_t kTrial = 2'000'000;
    burn(kTrial);
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const double start = now_us();
      burn(kTrial);
      times.push_back(now_us() - start);
    }
    steps_ =
        static_cast<int64_t>(us * static_cast<double>(kTrial) / hetcomm::present::median(times));
  }
  // Runs the fraction |part| of the computation.
  void run(double part = 1) {
    if (burns_) {
      burn(static_cast<int64_t>(static_cast<double>(steps_) * part));
      return;
    }
    if (us_ <= 0) return;
    const auto ns = static_cast<int64_t>(us_ * part * 1e3);
    const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  }
  double measured_us(double part = 1) {
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) {
      const double start = now_us();
      run(part);
      times.push_back(now_us() - start);
    }
    return hetcomm::present::median(times);
  }

 private:
  void burn(int64_t steps) {
    uint64_t value = sink_ | 1;
    for (int64_t i = 0; i < steps; ++i) value = value * 6364136223846793005u + 1442695040888963407u;
    sink_ = value;
  }

  const bool burns_;
  const double us_;
  int64_t steps_ = 0;
  volatile uint64_t sink_ = 1;
};

}  // namespace bench
