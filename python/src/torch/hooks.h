// Holds the functions that a process group calls when its works end. The process group and its
// works share them. They survive a reconfiguration of the group.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "python/src/torch/log.h"

namespace hetcomm::torch_backend {

// A HookTable holds functions, each with an id that its owner has chosen, and calls them in the
// order of the ids. A call may still be running on another thread when remove() returns.
// [any-thread]
//
// Functions may be Python objects, which are copied and destroyed with the GIL held. The table does
// neither while it holds its own lock, because a thread that holds the GIL may wait for that lock.
template <typename... Arguments>
class HookTable {
 public:
  using Hook = std::function<void(Arguments...)>;

  explicit HookTable(const char* kind) : kind_(kind) {}

  // Adds a function, or replaces the one with the same id.
  void add(int64_t id, Hook hook) {
    const auto shared = std::make_shared<const Hook>(std::move(hook));
    change([&](Hooks& hooks) { hooks.insert_or_assign(id, shared); });
  }
  void remove(int64_t id) {
    change([&](Hooks& hooks) { hooks.erase(id); });
  }
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // Calls all hooks. An exception is logged. A hook may add and remove hooks, since no lock is
  // held.
  void call(const Arguments&... arguments) const noexcept {
    if (empty()) return;
    std::unique_lock lock(mutex_);
    const std::shared_ptr<const Hooks> hooks = hooks_;
    lock.unlock();
    for (const auto& [id, hook] : *hooks) {
      try {
        (*hook)(arguments...);
      } catch (...) {
        log_thrown(kind_);
      }
    }
  }

 private:
  using Hooks = std::map<int64_t, std::shared_ptr<const Hook>>;

  template <typename Change>
  void change(Change&& apply) {
    std::shared_ptr<const Hooks> before;  // outlives |lock|, so functions are destroyed without it
    const std::scoped_lock lock(mutex_);
    auto changed = std::make_shared<Hooks>(*hooks_);
    apply(*changed);
    count_.store(changed->size(), std::memory_order_release);
    before = std::exchange(hooks_, std::move(changed));
  }

  const char* const kind_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Hooks> hooks_ = std::make_shared<Hooks>();  // replaced, but never modified
  std::atomic<size_t> count_{0};
};

class Hooks {
 public:
  using EndHook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  // Sets the hook that is called once for each work that begins from now on. It is called when the
  // work ends, before the work's waiters are notified. There is at most one such hook.
  void set_end_hook(EndHook hook);
  bool has_end_hook() const { return has_end_hook_.load(std::memory_order_acquire); }
  // Calls the hook with the result of |make|. An exception is logged.
  template <typename Make>
  void call_end_hook(Make&& make) const noexcept {
    try {
      end_hook_(make());
    } catch (...) {
      log_thrown(kEndHook);
    }
  }

  // Returns whether any hook is set. Works must then be completed even if no thread waits for them.
  bool any() const { return has_end_hook() || !completions.empty() || !aborts.empty(); }

  // Called for each work that has succeeded, with its key and, in a timed group, its duration in
  // milliseconds. At that point isCompleted() of the work returns true, but its waiters have not
  // been notified.
  HookTable<uint64_t, std::optional<float>> completions{"a completion hook"};
  // Called when an operation of the group has failed, before its waiters are notified.
  HookTable<> aborts{"an abort hook"};

 private:
  static constexpr const char* kEndHook = "a completion hook";

  std::mutex mutex_;  // guards set_end_hook()
  EndHook end_hook_;  // constant once has_end_hook_ is set
  std::atomic<bool> has_end_hook_{false};
};

}  // namespace hetcomm::torch_backend
