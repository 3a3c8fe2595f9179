// Batches of operations that start together: those between a thread's startCoalescing and
// endCoalescing. A thread has at most one.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

struct Batch {
  std::thread::id thread;
  hetcomm_group_t* group = nullptr;  // null until the first operation
  std::vector<WorkRef> works;
};

class Batches {
 public:
  // Opens a batch for this thread, which has none.
  void open();
  // Returns this thread's batch, or null.
  Batch* here();
  // Removes this thread's batch from the list.
  std::optional<Batch> take();
  // Forgets the groups of all batches, because their owner has dropped them.
  void forget_groups();

 private:
  static bool is_of_this_thread(const Batch& batch);

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::list<Batch> batches_;
};

}  // namespace hetcomm::torch_backend
