#include "python/src/torch/living_groups.h"

#include <exception>

#include "python/src/torch/interrupts.h"

namespace hetcomm::torch_backend {

LivingGroups& LivingGroups::all() {
  static auto* const all = new LivingGroups();  // never destroyed, since it is used until exit
  return *all;
}

void LivingGroups::add(const std::shared_ptr<Group>& group, const std::shared_ptr<Worker>& worker) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(groups_, [](const auto& each) { return each.first.expired(); });
  groups_.emplace_back(group, worker);
}

void LivingGroups::close(const std::string& reason, const std::string& told) {
  std::unique_lock lock(mutex_);
  const auto groups = groups_;
  lock.unlock();
  bool any_ends = WaitingThread::any();
  for (const auto& [weak_group, weak_worker] : groups) {
    const auto group = weak_group.lock();
    if (!group) continue;
    any_ends = any_ends || group->has_pending();
    if (!told.empty()) group->refuse(told);
    group->cancel_all(reason);
  }
  std::exception_ptr raised;  // the first exception
  for (const auto& [weak_group, weak_worker] : groups) {
    try {
      if (const auto group = weak_group.lock()) group->close(reason);
      if (const auto worker = weak_worker.lock()) worker->drain();
    } catch (...) {
      if (!raised) raised = std::current_exception();
    }
  }
  if (any_ends || WaitingThread::any()) WaitingThread::let_all_return();
  if (raised) std::rethrow_exception(raised);
}

}  // namespace hetcomm::torch_backend
