#include "src/core/device/waiting_calls.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "src/system/signals_blocked.h"

namespace hetcomm {

void EndingCall::make() {
  const DeviceTable& table = *device->table;
  switch (kind) {
    case Kind::kFree:
      table.free(device->instance, object);
      break;
    case Kind::kFreeHost:
      table.free_host(device->instance, object);
      break;
    case Kind::kUnpinHost:
      table.unpin_host(device->instance, object);
      break;
    case Kind::kStreamDestroy:
      table.stream_destroy(device->instance, object);
      break;
    case Kind::kEventRelease:
      table.event_release(device->instance, object);
      break;
  }
  memory.reset();
}

// A call that is deferred until no abandoned copy can block it. The destructor makes the call.
class KeptCall final : public AbandonedCopies::Kept {
 public:
  explicit KeptCall(EndingCall&& call) noexcept : call_(std::move(call)) {}
  ~KeptCall() override { call_.make(); }
  bool is_used(const AbandonedCopies::List& copies) const override {
    return copies.use(*call_.device);
  }
  bool needs(const Device& device) const override { return &device == call_.device; }
  void forget(const Device& /*device*/) override {}

 private:
  EndingCall call_;
};

// Makes |call|, or defers it until no abandoned copy can block it. Releases events immediately.
void WaitingCalls::finish(EndingCall& call) {
  const auto is_used = [&](const auto& copies) { return copies.use(*call.device); };
  const auto make = [&] { return new (std::nothrow) KeptCall(std::move(call)); };
  if (abandoned_ == nullptr || abandoned_->none() || call.kind == EndingCall::Kind::kEventRelease ||
      !abandoned_->keep_if(is_used, make)) {
    call.make();
    return;
  }
  static_cast<void>(call.memory.release());  // leaks the memory if no KeptCall could be allocated
}

void WaitingCalls::make_or_put_off(EndingCall call) {
  const bool is_event = call.kind == EndingCall::Kind::kEventRelease;
  if (!may_hold_.load(std::memory_order_acquire) && (is_event || !some_hang())) [[likely]] {
    finish(call);
    return;
  }
  // Calls other than event releases are made in order, since the last call to unpin some memory
  // also frees it.
  if (is_event || others_left_.load(std::memory_order_acquire) == 0) {
    if (const NoHolds none(*this); none) {
      finish(call);
      return;
    }
  }
  const std::lock_guard lock(mutex_);
  try {
    (is_event ? events_ : others_).push_back(std::move(call));
  } catch (const std::bad_alloc&) {
    static_cast<void>(call.memory.release());
    return;
  }
  put_off_.fetch_add(1, std::memory_order_relaxed);
  if (!is_event) others_left_.fetch_add(1, std::memory_order_relaxed);
  if (events_.size() > kMaxEvents) start_helper();
}

bool WaitingCalls::take(std::deque<EndingCall>& from, EndingCall* call) {
  if (from.empty()) return false;
  *call = std::move(from.front());
  from.pop_front();
  put_off_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void WaitingCalls::make(EndingCall& call) {
  finish(call);
  if (call.kind != EndingCall::Kind::kEventRelease) {
    others_left_.fetch_sub(1, std::memory_order_release);
  }
}

int WaitingCalls::make_put_off() {
  constexpr int kMaxAtOnce = 256;
  const NoHolds none(*this);
  if (!none) return 0;
  int made = 0;
  for (EndingCall call; made < kMaxAtOnce; ++made) {
    {
      const std::lock_guard lock(mutex_);
      if (!take(others_, &call) && !take(events_, &call)) break;
      making_ = call.owner;
    }
    make(call);
    const std::lock_guard lock(mutex_);
    making_ = nullptr;
    changed_.notify_all();
  }
  return made;
}

void WaitingCalls::make_all_of(const void* owner) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto own = std::find_if(events_.begin(), events_.end(),
                                  [owner](const EndingCall& each) { return each.owner == owner; });
    if (own == events_.end()) break;
    EndingCall call = std::move(*own);
    events_.erase(own);
    put_off_.fetch_sub(1, std::memory_order_relaxed);
    lock.unlock();
    finish(call);
    lock.lock();
  }
  changed_.wait(lock, [&] { return (!helps_ || helped_ != owner) && making_ != owner; });
}

void WaitingCalls::make_all() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  if (helper_.joinable()) helper_.join();
  for (EndingCall call; take(others_, &call) || take(events_, &call);) make(call);
}

void WaitingCalls::start_helper() {
  if (helper_.joinable()) {
    changed_.notify_all();
    return;
  }
  try {
    const SignalsBlocked blocked;
    helper_ = std::thread([this] { help(); });
  } catch (const std::system_error&) {
    // Events stay deferred until a thread can be started.
  }
}

void WaitingCalls::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || events_.size() > kMaxEvents; });
    if (stops_) return;
    EndingCall call;
    take(events_, &call);
    helps_ = true;
    helped_ = call.owner;
    lock.unlock();
    finish(call);
    lock.lock();
    helps_ = false;
    changed_.notify_all();
  }
}

}  // namespace hetcomm
