#include "transports/rdma/memory_monitor.h"

#include <sched.h>

#include <algorithm>

#include "src/system/clock.h"
#include "transports/rdma/memory_events.h"

namespace hetcomm::rdma {
namespace {

// A thread that unmaps memory usually continues after a few microseconds. After this time,
// registering again costs no more than waiting.
constexpr uint64_t kSettleNs = 100'000;
// Time limit for the reader thread to record an event that it has read.
constexpr uint64_t kReadNs = 20'000'000;

}  // namespace

Result<std::unique_ptr<MemoryMonitor>> MemoryMonitor::create() {
  Result<std::shared_ptr<MemoryEvents>> events = MemoryEvents::get();
  if (!events.ok()) return events.status();
  return std::unique_ptr<MemoryMonitor>(new MemoryMonitor(std::move(events).value()));
}

MemoryMonitor::MemoryMonitor(std::shared_ptr<MemoryEvents> events)
    : events_(std::move(events)), taken_(events_->count()) {}

MemoryMonitor::~MemoryMonitor() {
  for (const MemoryRange& range : watched_) events_->unwatch(range);
}

bool MemoryMonitor::watch(const MemoryRange& range) {
  watched_.push_back(range);
  try {
    if (events_->watch(range)) return true;
  } catch (...) {
    // The destructor must not unwatch a range that is not watched.
    watched_.pop_back();
    throw;
  }
  watched_.pop_back();
  return false;
}

void MemoryMonitor::unwatch(const MemoryRange& range) {
  const auto at = std::find(watched_.begin(), watched_.end(), range);
  if (at == watched_.end()) return;
  *at = watched_.back();
  watched_.pop_back();
  events_->unwatch(range);
}

bool MemoryMonitor::settle() {
  if (!events_->changing()) return true;
  const uint64_t deadline = deadline_after(now_ns(), kSettleNs);
  while (now_ns() < deadline) {
    sched_yield();
    if (!events_->changing()) return true;
  }
  return false;
}

bool MemoryMonitor::anything_lost() const { return events_->sequence() != seen_; }

void MemoryMonitor::take(Lost& out) {
  uint64_t now = events_->sequence();
  for (uint64_t deadline = 0; (now & 1) != 0; now = events_->sequence()) {
    if (deadline == 0) deadline = deadline_after(now_ns(), kReadNs);
    if (now_ns() >= deadline) {
      // The reader thread has not recorded the events that it has read, so any memory may be lost.
      // The caller must call take() again.
      out.count = 0;
      out.all = true;
      return;
    }
    sched_yield();
  }
  seen_ = now;
  events_->take(taken_, out);
}

}  // namespace hetcomm::rdma
