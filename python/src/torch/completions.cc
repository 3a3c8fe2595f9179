#include "python/src/torch/completions.h"

namespace hetcomm::torch_backend {

constinit thread_local const Completions::Scope* Completions::innermost_ = nullptr;

Completions::Scope::Scope(Completions& completions)
    : completions_(completions), outer_(innermost_) {
  completions_.count_.fetch_add(1);
  innermost_ = this;
}

Completions::Scope::~Scope() {
  innermost_ = outer_;
  // A waiter sets waited_for_ before it reads count_. Either it sees the new count, or this thread
  // sees waited_for_.
  completions_.count_.fetch_sub(1);
  if (!completions_.waited_for_.load()) return;
  const std::scoped_lock lock(completions_.mutex_);
  completions_.changed_.notify_all();
}

bool Completions::wait_for_others(size_t own, std::chrono::steady_clock::duration limit) {
  std::unique_lock lock(mutex_);
  waited_for_.store(true);
  return changed_.wait_for(lock, limit, [this, own] { return count_.load() == own; });
}

}  // namespace hetcomm::torch_backend
