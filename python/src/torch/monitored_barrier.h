// monitoredBarrier: all ranks notify rank 0 that they have arrived, and rank 0 sends them the
// outcome. It uses messages instead of a collective operation for three reasons. Ranks that are out
// of step in collective operations can be distinguished from missing ranks. A missing rank is named
// even if the ranks never met before. The group can be used afterwards.
#pragma once

#include <ATen/ATen.h>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "python/src/torch/poster.h"
#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

class MonitoredBarrier {
 public:
  explicit MonitoredBarrier(Poster& poster) : poster_(poster) {}

  // Returns when all |size| ranks have called it. Throws after |timeout|, or the group's if it is
  // negative, and names ranks that did not come: the first one, or all if |wait_all|.
  void run(int rank, int size, std::chrono::milliseconds timeout, bool wait_all);
  // Numbers the calls anew, for a group whose members have changed.
  void restart() { turns_.store(0); }

 private:
  // Posts a message to or from |peer|.
  WorkRef post(const at::Tensor& tensor, int peer, uint64_t tag, bool sends,
               std::chrono::milliseconds limit);
  void watch_arrivals(int size, uint64_t turn, std::chrono::milliseconds limit, bool wait_all);
  void arrive(int rank, uint64_t turn, std::chrono::milliseconds limit);

  Poster& poster_;
  std::atomic<uint64_t> turns_{0};
};

}  // namespace hetcomm::torch_backend
