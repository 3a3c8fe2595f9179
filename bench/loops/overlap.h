// Overlap is the receiving side of the overlap test. It measures how long a transfer takes while
// this rank computes, and how much the transfer delays the computation.
//
// The receiver does not call the library to detect the arrival of the data, since such a call would
// drive the transfer. Instead, the computation checks single bytes of the receive buffer after
// every unit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bench/loops/buffers.h"
#include "bench/loops/samples.h"
#include "bench/loops/workload.h"

namespace bench {

// Seed of the pattern for which the receiver watches.
inline constexpr uint64_t kWatchedSeed = 0;

template <class Backend>
class Overlap {
 public:
  Overlap(Backend& backend, const Workload& workload, uint64_t bytes)
      : backend_(backend), workload_(workload), bytes_(bytes) {}

  // Runs the test on rank 1. Rank 0 must send once for each positive word that it receives, and
  // stop at 0.
  void receive(Measurement* measurement) {
    measurement->idle_us = idle_us();
    const double target_us = std::max(kMinComputeUs, kComputeOverTransfer * measurement->idle_us);
    const int64_t units = units_for(target_us);
    const int64_t iterations = workload_.iterations > 0 ? workload_.iterations : fitting(target_us);
    Samples done(iterations, 1);
    Samples alone(iterations, 1);
    Samples overall(iterations, 1);
    for (int64_t i = 0; i < iterations; ++i) {
      alone.add_us(compute_us(units));
      const Transfer transfer = receive_while_computing(units);
      done.add_us(transfer.done_us);
      overall.add_us(transfer.overall_us);
    }
    backend_.send_word(0, 0);
    measurement->iterations = iterations;
    measurement->total_us = done.mean() * static_cast<double>(iterations);
    measurement->compute_us = median(alone);
    measurement->overall_us = median(overall);
    done.summarize(measurement);
  }

 private:
  static constexpr int kUnitSteps = 500;
  static constexpr double kComputeOverTransfer = 4;
  static constexpr double kMinComputeUs = 100;
  static constexpr uint64_t kWatchStride = 4096;
  static constexpr int kIdleTransfers = 20;
  static constexpr int kWarmupTransfers = 10;

  // Durations of one transfer, both counted from the word that starts it: |done_us| until the data
  // has arrived, |overall_us| until the computation and the receive have finished.
  struct Transfer {
    double done_us;
    double overall_us;
  };

  // Returns the median duration of a transfer while this rank only waits.
  double idle_us() {
    Samples samples(kIdleTransfers, 1);
    for (int i = 0; i < kWarmupTransfers; ++i) receive_while_computing(0);
    for (int i = 0; i < kIdleTransfers; ++i) {
      samples.add_us(receive_while_computing(0).overall_us);
    }
    return median(samples);
  }

  // Returns the median, so that a rare interruption does not distort the result.
  static double median(Samples& samples) {
    Measurement summary;
    samples.summarize(&summary);
    return summary.p50_us;
  }

  int64_t units_for(double target_us) {
    constexpr int64_t kTrial = 1000;
    compute_us(kTrial);
    return static_cast<int64_t>(target_us / (compute_us(kTrial) / kTrial)) + 1;
  }

  // Returns the number of repetitions that fill the time of the pass. Each repetition computes
  // alone, then computes while receiving.
  int64_t fitting(double target_us) const {
    return std::clamp<int64_t>(static_cast<int64_t>(workload_.seconds * 1e6 / (2.3 * target_us)), 5,
                               1000);
  }

  // Computes for about a microsecond, with arithmetic that uses no memory and that no compiler can
  // remove.
  void compute_unit() {
    uint64_t value = arithmetic_;
    for (int i = 0; i < kUnitSteps; ++i) value = value * 0x5851f42d4c957f2dU + 0x14057b7ef767814fU;
    __asm__ volatile("" : "+r"(value));
    arithmetic_ = value;
  }

  double compute_us(int64_t units) {
    const int64_t started = now_ns();
    for (int64_t unit = 0; unit < units; ++unit) compute_unit();
    return static_cast<double>(now_ns() - started) * 1e-3;
  }

  // Returns the number of watched bytes: the last byte of every page, and of the message. Once all
  // have the new value, the data is complete.
  uint64_t watched_count() const { return (bytes_ + kWatchStride - 1) / kWatchStride; }
  uint64_t watched_offset(uint64_t index) const {
    return std::min((index + 1) * kWatchStride, bytes_) - 1;
  }
  static uint8_t sent_byte(uint64_t offset) {
    const uint64_t word = pattern_word(offset / 8, kWatchedSeed);
    uint8_t bytes[8];
    std::memcpy(bytes, &word, 8);
    return bytes[offset % 8];
  }
  static bool has_arrived(volatile const uint8_t* data, uint64_t offset) {
    return data[offset] == sent_byte(offset);
  }

  // Receives one message while computing |units|. With 0 units it only waits.
  Transfer receive_while_computing(int64_t units) {
    volatile uint8_t* data = backend_.watch(0);
    const uint64_t count = watched_count();
    for (uint64_t i = 0; i < count; ++i) {
      data[watched_offset(i)] = static_cast<uint8_t>(~sent_byte(watched_offset(i)));
    }
    backend_.start_receive(0, 0);
    const int64_t started = now_ns();
    backend_.send_word(0, 1);
    uint64_t arrived = 0;
    int64_t done = 0;
    for (int64_t unit = 0; unit < units; ++unit) {
      compute_unit();
      while (arrived < count && has_arrived(data, watched_offset(arrived))) ++arrived;
      if (arrived == count && done == 0) done = now_ns();
    }
    backend_.wait_all();
    const int64_t ended = now_ns();
    if (done == 0) done = ended;
    return {static_cast<double>(done - started) * 1e-3,
            static_cast<double>(ended - started) * 1e-3};
  }

  Backend& backend_;
  const Workload& workload_;
  uint64_t bytes_;
  uint64_t arithmetic_ = 1;
};

}  // namespace bench
