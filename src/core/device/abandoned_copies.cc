#include "src/core/device/abandoned_copies.h"

#include <algorithm>
#include <new>

namespace hetcomm {

bool AbandonedCopies::List::touch(const HostRange& host) const {
  return is_incomplete_ || std::any_of(copies_.begin(), copies_.end(),
                                       [&](const auto& copy) { return copy.host.meets(host); });
}

bool AbandonedCopies::List::use(const Device& device) const {
  auto* const between = device.table->copy_rows_between;
  return is_incomplete_ || std::any_of(copies_.begin(), copies_.end(), [&](const auto& copy) {
           return copy.device == &device || (copy.is_aside && between != nullptr &&
                                             copy.device->table->copy_rows_between == between);
         });
}

AbandonedCopies::~AbandonedCopies() {
  if (none()) return;
  // The copies and resources stay until the process ends. They remain reachable, so leak checkers
  // do not report them.
  struct Left {
    std::list<AbandonedCopy> copies;
    std::list<std::unique_ptr<Kept>> kept;
    Left* next;
  };
  static std::atomic<Left*> all_left{nullptr};
  auto* const left = new (std::nothrow) Left{{}, {}, all_left.load()};
  if (left == nullptr) {
    for (auto& kept : kept_) static_cast<void>(kept.release());
    return;
  }
  left->copies.swap(list_.copies_);
  left->kept.swap(kept_);
  while (!all_left.compare_exchange_weak(left->next, left)) {
  }
}

void AbandonedCopies::add(const AbandonedCopy& copy) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    list_.copies_.push_back(copy);
  } catch (const std::bad_alloc&) {
    list_.is_incomplete_ = true;
  }
  some_.store(true, std::memory_order_release);
}

bool AbandonedCopies::touch(const HostRange& host) const {
  if (none()) return false;
  const std::lock_guard lock(mutex_);
  return list_.touch(host);
}

bool AbandonedCopies::use(const Device& device) const {
  if (none()) return false;
  const std::lock_guard lock(mutex_);
  return list_.use(device);
}

void AbandonedCopies::keep(std::unique_ptr<Kept> what) noexcept {
  if (what == nullptr) return;
  const std::lock_guard lock(mutex_);
  some_.store(true, std::memory_order_release);
  try {
    kept_.push_back(nullptr);
  } catch (const std::bad_alloc&) {
    static_cast<void>(what.release());  // never destroyed
    return;
  }
  kept_.back() = std::move(what);
}

// Removes and returns the resources that no copy uses any longer. The caller destroys them without
// holding the mutex.
std::list<std::unique_ptr<AbandonedCopies::Kept>> AbandonedCopies::take_unused() {
  std::list<std::unique_ptr<Kept>> unused;
  const std::lock_guard lock(mutex_);
  list_.copies_.remove_if([](const AbandonedCopy& copy) {
    const DeviceTable& table = *copy.device->table;
    if (copy.event == nullptr) return false;
    if (table.event_query(copy.device->instance, copy.event) == HETCOMM_PENDING) return false;
    table.event_release(copy.device->instance, copy.event);
    return true;
  });
  for (auto each = kept_.begin(); each != kept_.end();) {
    const auto next = std::next(each);
    if (!(*each)->is_used(list_)) unused.splice(unused.end(), kept_, each);
    each = next;
  }
  if (list_.copies_.empty() && kept_.empty() && !list_.is_incomplete_) {
    some_.store(false, std::memory_order_release);
  }
  return unused;
}

void AbandonedCopies::look() {
  if (!none()) take_unused();
}

bool AbandonedCopies::must_stay(const Device& device) {
  if (none()) return false;
  const std::lock_guard lock(mutex_);
  if (list_.use(device)) return true;
  for (const auto& kept : kept_) {
    if (kept->needs(device)) return true;
  }
  for (const auto& kept : kept_) kept->forget(device);
  return false;
}

}  // namespace hetcomm
