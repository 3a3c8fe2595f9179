#include "python/src/torch/batches.h"

#include <algorithm>
#include <utility>

namespace hetcomm::torch_backend {

bool Batches::is_of_this_thread(const Batch& batch) {
  return batch.thread == std::this_thread::get_id();
}

void Batches::open() {
  const std::scoped_lock lock(mutex_);
  batches_.push_back({.thread = std::this_thread::get_id(), .group = nullptr, .works = {}});
  any_.store(true, std::memory_order_relaxed);
}

Batch* Batches::here() {
  if (!any_.load(std::memory_order_relaxed)) return nullptr;
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(batches_.begin(), batches_.end(), is_of_this_thread);
  return found == batches_.end() ? nullptr : &*found;
}

std::optional<Batch> Batches::take() {
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(batches_.begin(), batches_.end(), is_of_this_thread);
  if (found == batches_.end()) return std::nullopt;
  std::optional<Batch> taken(std::move(*found));
  batches_.erase(found);
  any_.store(!batches_.empty(), std::memory_order_relaxed);
  return taken;
}

void Batches::forget_groups() {
  const std::scoped_lock lock(mutex_);
  for (Batch& open : batches_) open.group = nullptr;
}

}  // namespace hetcomm::torch_backend
