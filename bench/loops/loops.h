// Defines the measured loops once. hetcomm and every library that it is compared with run the same
// source over their own back end, so that all do the same work in the same order.
//
// A back end has
//   int rank(), int ranks()
//   prepare(bytes, slots)                       buffers of both directions
//   send(peer, slot), receive(peer, slot)       blocking
//   start_send(peer, slot), start_receive(...)  then wait_all()
//   send_word(peer, double), receive_word(peer) blocking; a small message next to the data
//   fill, clear, wrong, watch                   as in HostBuffers
//   std::string path()                          path of the last point's bytes; may be ""
// A back end exits the process with a message when a call fails, so the loops do not check results.
//
//   latency      rank 0 sends, rank 1 sends back
//   bandwidth    rank 0 sends |window| messages, and rank 1 acknowledges them with a word. With
//                window 1, rank 0 makes blocking sends back to back, and rank 1 sends one word at
//                the end
//   bibandwidth  |window| messages in both directions at once, then a word in each direction
//   msgrate      every rank sends |window| messages to every other and receives as many from each
//   overlap      rank 1 posts a receive, tells rank 0 to send, and computes during the transfer
//
// Ranks beyond the first two wait in tests of two ranks. Rank 0 holds the results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "bench/loops/buffers.h"
#include "bench/loops/measuring.h"
#include "bench/loops/overlap.h"
#include "bench/loops/samples.h"
#include "bench/loops/workload.h"

namespace bench {

template <class Backend>
class Loops : private Measuring<Loops<Backend>, Backend> {
 public:
  Loops(Backend& backend, const Workload& workload) : Shared(backend, workload) {
    test_ = workload.test == "latency"       ? Test::kLatency
            : workload.test == "bandwidth"   ? Test::kBandwidth
            : workload.test == "bibandwidth" ? Test::kBibandwidth
            : workload.test == "msgrate"     ? Test::kMessageRate
                                             : Test::kOverlap;
  }

  // Measures one point. Every rank calls it for the same points in the same order. The result is
  // set on rank 0.
  Measurement measure(const Point& point) {
    point_ = point;
    if (test_ == Test::kOverlap) point_.window = 1;
    backend_.prepare(point_.bytes, slots());
    Measurement measurement;
    measurement.point = point_;
    if (workload_.check) write_patterns(0);
    this->barrier();
    if (test_ == Test::kOverlap) {
      measure_overlap(&measurement);
    } else {
      measure_pass(&measurement);
    }
    measurement.path = backend_.path();
    if (workload_.check) measurement.wrong = verify();
    return measurement;
  }

 private:
  using Shared = Measuring<Loops<Backend>, Backend>;
  friend Shared;
  using Shared::backend_;
  using Shared::point_;
  using Shared::workload_;

  enum class Test { kLatency, kBandwidth, kBibandwidth, kMessageRate, kOverlap };

  // --- one pass over |iterations| messages ----------------------------------------------------

  template <class Clock>
  void pass(int64_t iterations, Clock& clock) {
    if (test_ == Test::kMessageRate) {
      message_rate_pass(iterations, clock);
    } else if (backend_.rank() > 1) {
      return;
    } else if (test_ == Test::kLatency) {
      latency_pass(iterations, clock);
    } else if (test_ == Test::kBibandwidth) {
      bibandwidth_pass(iterations, clock);
    } else if (point_.window == 1) {
      blocking_pass(iterations, clock);
    } else {
      window_pass(iterations, clock);
    }
  }

  template <class Clock>
  void latency_pass(int64_t iterations, Clock& clock) {
    if (backend_.rank() == 0) {
      for (int64_t i = 0; i < iterations; ++i) {
        clock.start();
        backend_.send(1, 0);
        backend_.receive(1, 0);
        clock.stop();
      }
      return;
    }
    for (int64_t i = 0; i < iterations; ++i) {
      backend_.receive(0, 0);
      backend_.send(0, 0);
    }
  }

  template <class Clock>
  void blocking_pass(int64_t iterations, Clock& clock) {
    if (backend_.rank() == 0) {
      for (int64_t i = 0; i < iterations; ++i) {
        clock.start();
        backend_.send(1, 0);
        clock.stop();
      }
      backend_.receive_word(1);
      return;
    }
    for (int64_t i = 0; i < iterations; ++i) backend_.receive(0, 0);
    backend_.send_word(0, 0);
  }

  template <class Clock>
  void window_pass(int64_t iterations, Clock& clock) {
    for (int64_t i = 0; i < iterations; i += point_.window) {
      clock.start();
      if (backend_.rank() == 0) {
        for (int slot = 0; slot < point_.window; ++slot) backend_.start_send(1, slot);
        backend_.wait_all();
        backend_.receive_word(1);
      } else {
        for (int slot = 0; slot < point_.window; ++slot) backend_.start_receive(0, slot);
        backend_.wait_all();
        backend_.send_word(0, 0);
      }
      clock.stop();
    }
  }

  template <class Clock>
  void bibandwidth_pass(int64_t iterations, Clock& clock) {
    const int peer = 1 - backend_.rank();
    for (int64_t i = 0; i < iterations; i += point_.window) {
      clock.start();
      for (int slot = 0; slot < point_.window; ++slot) backend_.start_receive(peer, slot);
      for (int slot = 0; slot < point_.window; ++slot) backend_.start_send(peer, slot);
      backend_.wait_all();
      acknowledge(peer);
      clock.stop();
    }
  }

  // Sends one word in each direction, one after the other, since a library may block a send until
  // the receive is posted.
  void acknowledge(int peer) {
    if (backend_.rank() == 0) backend_.send_word(peer, 0);
    backend_.receive_word(peer);
    if (backend_.rank() != 0) backend_.send_word(peer, 0);
  }

  // Exchanges messages among all ranks. |iterations| is how many one rank sends in total.
  template <class Clock>
  void message_rate_pass(int64_t iterations, Clock& clock) {
    const int others = backend_.ranks() - 1;
    for (int64_t i = 0; i < iterations; i += step()) {
      clock.start();
      for (int turn = 0; turn < others; ++turn) {
        const int peer = (backend_.rank() + 1 + turn) % backend_.ranks();
        for (int w = 0; w < point_.window; ++w) backend_.start_receive(peer, slot_of(peer, w));
      }
      for (int turn = 0; turn < others; ++turn) {
        const int peer = (backend_.rank() + 1 + turn) % backend_.ranks();
        for (int w = 0; w < point_.window; ++w) backend_.start_send(peer, slot_of(peer, w));
      }
      backend_.wait_all();
      clock.stop();
    }
  }

  // --- measuring ------------------------------------------------------------------------------

  int slots() const {
    if (test_ == Test::kLatency || test_ == Test::kOverlap) return 1;
    return test_ == Test::kMessageRate ? step() : point_.window;
  }
  // Returns the smallest number of messages that a pass can have.
  int step() const {
    if (test_ == Test::kLatency) return 1;
    return test_ == Test::kMessageRate ? point_.window * (backend_.ranks() - 1) : point_.window;
  }
  int slot_of(int peer, int message) const {
    return (peer < backend_.rank() ? peer : peer - 1) * point_.window + message;
  }
  double agreed(double seconds) {
    return test_ == Test::kMessageRate ? this->longest(seconds) : this->share(seconds);
  }

  void measure_pass(Measurement* measurement) {
    const bool latency = test_ == Test::kLatency;
    this->measure_passes(latency ? 2 : step(), latency ? 2 : 1, measurement);
    if (test_ == Test::kMessageRate) measurement->messages *= backend_.ranks();
    if (test_ == Test::kBibandwidth) measurement->messages *= 2;
  }

  // --- overlap ----------------------------------------------------------------------------------

  void measure_overlap(Measurement* measurement) {
    if (backend_.rank() == 1) {
      Overlap<Backend>(backend_, workload_, point_.bytes).receive(measurement);
    } else if (backend_.rank() == 0) {
      // The receiver watches for this pattern.
      backend_.fill(0, kWatchedSeed);
      while (backend_.receive_word(1) > 0) backend_.send(1, 0);
    }
    measurement->iterations =
        static_cast<int64_t>(this->share(static_cast<double>(measurement->iterations), 1));
    measurement->messages = measurement->iterations;
    measurement->total_us = this->share(measurement->total_us, 1);
    for (const MeasurementField& field : kMeasurementFields) {
      measurement->*field.member = this->share(measurement->*field.member, 1);
    }
  }

  // --- verification ------------------------------------------------------------------------------

  static constexpr uint64_t kExtraPatterns = 3;

  // Returns a seed that differs for each round, sender and slot. The first one is kWatchedSeed.
  static uint64_t seed_of(uint64_t round, int sender, int slot) {
    return (round * 1024 + static_cast<uint64_t>(sender)) * 65536 + static_cast<uint64_t>(slot);
  }

  void write_patterns(uint64_t round) {
    for (int slot = 0; slot < slots(); ++slot) {
      backend_.fill(slot, seed_of(round, backend_.rank(), slot));
      backend_.clear(slot);
    }
  }

  int64_t count_received(uint64_t round) {
    const int rank = backend_.rank();
    const bool receives = test_ == Test::kMessageRate || rank == 1 ||
                          (rank == 0 && (test_ == Test::kLatency || test_ == Test::kBibandwidth));
    int64_t wrong = 0;
    for (int slot = 0; receives && slot < slots(); ++slot) {
      if (test_ != Test::kMessageRate) {
        wrong += backend_.wrong(slot, seed_of(round, 1 - rank, slot));
        continue;
      }
      const int other = slot / point_.window;
      const int peer = other < rank ? other : other + 1;
      // The slot from which the sender sends to this rank.
      const int at_peer = (rank < peer ? rank : rank - 1) * point_.window + slot % point_.window;
      wrong += backend_.wrong(slot, seed_of(round, peer, at_peer));
    }
    return wrong;
  }

  // Checks the result of the measured pass, then further rounds with new patterns, so that old
  // bytes cannot be mistaken for new ones. Returns the number of wrong bytes on all ranks together.
  int64_t verify() {
    double wrong = static_cast<double>(count_received(0));
    for (uint64_t round = 1; round <= kExtraPatterns; ++round) {
      write_patterns(round);
      this->barrier();
      NoSamples clock;
      if (test_ == Test::kOverlap) {
        if (backend_.rank() < 2) blocking_pass(1, clock);
      } else {
        pass(step(), clock);
      }
      wrong += static_cast<double>(count_received(round));
    }
    return static_cast<int64_t>(this->sum(wrong));
  }

  Test test_;
};

}  // namespace bench
