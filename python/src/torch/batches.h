// A batch holds the operations that a thread posts between startCoalescing and endCoalescing. They
// start together. A thread has at most one open batch.
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
  // Opens a batch for this thread, which must not have one.
  void open();
  // Returns this thread's batch, or null.
  Batch* here();
  // Removes this thread's batch from the list and returns it, or nullopt if there is none.
  std::optional<Batch> take();
  // Sets the groups of all batches to null. Called after their owner has destroyed the groups.
  void forget_groups();

 private:
  static bool is_of_this_thread(const Batch& batch);

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::list<Batch> batches_;
};

}  // namespace hetcomm::torch_backend
