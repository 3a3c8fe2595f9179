// Measuring is the common part of all loops. It combines values of all ranks, and chooses passes
// that are long enough to time.
//
// A |Derived| has
//   pass(iterations, clock)      one pass; clock.start() and stop() around each step
//   int step()                   iterations that belong together; a pass runs whole steps
//   double agreed(seconds)       combines the ranks' own times of a pass into one for all ranks
#pragma once

#include <algorithm>
#include <cstdint>

#include "bench/loops/samples.h"
#include "bench/loops/workload.h"

namespace bench {

template <class Derived, class Backend>
class Measuring {
 protected:
  Measuring(Backend& backend, const Workload& workload) : backend_(backend), workload_(workload) {}
  ~Measuring() = default;

  // --- agreement between ranks --------------------------------------------------------------

  void barrier() { sum(0); }

  // Returns rank |root|'s value on every rank.
  double share(double value, int root = 0) {
    if (backend_.rank() != root) return backend_.receive_word(root);
    for (int peer = 0; peer < backend_.ranks(); ++peer) {
      if (peer != root) backend_.send_word(peer, value);
    }
    return value;
  }

  // Returns the sum over all ranks, on every rank. No rank returns before all have called.
  double sum(double value) {
    return combine(value, [](double a, double b) { return a + b; });
  }
  // Returns the largest value of all ranks, on every rank.
  double longest(double value) {
    return combine(value, [](double a, double b) { return std::max(a, b); });
  }

  // --- passes -----------------------------------------------------------------------------------

  int64_t whole_steps(double iterations) const {
    const int step = self().step();
    const double steps = std::clamp(iterations / step, 1.0, double{kMaxIterations} / step);
    return static_cast<int64_t>(steps) * step;
  }

  // Runs one pass of |iterations|. Returns its duration in seconds, the same value on every rank.
  double timed(int64_t iterations) {
    barrier();
    NoSamples clock;
    const int64_t started = now_ns();
    self().pass(iterations, clock);
    return self().agreed(static_cast<double>(now_ns() - started) * 1e-9);
  }

  // Fills in the iterations, the total time, and with workload.samples the times of single
  // messages. Divides the total time by |directions|, which is 2 for round trips. Divides the time
  // of a step by |parts|, the number of its messages or directions.
  void measure_passes(int parts, int directions, Measurement* measurement) {
    const int64_t iterations = choose_iterations();
    measurement->iterations = measurement->messages = iterations;
    measurement->total_us = timed(iterations) * 1e6 / directions;
    if (!workload_.samples) return;
    const int64_t step = self().step();
    const int64_t sampled =
        std::min(iterations, whole_steps(double{kMaxSamples} * static_cast<double>(step)));
    Samples samples(sampled / step, parts);
    barrier();
    self().pass(sampled, samples);
    samples.summarize(measurement);
  }

  Backend& backend_;
  const Workload& workload_;
  Point point_;

 private:
  static constexpr int64_t kMaxIterations = 50000000;
  static constexpr int64_t kMaxSamples = 100000;

  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  template <class Function>
  double combine(double value, Function function) {
    if (backend_.rank() == 0) {
      for (int peer = 1; peer < backend_.ranks(); ++peer) {
        value = function(value, backend_.receive_word(peer));
      }
    } else {
      backend_.send_word(0, value);
    }
    return share(value);
  }

  // Warms up. Returns the requested number of iterations, or as many as fill |workload_.seconds|.
  int64_t choose_iterations() {
    const int step = self().step();
    if (workload_.warmup > 0) timed(whole_steps(static_cast<double>(workload_.warmup) + step - 1));
    if (workload_.iterations > 0) {
      if (workload_.warmup < 0) timed(whole_steps(static_cast<double>(workload_.iterations) / 10));
      return whole_steps(static_cast<double>(workload_.iterations) + step - 1);
    }
    for (int64_t iterations = step;;
         iterations = whole_steps(static_cast<double>(iterations) * 4)) {
      double seconds = timed(iterations);
      // Takes the faster of two passes, since an interruption could make a short pass look long
      // enough.
      if (seconds >= workload_.seconds / 8) seconds = std::min(seconds, timed(iterations));
      if (seconds >= workload_.seconds / 8 || iterations * 4 > kMaxIterations) {
        return whole_steps(workload_.seconds / std::max(seconds, 1e-9) *
                           static_cast<double>(iterations));
      }
    }
  }
};

}  // namespace bench
