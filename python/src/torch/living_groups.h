// Lists the process groups of this process, which are closed before it exits.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "python/src/torch/group.h"
#include "python/src/torch/worker.h"

namespace hetcomm::torch_backend {

class LivingGroups {
 public:
  static LivingGroups& all();

  void add(const std::shared_ptr<Group>& group, const std::shared_ptr<Worker>& worker);
  // Shuts down all process groups, and returns when their callbacks have run. Cancels the
  // operations of all groups first, since a callback in one group may wait for an operation in
  // another. Later posts fail with |reason|. Ranks that wait for this one in a collective operation
  // get the text |told|, unless it is empty. Throws the exception of a signal handler that runs
  // during the wait.
  void close(const std::string& reason, const std::string& told);

 private:
  LivingGroups() = default;

  std::mutex mutex_;
  std::vector<std::pair<std::weak_ptr<Group>, std::weak_ptr<Worker>>> groups_;
};

}  // namespace hetcomm::torch_backend
