// Measures collective operations, as loops.h measures messages. Each point is measured out of
// place, then in place if the operation supports that.
//
// In addition to the functions of loops.h, a back end has
//   static constexpr bool kCollectives = true
//   prepare_collective(operation, bytes)   |bytes| on the larger side, see sizes below
//   run_collective(in_place)               blocking
//
// Elements are float32, the reduction is a sum, and the root is rank 0. |bytes| is the size of the
// whole buffer, as in nccl-tests. The whole buffer is the receive buffer for allgather, the send
// buffer for reduce_scatter, and both buffers for alltoall. With n ranks, the other buffer of
// allgather and reduce_scatter has |bytes| / n, and so does each rank's part.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "bench/loops/measuring.h"

namespace bench {

enum class Collective {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllreduce,
  kAllgather,
  kReduceScatter,
  kAlltoall
};

struct CollectiveInfo {
  const char* test;
  Collective operation;
  bool sums;
  bool has_root;
  bool has_parts;  // the buffer has one equal part per rank
  bool in_place;
};
inline constexpr CollectiveInfo kCollectiveInfos[] = {
    {"barrier", Collective::kBarrier, false, false, false, false},
    {"broadcast", Collective::kBroadcast, false, true, false, false},
    {"reduce", Collective::kReduce, true, true, false, false},
    {"allreduce", Collective::kAllreduce, true, false, false, true},
    {"allgather", Collective::kAllgather, false, false, true, true},
    {"reduce_scatter", Collective::kReduceScatter, true, false, true, true},
    {"alltoall", Collective::kAlltoall, false, false, true, false},
};

// Returns null if |test| is not a collective test.
inline const CollectiveInfo* find_collective(std::string_view test) {
  for (const CollectiveInfo& info : kCollectiveInfos) {
    if (test == info.test) return &info;
  }
  return nullptr;
}

// Returns how many bytes cross the busiest link for each byte of the size. nccl-tests computes the
// bus bandwidth with this factor.
inline double bus_factor(Collective operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case Collective::kAllreduce:
      return 2 * (n - 1) / n;
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kAlltoall:
      return (n - 1) / n;
    default:
      return 1;
  }
}

template <class Backend>
class CollectiveLoops : private Measuring<CollectiveLoops<Backend>, Backend> {
 public:
  CollectiveLoops(Backend& backend, const Workload& workload)
      : Shared(backend, workload), info_(*find_collective(workload.test)) {}

  // Measures one point, as Loops::measure() does. Rounds the size down to whole elements in equal
  // parts.
  Measurement measure(const Point& point) {
    point_ = point;
    point_.window = 1;
    const auto unit = sizeof(float) * static_cast<uint64_t>(info_.has_parts ? backend_.ranks() : 1);
    point_.bytes = info_.operation == Collective::kBarrier ? 0 : point.bytes / unit * unit;
    backend_.prepare_collective(info_.operation, point_.bytes);
    Measurement measurement;
    measurement.point = point_;
    in_place_ = false;
    fill();
    this->measure_passes(1, 1, &measurement);
    measurement.wrong = verify();
    if (info_.in_place) {
      in_place_ = true;
      fill();
      Measurement second;
      this->measure_passes(1, 1, &second);
      measurement.in_place_us = second.total_us / static_cast<double>(second.iterations);
      measurement.in_place_wrong = static_cast<double>(verify());
    }
    return measurement;
  }

 private:
  using Shared = Measuring<CollectiveLoops<Backend>, Backend>;
  friend Shared;
  using Shared::backend_;
  using Shared::point_;
  using Shared::workload_;

  template <class Clock>
  void pass(int64_t iterations, Clock& clock) {
    for (int64_t i = 0; i < iterations; ++i) {
      clock.start();
      backend_.run_collective(in_place_);
      clock.stop();
    }
  }
  int step() const { return 1; }
  double agreed(double seconds) { return this->longest(seconds); }

  // --- contents of the buffers -------------------------------------------------------------------

  uint64_t elements() const { return point_.bytes / sizeof(float); }
  uint64_t part() const { return elements() / static_cast<uint64_t>(backend_.ranks()); }
  // Returns a small whole number, so that sums are exact.
  static float input(int rank, uint64_t index) {
    return static_cast<float>(rank + 1 + static_cast<int>(index % 13));
  }
  static void put(uint8_t* bytes, uint64_t index, float value) {
    std::memcpy(bytes + index * sizeof(float), &value, sizeof value);
  }
  static float get(const uint8_t* bytes, uint64_t index) {
    float value = 0;
    std::memcpy(&value, bytes + index * sizeof(float), sizeof value);
    return value;
  }
  // Returns the start of this rank's input.
  uint8_t* send_side() const {
    if (info_.operation == Collective::kBroadcast) return backend_.receive_slot(0);
    if (in_place_ && info_.operation == Collective::kAllgather) {
      return backend_.receive_slot(0) + rank_part() * sizeof(float);
    }
    return in_place_ && info_.operation == Collective::kAllreduce ? backend_.receive_slot(0)
                                                                  : backend_.send_slot(0);
  }
  // Returns the start of this rank's result.
  const uint8_t* receive_side() const {
    if (in_place_ && info_.operation == Collective::kReduceScatter) {
      return backend_.send_slot(0) + rank_part() * sizeof(float);
    }
    return backend_.receive_slot(0);
  }
  uint64_t rank_part() const { return part() * static_cast<uint64_t>(backend_.rank()); }
  uint64_t sent() const { return info_.operation == Collective::kAllgather ? part() : elements(); }
  uint64_t received() const {
    if (info_.operation == Collective::kReduceScatter) return part();
    return info_.operation == Collective::kReduce && backend_.rank() != 0 ? 0 : elements();
  }

  void fill() {
    if (point_.bytes == 0) return;
    std::memset(backend_.receive_slot(0), 0, static_cast<size_t>(point_.bytes));
    for (uint64_t i = 0; i < sent(); ++i) put(send_side(), i, input(backend_.rank(), i));
    backend_.slots_to_device();
  }

  float expected(uint64_t index) const {
    const int n = backend_.ranks();
    const uint64_t own = part();
    const auto sum = [n](uint64_t at) {
      float total = 0;
      for (int rank = 0; rank < n; ++rank) total += input(rank, at);
      return total;
    };
    switch (info_.operation) {
      case Collective::kBroadcast:
        return input(0, index);
      case Collective::kReduce:
      case Collective::kAllreduce:
        return sum(index);
      case Collective::kReduceScatter:
        return sum(rank_part() + index);
      case Collective::kAllgather:
        return input(static_cast<int>(index / own), index % own);
      case Collective::kAlltoall:
        return input(static_cast<int>(index / own), rank_part() + index % own);
      default:
        return 0;
    }
  }

  // Runs one more operation with fresh input. Returns the number of wrong elements on all ranks
  // together.
  int64_t verify() {
    fill();
    this->barrier();
    backend_.run_collective(in_place_);
    backend_.slots_from_device();
    int64_t wrong = 0;
    for (uint64_t i = 0; i < received(); ++i) {
      wrong += get(receive_side(), i) != expected(i) ? 1 : 0;
    }
    return static_cast<int64_t>(this->sum(static_cast<double>(wrong)));
  }

  const CollectiveInfo& info_;
  bool in_place_ = false;
};

}  // namespace bench
