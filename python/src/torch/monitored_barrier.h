// Implements monitoredBarrier: all ranks notify rank 0 that they have arrived, and rank 0 sends
// them the outcome. It uses messages instead of a collective operation for three reasons. It can
// tell ranks that are out of step in collective operations from missing ranks. It can name a
// missing rank even if the ranks have never communicated before. The group can be used afterwards.
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

  // Returns when all |size| ranks have called it. Throws after |timeout|, or after the group's
  // timeout if |timeout| is negative. The exception names the first missing rank, or all of them if
  // |wait_all|.
  void run(int rank, int size, std::chrono::milliseconds timeout, bool wait_all);
  // Restarts the numbering of calls at 0, for a group whose members have changed.
  void restart() { turns_.store(0); }

 private:
  // Posts a send to |peer| if |sends|, or else a receive from |peer|.
  WorkRef post(const at::Tensor& tensor, int peer, uint64_t tag, bool sends,
               std::chrono::milliseconds limit);
  void watch_arrivals(int size, uint64_t turn, std::chrono::milliseconds limit, bool wait_all);
  void arrive(int rank, uint64_t turn, std::chrono::milliseconds limit);

  Poster& poster_;
  std::atomic<uint64_t> turns_{0};
};

}  // namespace hetcomm::torch_backend
