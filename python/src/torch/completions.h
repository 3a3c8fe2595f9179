// Tracks the threads that complete the works of a group. Hooks and callbacks run on these threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace hetcomm::torch_backend {

class Completions {
 public:
  // While a scope exists, its thread counts as one that may run hooks or callbacks of the group.
  // Scopes on one thread nest.
  class Scope {
   public:
    explicit Scope(Completions& completions);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Completions;
    Completions& completions_;
    const Scope* const outer_;
  };

  Completions() = default;
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Returns whether the calling thread has a scope of any group. A thread with a scope must not
  // wait for other threads' scopes, because one of those threads may be waiting for it.
  static bool any_here() { return innermost_ != nullptr; }

  // Waits until only |own| scopes, those of the calling thread, are left. Returns false if there
  // are still more after |limit|.
  bool wait_for_others(size_t own, std::chrono::steady_clock::duration limit);

 private:
  constinit static thread_local const Scope* innermost_;

  std::atomic<size_t> count_{0};
  std::atomic<bool> waited_for_{false};
  std::mutex mutex_;  // used only for waiting on changed_
  std::condition_variable changed_;
};

}  // namespace hetcomm::torch_backend
